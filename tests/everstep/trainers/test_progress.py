"""The progress view of a run, with rich's own console."""

import math
import os
import re
import subprocess
import sys
from io import StringIO

import pytest
from rich.console import Console

from everstep import DiscreteDummyEnv, Trainer
from everstep.adapters import GymnasiumEnv
from everstep.trainers.progress import ConsoleProgress, Course, duration, summary
from everstep.trainers.usage import Usage

STATISTICS = {
    "episodes/return_mean": 99.0,
    "episodes/return_mean_100": 123.4,
    "episodes/length_mean": 123.0,
    "monitors/kl_div": 0.0081,
    "profiling/collect_ms": 30.0,
    "profiling/env_ms": 20.0,
    "profiling/step_ms": 10.0,
}


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.seconds = 1000.0

    def __call__(self):
        return self.seconds


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def clock():
    return Clock()


def plain(clock, total=None, **options):
    console = Console(file=StringIO())
    return ConsoleProgress(total, console=console, clock=clock, **options), console.file


def terminal(clock, total=None):
    console = Console(file=StringIO(), force_terminal=True, width=100)
    return ConsoleProgress(total, console=console, clock=clock), console.file


def log(progress, clock, steps, metrics=STATISTICS, seconds=1.0):
    for step in steps:
        clock.seconds += seconds
        progress.log_metrics(metrics, step=step)


def test_one_plain_line_an_interval_and_one_at_the_end(clock):
    progress, file = plain(clock, interval=10.0)
    log(progress, clock, range(1000, 36000, 1000))
    assert file.getvalue().count("\n") == 3
    progress.close()
    progress.close()
    assert [line.split()[0] for line in file.getvalue().splitlines()] == [
        "env_steps=10,000",
        "env_steps=20,000",
        "env_steps=30,000",
        "env_steps=35,000",
    ]


def test_the_plain_line(clock):
    progress, file = plain(clock, total=199_340, interval=2.0)
    log(progress, clock, [38_855, 51_200])
    assert file.getvalue() == (
        "env_steps=51,200 return_last_100=123.4 len_last_rollout=123 kl=0.0081 12,345 env steps/s "
        "eta 0:12\n"
    )


def test_a_line_is_never_folded(clock):
    progress, file = plain(clock, total=10**15, interval=1.0)
    log(progress, clock, [10**12, 10**13], dict.fromkeys(STATISTICS, -1e60))
    assert all(line.startswith("env_steps=") for line in file.getvalue().splitlines())


def test_nothing_is_repeated_at_the_end(clock):
    progress, file = plain(clock, interval=1.0)
    log(progress, clock, [10])
    progress.close()
    assert file.getvalue().count("\n") == 1


def test_no_statistics_at_all(clock):
    progress, file = plain(clock, total=100, interval=1.0)
    progress.close()
    assert file.getvalue() == ""
    progress, file = plain(clock, total=100, interval=1.0)
    log(progress, clock, [50], {})
    assert file.getvalue() == "env_steps=50\n"


def test_absent_statistics_keep_their_last_value(clock):
    progress, file = plain(clock, interval=1.0)
    log(progress, clock, [1])
    log(progress, clock, [2], {"monitors/kl_div": math.nan})
    assert "return_last_100=123.4 len_last_rollout=123 kl=nan" in file.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        ({"returns/mean": 1.0}, " rollout_return=1.0"),
        ({"returns/mean": 1.0, "episodes/return_mean": 2.0}, " return_last_rollout=2.0"),
        ({"episodes/return_mean": 2.0, "episodes/return_mean_100": 3.0}, " return_last_100=3.0"),
    ],
)
def test_the_best_statistic_stands_for_the_return(clock, metrics, shown):
    progress, file = plain(clock, interval=1.0)
    log(progress, clock, [1], metrics)
    assert shown in file.getvalue()


REWARDS = {"returns/mean": 128.0, "rewards/mean": 1.0}


