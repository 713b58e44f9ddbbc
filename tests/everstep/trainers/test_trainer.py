"""Trainers: the loop, evaluation's rules, and the record of a run."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode

import everstep
from everstep import (
    AlgorithmConfig,
    ContinuousDummyEnv,
    DiscreteDummyEnv,
    Policy,
    TrainConfig,
    Trainer,
)
from everstep.conditions import HitsUpperBound
from everstep.core.ranks import reduce_stats
from everstep.errors import ConfigError
from everstep.loggers import read_metrics
from everstep_adapters.gymnasium import GymnasiumEnv
from tests.toys import TERMINATED, ConstantEnv, Episode, Script, scripted_vector_env

SMALL: dict[str, Any] = {"num_envs": 8, "horizon": 4, "model_config": {"hiddens": (8,)}}


def trainer(every: int = 2, **arguments: Any) -> Trainer:
    arguments = {**SMALL, "run_dir": None, **arguments}
    return Trainer(DiscreteDummyEnv, horizons_per_env_reset=every, **arguments)


def test_totals() -> None:
    found = trainer()
    assert found.state == {"algorithm/collects": 0, "algorithm/steps": 0, "env/steps": 0}
    stats = found.step()
    assert found.state == {"algorithm/collects": 1, "algorithm/steps": 1, "env/steps": 32}
    assert stats["env/steps"] == 32
    assert found.step()["env/steps"] == 64
    assert {"memory/free", "returns/mean", "losses/total", "profiling/step_ms"} <= set(stats)


def test_the_time_of_loggers_is_that_since_the_train_step_before(tmp_path: Path) -> None:
    class Slow:
        def log_params(self, params: Any) -> None:
            pass

        def log_metrics(self, metrics: Any, *, step: int) -> None:
            time.sleep(0.02)

        def close(self, status: str = "FINISHED") -> None:
            pass

    found = trainer(loggers=[Slow()])
    times = [found.step()["profiling/log_ms"] for _ in range(3)]
    assert times[0] == 0.0
    assert min(times[1:]) >= 20


def test_an_algorithm_can_be_given() -> None:
    algorithm = AlgorithmConfig(**SMALL).build(DiscreteDummyEnv)
    assert Trainer(algorithm, run_dir=None).algorithm is algorithm
    with pytest.raises(ConfigError, match="has a config already: drop gamma"):
        Trainer(algorithm, gamma=0.9, run_dir=None)


def test_unknown_arguments_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"`gama`.*did you mean gamma"):
        trainer(gama=0.9)


def test_run_stops_at_the_first_condition_that_is_met_and_returns_the_last_statistics() -> None:
    found = trainer()
    stats = found.run(
        stop_conditions=[
            HitsUpperBound("algorithm/steps", 3),
            HitsUpperBound("algorithm/steps", 9),
        ]
    )
    assert stats["algorithm/steps"] == 3
    assert stats["env/steps"] == 96


def test_run_stops_at_the_budget() -> None:
    assert trainer().run(total_env_steps=100)["env/steps"] == 128


def test_run_needs_to_know_when_to_stop() -> None:
    found = trainer()
    for nothing in ({}, {"stop_conditions": []}):
        with pytest.raises(ConfigError, match=r"=100_000`.*HitsUpperBound.*float\('inf'\)"):
            found.run(**nothing)  # type: ignore[arg-type]
    assert found.state["algorithm/steps"] == 0


def test_run_goes_on_with_an_infinite_budget() -> None:
    found = trainer()
    step, calls = found.step, 0

    def counting(**kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise KeyboardInterrupt
        return step(**kwargs)

    found.step = counting  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        found.run(total_env_steps=float("inf"))
    assert found.state["algorithm/steps"] == 19


def test_every_condition_sees_every_step() -> None:
    seen = []

    class Watching:
        def __call__(self, stats: Any, /) -> bool:
            seen.append(stats["algorithm/steps"])
            return False

    trainer().run(stop_conditions=[HitsUpperBound("algorithm/steps", 3), Watching()])
    assert seen == [1, 2, 3]


# ---- evaluation on the shared environment -----------------------------------------------------


def test_eval_collects_for_one_reset_interval() -> None:
    found = trainer(every=2)
    stats = found.eval()
    assert found.state == {"algorithm/collects": 2, "algorithm/steps": 0, "env/steps": 0}
    assert stats["eval/env/steps"] == 64
    assert stats["eval/env/resets"] == 8
    assert all(key.startswith("eval/") for key in stats)


def test_eval_between_resets_is_a_runtime_error() -> None:
    found = trainer(every=2)
    found.step()
    with pytest.raises(RuntimeError, match="1 have passed"):
        found.eval()
    found.step()
    found.eval()


def test_eval_configs_that_would_not_be_used_are_value_errors() -> None:
    found = trainer(every=-1)
    found.eval(env_config={"bounds": 1.0})  # the first reset uses it
    with pytest.raises(ValueError, match="eval_env"):
        found.eval(env_config={"bounds": 1.0})
    with pytest.raises(ValueError, match="eval_env"):
        found.run(steps_per_eval=1, eval_env_config={"bounds": 1.0})


def test_steps_per_eval_must_be_a_multiple_of_the_reset_interval() -> None:
    found = trainer(every=2)
    with pytest.raises(ValueError, match=r"multiple of `horizons_per_env_reset` \(2\) .* got 3"):
        found.run(steps_per_eval=3)
    assert found.state["algorithm/steps"] == 0


def test_run_evaluates_between_steps() -> None:
    found = trainer(every=2)
    found.run(steps_per_eval=2, stop_conditions=[HitsUpperBound("algorithm/collects", 5)])
    assert found.state["algorithm/collects"] == 5
    assert found.state["algorithm/steps"] == 3


def test_evaluation_data_is_never_trained_on() -> None:
    found = trainer(every=1)
    found.eval()
    with pytest.raises(RuntimeError, match="collect"):
        found.algorithm.step()


class EvaluationLog:
    """Keeps after how many transitions each evaluation was made, and of how many episodes."""

    def __init__(self) -> None:
        self.made: list[tuple[int, None | int]] = []

    def log_params(self, params: Any) -> None: ...

    def log_metrics(self, metrics: Any, *, step: int) -> None:
        if any(name.startswith("eval/") for name in metrics):
            self.made.append((step, metrics.get("eval/episodes/count")))

    def close(self, status: Any = "FINISHED") -> None: ...


def test_tests_play_their_own_number_of_episodes() -> None:
    """After every second update, beside the evaluations that follow every third."""
    log = EvaluationLog()
    found = trainer(
        every=1,
        eval_env=DiscreteDummyEnv(2, 4),
        eval_episodes=5,
        test_every=2,
        num_test_episodes=3,
        loggers=[log],
    )
    found.run(steps_per_eval=3, total_env_steps=7 * 32)
    assert log.made == [(2 * 32, 3), (3 * 32, 5), (4 * 32, 3), (6 * 32, 5), (6 * 32, 3)]


def test_shared_evaluations_follow_updates_and_not_rollouts() -> None:
    """Their own rollouts do not bring the next one nearer."""
    log = EvaluationLog()
    found = trainer(every=2, loggers=[log])
    found.run(steps_per_eval=4, total_env_steps=10 * 32)
    assert [step for step, _ in log.made] == [4 * 32, 8 * 32]


@pytest.mark.parametrize("deterministic", [True, False])
def test_actions_of_a_shared_evaluation_are_the_likeliest_or_drawn(deterministic: bool) -> None:
    found = Trainer(ConstantEnv(4, 32), run_dir=None)
    found.eval(deterministic=deterministic)
    actions = found.algorithm.buffer["actions"][:, :-1].float()
    # Observations are all the same, and so is the likeliest action.
    assert bool(actions.std() == 0) is deterministic


def test_rows_that_are_no_transitions_count_for_nothing() -> None:
    """Not towards the total, and not towards a budget."""
    script = [[Episode(2, TERMINATED)]] * 3
    env = GymnasiumEnv(scripted_vector_env(script, AutoresetMode.NEXT_STEP), horizon=6)
    found = Trainer(env, run_dir=None)
    assert found.step()["env/steps"] == 3 * 4  # every third row is a reset
    assert found.run(total_env_steps=3 * 12)["algorithm/steps"] == 3
    assert found.state["env/steps"] == found.algorithm.state.env_steps == 3 * 12


def test_env_config_reaches_the_reset() -> None:
    found = trainer(every=1)
    found.step(env_config={"bounds": 0.5})
    assert found.algorithm.buffer["obs"][:, 0].abs().max() <= 0.5


def test_an_environment_of_its_own_lifts_the_rules_and_disturbs_nothing() -> None:
    def env_of(script: Script, num_envs: int, mode: AutoresetMode) -> GymnasiumEnv:
        return GymnasiumEnv(scripted_vector_env([script] * num_envs, mode), horizon=4)

    def train(evaluate: bool) -> list[torch.Tensor]:
        env = env_of([Episode(5, TERMINATED)], 4, AutoresetMode.SAME_STEP)
        eval_env = env_of([Episode(3, TERMINATED)], 2, AutoresetMode.NEXT_STEP)
        found = Trainer(
            env, seed=3, run_dir=None, eval_env=eval_env, eval_episodes=5, horizons_per_env_reset=2
        )
        for _ in range(3):
            found.step()
            if evaluate:
                stats = found.eval()
                assert stats["eval/episodes/count"] == 5
                assert stats["eval/episodes/length_mean"] == 3
        return [p.detach().clone() for p in found.algorithm.policy.model.parameters()]

    for a, b in zip(train(False), train(True), strict=True):
        assert torch.equal(a, b)


def test_evaluating_in_an_environment_of_torch_does_not_use_up_trainings_random_numbers() -> None:
    def train(evaluate: bool) -> list[torch.Tensor]:
        found = trainer(every=1, seed=3, eval_env=DiscreteDummyEnv(2, 4), eval_episodes=2)
        for _ in range(3):
            found.step()
            if evaluate:
                found.eval(deterministic=False)
        return [p.detach().clone() for p in found.algorithm.policy.model.parameters()]

    for a, b in zip(train(False), train(True), strict=True):
        assert torch.equal(a, b)


def test_shared_evaluations_between_episodes_that_are_longer_than_a_rollout() -> None:
    script = [[Episode(10, TERMINATED)]] * 2
    env = GymnasiumEnv(scripted_vector_env(script, AutoresetMode.NEXT_STEP), horizon=4)
    found = Trainer(env, run_dir=None)
    for _ in range(6):
        found.step()
        assert found.eval().get("eval/episodes/length_mean", 10.0) == 10.0


def test_an_env_config_that_evaluations_cannot_use_is_not_passed_to_them() -> None:
    found = trainer(every=-1)
    stats = found.run(env_config={"bounds": 1.0}, steps_per_eval=1, total_env_steps=96)
    assert stats["algorithm/collects"] == 5


def test_reduced_statistics_are_those_of_all_rollouts() -> None:
    rollouts = [
        {"a/min": 1.0, "a/max": 2.0, "a/mean": 1.0, "a/std": 3.0, "env/steps": 5.0},
        {"a/min": 0.0, "a/max": 1.0, "a/mean": 3.0, "a/std": 4.0, "env/steps": 7.0},
    ]
    rollouts[0] |= {"episodes/count": 1.0, "episodes/return_mean": 10.0}
    rollouts[1] |= {"episodes/count": 3.0, "episodes/return_mean": 2.0}
    assert reduce_stats(rollouts) == pytest.approx(
        {
            "a/min": 0.0,
            "a/max": 2.0,
            "a/mean": 2.0,
            "a/std": 12.5**0.5,
            "env/steps": 12.0,
            "episodes/count": 4.0,
            "episodes/return_mean": 4.0,
        }
    )


# ---- the record -------------------------------------------------------------------------------


def test_a_run_leaves_its_record(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    found = trainer(run_dir=run_dir, track=False)
    found.run(total_env_steps=96)
    found.close()
    lines = read_metrics(run_dir / "metrics.jsonl")
    assert [line["step"] for line in lines] == [32, 64, 96]
    config = (run_dir / "config.yaml").read_text()
    assert config.startswith("# native training on a CPU: yes\n")
    assert "gamma: 0.95" in config
    policy = Policy.load(run_dir / "policy")
    for a, b in zip(
        policy.model.parameters(), found.algorithm.policy.model.parameters(), strict=True
    ):
        assert torch.equal(a, b)


def test_the_record_has_the_reason_why_training_is_not_fused(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    found = trainer(run_dir=run_dir, track=False, optimizer_cls=torch.optim.SGD)
    found.close()
    reason = found.algorithm.params["native"]
    assert "SGD" in reason
    text = (run_dir / "config.yaml").read_text()
    assert text.startswith(f"# native training on a CPU: no: {reason}\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_a_run_that_ends_badly_keeps_its_policy(error: type[BaseException], tmp_path: Path) -> None:
    found = trainer(run_dir=tmp_path / "run", track=False)

    def fail(stats: Any, /) -> bool:
        raise error

    with pytest.raises(error):
        found.run(stop_conditions=[fail])
    assert Policy.load(tmp_path / "run" / "policy")
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1


def test_a_runs_config_makes_the_same_training(tmp_path: Path) -> None:
    model = {"hiddens": [8]}
    found = trainer(run_dir=tmp_path / "run", track=False, vf_clip_param=None, model_config=model)
    again = TrainConfig.from_file(tmp_path / "run" / "config.yaml").build(run_dir=None)
    assert dict(again.algorithm.hparams) == dict(found.algorithm.hparams)
    assert type(again.algorithm.env) is DiscreteDummyEnv
    factory = everstep.factory("gymnasium:CartPole-v1", action_bounds="clip")
    Trainer(factory, run_dir=tmp_path / "other", track=False)
    config = TrainConfig.from_file(tmp_path / "other" / "config.yaml")
    assert config.env_cls == "gymnasium:CartPole-v1"
    assert config.env_kwargs == {"action_bounds": "clip"}


def test_run_uses_the_arguments_that_the_trainer_was_given() -> None:
    assert trainer(run_arguments={"total_env_steps": 100}).run()["env/steps"] == 128
    found = trainer(run_arguments={"total_env_steps": 100})
    assert found.run(total_env_steps=32)["env/steps"] == 32


def test_a_checkpoint_continues_exactly_where_the_environment_has_a_state(tmp_path: Path) -> None:
    class Remembering(ContinuousDummyEnv):
        def state_dict(self) -> dict[str, Any]:
            return {"state": self.state}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state["state"].clone()

    def build() -> Trainer:
        return Trainer(Remembering, **SMALL, seed=1, horizons_per_env_reset=-1, run_dir=None)

    def finish(found: Trainer) -> list[torch.Tensor]:
        for _ in range(3):
            found.step()
        assert found.state["env/steps"] == 5 * 32
        return [p.detach().clone() for p in found.algorithm.policy.model.parameters()]

    first = build()
    first.step()
    first.step()
    first.save_checkpoint(tmp_path / "checkpoint")
    expected = finish(first)
    second = build()
    second.load_checkpoint(tmp_path / "checkpoint")
    for a, b in zip(finish(second), expected, strict=True):
        assert torch.equal(a, b)


def test_nothing_is_written_where_the_config_is_bad(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        Trainer(ConstantEnv(), gamma=7.0)
    assert list(tmp_path.iterdir()) == []