def test_no_return_before_an_episode_has_ended(clock):
    """CartPole's rewards over 128 env steps are not a return of 128."""
    progress, file = plain(clock, interval=1.0)
    progress.log_params({"episodic": True})
    log(progress, clock, [1024], REWARDS)
    log(progress, clock, [2048], REWARDS | STATISTICS)
    first, second = file.getvalue().splitlines()
    assert first == "env_steps=1,024 (no episode has ended yet) reward=1"
    assert second.startswith("env_steps=2,048 return_last_100=123.4 len_last_rollout=123")


def test_no_return_in_the_live_view_before_an_episode_has_ended(clock):
    progress, file = terminal(clock, total=100_000)
    progress.log_params({"episodic": True})
    log(progress, clock, [1024], REWARDS)
    assert "no episode has ended yet" in file.getvalue()
    log(progress, clock, [2048], REWARDS | STATISTICS)
    progress.close()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).splitlines()[-7:]
    assert any("return" in line and "123.4 ▁" in line and "▁▁" not in line for line in last)
    assert not any("no episode" in line or "reward" in line for line in last)


def test_the_rollouts_return_is_named_where_episodes_do_not_end(clock):
    progress, file = plain(clock, interval=1.0)
    progress.log_params({"episodic": False})
    log(progress, clock, [1024], REWARDS)
    log(progress, clock, [1024], {"eval/returns/mean": 130.0})
    assert file.getvalue().splitlines()[-1] == (
        "env_steps=1,024 rollout_return=128.0 eval_rollout_return=130.0"
    )


@pytest.mark.parametrize("episodic", [True, False])
def test_progress_knows_from_the_algorithm_whether_episodes_end(clock, episodic):
    import gymnasium

    env = DiscreteDummyEnv(4, 8)
    if episodic:
        env = GymnasiumEnv(gymnasium.make_vec("MountainCar-v0", 4, vectorization_mode="sync"), 8)
    progress, file = plain(clock, interval=0.0)
    with Trainer(env, loggers=[progress], run_dir=None) as trainer:
        trainer.step()
    shown = "(no episode has ended yet) reward=-1" if episodic else "rollout_return="
    assert shown in file.getvalue()
    assert not re.search(r"\breturn_last", file.getvalue())


def test_evaluation_is_shown_and_does_not_count_as_progress(clock):
    progress, file = plain(clock, interval=2.0)
    log(progress, clock, [100, 200])
    log(progress, clock, [200], {"eval/episodes/return_mean": 7.0}, seconds=2.0)
    assert "eval=7.0 100 env steps/s" in file.getvalue().splitlines()[-1]


def test_speed_is_recent_and_survives_a_resume(clock):
    """A resumed run starts at its env steps, and what was fast an hour ago does not matter."""
    progress, file = plain(clock, total=2_000_000, interval=1.0)
    log(progress, clock, range(1_000_000, 1_100_000, 10_000))
    assert "10,000 env steps/s" in file.getvalue().splitlines()[-1]
    log(progress, clock, range(1_100_000, 1_110_000, 100))
    assert "100 env steps/s" in file.getvalue().splitlines()[-1]


def test_time_left_never_goes_below_zero(clock):
    progress, file = plain(clock, total=100, interval=1.0)
    log(progress, clock, [90, 390])
    assert file.getvalue().endswith("eta 0:00\n")


def test_a_clock_that_stands_still(clock):
    progress, _ = plain(clock, total=100)
    log(progress, clock, [1, 2, 3], seconds=0.0)
    progress.close()


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({}, {}),  # a file
        ({"TERM": "dumb"}, {"force_terminal": True}),
        ({"CI": "true"}, {"force_terminal": True}),
        ({}, {"force_jupyter": True}),  # of a console without IPython
    ],
)
def test_plain_where_nobody_watches(clock, monkeypatch, environment, options):
    monkeypatch.setitem(sys.modules, "IPython", None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    console = Console(file=StringIO(), **options)
    progress = ConsoleProgress(console=console, clock=clock, interval=1.0)
    log(progress, clock, [1])
    progress.close()
    assert (
        console.file.getvalue()
        == "env_steps=1 return_last_100=123.4 len_last_rollout=123 kl=0.0081\n"
    )


def test_the_live_view(clock):
    progress, file = terminal(clock, total=100_000)
    log(progress, clock, range(0, 51_000, 1000))
    progress.close()
    shown = file.getvalue()
    for text in (
        "50,000 of 100,000",
        "123.4 ▁",
        "0.0081",
        "1,000 env steps/s, 1,000 on average",
        "2 % environment, 1 % policy, 1 % update, 0 % logging, 96 % other",  # of a second
        "0:50",
        "━",
    ):
        assert text in shown
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).splitlines()[-9:]
    labels = [
        "progress",
        "env steps",
        "return, last 100",
        "episode length, last rollout",
        "update",
        "speed",
        "time",
    ]
    labels += ["elapsed", "time left"]
    assert all(line.rpartition(label)[1] for line, label in zip(last, labels, strict=True))
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor is given back


@pytest.mark.parametrize(
    ("times", "shares"),
    [
        (
            {"collect": 500.0, "step": 250.0},
            "50 % collecting, 25 % update, 0 % logging, 25 % other",
        ),
        (
            {"env": 100.0, "collect": 500.0, "step": 250.0, "log": 150.0},
            "10 % environment, 40 % policy, 25 % update, 15 % logging, 10 % other",
        ),
        (  # threads of trackers work at the same time
            {"env": 400.0, "collect": 800.0, "step": 200.0, "log": 1000.0},
            "20 % environment, 20 % policy, 10 % update, 50 % logging, 0 % other",
        ),
    ],
)
def test_shares_of_the_time(clock, times, shares):
    progress, _ = plain(clock)
    log(progress, clock, [1, 2, 3], {f"profiling/{name}_ms": x for name, x in times.items()})
    assert progress._shares() == shares


def test_the_live_view_says_how_updates_go_and_what_the_process_uses(clock):
    console = Console(file=StringIO(), force_terminal=True, width=120)
    progress = ConsoleProgress(console=console, clock=clock, pid=os.getpid())
    update = {
        "monitors/clip_fraction": 0.125,
        "monitors/explained_variance": 0.75,
        "losses/entropy": 1.5,
        "coefficients/lr": 3e-4,
    }
    log(progress, clock, [1000, 2000], STATISTICS | update)
    progress.close()
    shown = console.file.getvalue()
    assert "KL 0.0081  clipped 12%  explained variance 0.75  entropy 1.5  lr 0.0003" in shown
    assert re.search(r"processor \d+ %, memory [\d,]+ MiB", shown)


def test_a_process_that_has_ended_uses_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    usage = Usage(process.pid)
    process.wait()
    assert str(usage) == ""


def test_the_live_view_without_a_budget_or_statistics(clock):
    progress, file = terminal(clock)
    log(progress, clock, [5], {})
    progress.close("FAILED")
    assert "env steps" in file.getvalue()
    assert "━" not in file.getvalue()


def test_the_live_view_is_not_redrawn_at_every_train_step(clock):
    progress, file = terminal(clock)
    log(progress, clock, range(1000), seconds=0.001)
    assert 1 <= file.getvalue().count("return") <= 4
    progress.close()


def test_results_in_a_file_are_not_written_to_the_terminal(clock, capsys):
    progress, file = terminal(clock)
    log(progress, clock, [1])
    print("a result")
    progress.close()
    assert "a result" not in file.getvalue()
    assert capsys.readouterr().out == "a result\n"


def test_a_notebook_shows_a_cell(clock, monkeypatch):
    pytest.importorskip("IPython")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as kernels do
    console = Console(file=StringIO(), force_jupyter=True)
    progress = ConsoleProgress(console=console, clock=clock)
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda cell, **_: shown.append(cell))
    log(progress, clock, [1])
    assert "123.4" in shown[0].data
    assert "episode length, last rollout" in shown[0].data
    assert "…" not in shown[0].data
    assert "\x1b" not in shown[0].data
    assert console.file.getvalue() == ""


def test_course_law():
    """However many values, at most `width` bars; together they are the mean of what they cover."""
    for count in range(1, 200):
        course = Course(width=8)
        for value in range(count):
            course.add(float(value))
        assert 1 <= len(str(course)) <= 8
        covered = len(course._bars) * course._stride
        assert covered + len(course._pending) == count
        mean = sum(course._bars) / len(course._bars)
        assert mean == pytest.approx((covered - 1) / 2)


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([2.0, 2.0], "▁▁"),
        ([0.0, 3.5, 7.0], "▁▅█"),
        ([0.0, math.nan, math.inf, 7.0], "▁█"),
    ],
)
def test_course_by_hand(values, bars):
    course = Course()
    for value in values:
        course.add(value)
    assert str(course) == bars


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (12.4, "0:12"), (59.6, "1:00"), (3723, "1:02:03")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_a_summary_before_an_episode_has_ended():
    metrics = {**REWARDS, "eval/returns/mean": 5.0}
    text = summary(metrics, None, None, 1.0, episodic=True)
    assert text.splitlines()[1:] == [
        "  return          no episode has ended yet",
        "  reward          1",
    ]
    text = summary(metrics, None, None, 1.0, episodic=False)
    assert text.splitlines()[1:] == [
        "  rollout return            128.0",
        "  evaluation rollout return 5.0",
    ]


def test_summary():
    metrics = {**STATISTICS, "env/steps": 51_200, "eval/episodes/return_mean": 500.0}
    text = summary(metrics, "runs/cart pole-0001", "mlflow ui --backend-store-uri x", 41.0)
    assert text.splitlines() == [
        "Trained 51,200 env steps in 0:41, 1,249 env steps/s.",
        "  return, last 100             123.4",
        "  episode length, last rollout 123.0",
        "  evaluation                   500.0",
        "  run                          runs/cart pole-0001",
        "  evaluate                     everstep eval 'runs/cart pole-0001'",
        "  plot                         everstep plot 'runs/cart pole-0001'",
        "  curves                       mlflow ui --backend-store-uri x",
    ]


def test_an_evaluation_of_an_earlier_policy_says_when_it_was(clock):
    """Beside the figures of the last update, it would be taken for one of them."""
    progress, file = plain(clock, interval=0.0)
    for key, shown in (("episodes/return_mean", ""), ("returns/mean", "_rollout_return")):
        progress.metrics.clear()
        progress.log_metrics({"env/steps": 1000}, step=1000)
        progress.log_metrics({f"eval/{key}": 7.0}, step=1000)
        assert file.getvalue().splitlines()[-1] == f"env_steps=1,000 eval{shown}=7.0"
        progress.log_metrics({"env/steps": 2000}, step=2000)
        assert f"eval{shown}_at_1,000=7.0" in file.getvalue().splitlines()[-1]
        text = summary(progress.metrics, None, None, 1.0)
        assert f"evaluation{shown.replace('_', ' ')} at 1,000 7.0" in " ".join(text.split())


def test_a_summary_of_a_run_that_went_on_counts_this_training():
    metrics = {**STATISTICS, "env/steps": 16_172}
    text = summary(metrics, None, None, 30.0, first_env_steps=12_086)
    assert text.startswith("Trained 4,086 env steps in 0:30, 136 env steps/s; 16,172 in all.\n")
    text = summary({}, None, None, 30.0, first_env_steps=12_086)
    assert text == "Trained 0 env steps in 0:30, 0 env steps/s; 12,086 in all."


def test_an_evaluation_before_the_first_train_step_of_a_run_that_went_on(clock):
    progress, file = plain(clock)
    progress.first_env_steps = 12_086
    progress.log_params({"episodic": True})
    progress.log_metrics({"eval/episodes/return_mean": 500.0}, step=12_086)
    progress.close()
    assert file.getvalue() == "env_steps=12,086 eval=500.0\n"


def test_a_narrow_terminal_does_not_cut_names(clock):
    console = Console(file=StringIO(), force_terminal=True, width=40)
    progress = ConsoleProgress(100_000, console=console, clock=clock)
    log(progress, clock, range(0, 51_000, 1000))
    progress.close()
    for name in ("episode length, last rollout", "return, last 100", "time left"):
        assert name in console.file.getvalue()


def test_summary_of_nothing():
    assert summary({}, None, None, 0.0) == "Trained 0 env steps in 0:00."
