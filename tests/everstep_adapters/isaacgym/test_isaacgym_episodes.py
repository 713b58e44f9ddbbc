"""How episodes end in the IsaacGym adapter: reset styles, time-outs, full resets, advantages."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Composite

import everstep
from everstep import AlgorithmConfig
from everstep.errors import AdapterError, EnvError
from everstep.models import Model
from everstep_adapters import IsaacGymEnv
from tests.everstep_adapters.isaacgym.isaacgym_tasks import (
    LIMIT,
    LONGEST,
    NEVER,
    SCRIPTS,
    TASKS,
    WORDS,
    AtOnce,
    LabEnv,
    LazyAfter,
    LeggedTask,
    Overwriting,
    Row,
    RslEnv,
    Script,
    VecTask,
    Waiting,
    check_rows,
    expected_rows,
    play,
    some_actions,
)

STYLES = list(TASKS)

BOOLEAN = pytest.mark.parametrize("reset_dtype", [torch.long, torch.bool], ids=["long", "bool"])

# ---- rows of each style -----------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@BOOLEAN
@pytest.mark.parametrize("scripts", SCRIPTS.values(), ids=SCRIPTS.keys())
@pytest.mark.parametrize("style", STYLES)
def test_rows_are_those_of_environments_stepped_by_hand(
    style: str, scripts: list[Script], reset_dtype: torch.dtype
) -> None:
    env = IsaacGymEnv(TASKS[style](scripts, LONGEST, reset_dtype=reset_dtype), reset_style=style)
    check_rows(env, style, scripts, knows_failures=style == "D")


@pytest.mark.usefixtures("float64")
@BOOLEAN
@pytest.mark.parametrize("style", STYLES)
def test_the_style_is_found_out(style: str, reset_dtype: torch.dtype) -> None:
    scripts = SCRIPTS["both"]
    env = everstep.wrap(TASKS[style](scripts, LONGEST, reset_dtype=reset_dtype))
    assert isinstance(env, IsaacGymEnv)
    assert env.reset_style == style
    source = "its clock" if style == "D" else "its calls of `reset_idx`"
    assert env.describe()["resets"] == f"{style} ({WORDS[style]}), known from {source}"
    check_rows(env, style, scripts, knows_failures=style == "D")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("scripts", [[[1]], [[1], [NEVER]], [[2, 3], [1], [3, 2]]], ids=str)
def test_the_style_is_found_out_though_episodes_fail_meanwhile(
    style: str, scripts: list[Script]
) -> None:
    if style == "C" and scripts == [[1]]:
        scripts = [[1, 2]]  # all of one env step, it is asked for
    assert IsaacGymEnv(TASKS[style](scripts, 500)).reset_style == style


@pytest.mark.parametrize("longest", [2, 3, 500.0])
@pytest.mark.parametrize("style", STYLES)
def test_the_style_is_found_out_at_any_length(style: str, longest: float) -> None:
    task = TASKS[style]([[NEVER]] * 2, longest)
    asks = style == "C" and longest == 2  # all of one env step
    with pytest.raises(AdapterError, match="show none") if asks else nullcontext():
        assert IsaacGymEnv(task).reset_style == style


class OneLater(LazyAfter):
    """Its clock goes one env step further than most."""

    def check_ends(self) -> None:
        up = self.progress_buf >= self.max_episode_length
        self.reset_buf.copy_(self.world.failed() | up)


@pytest.mark.usefixtures("float64")
def test_the_limit_is_found_out() -> None:
    scripts = [[NEVER], [6, NEVER], [7, 5]]
    env = IsaacGymEnv(OneLater(scripts, LONGEST))
    assert "after 7 env steps" in env.describe()["limit"]
    check_rows(env, "A", scripts, limit=7)


@pytest.mark.parametrize("style", STYLES)
def test_a_style_may_be_given_by_letter_or_word(style: str) -> None:
    for given in (style, style.lower(), WORDS[style]):
        task = TASKS[style]([[NEVER]], LONGEST)
        env = IsaacGymEnv(task, reset_style=given)
        assert env.reset_style == style
        assert task.control_steps <= 2  # nothing was found out
        assert env.describe()["resets"].endswith("known from given")


def test_a_given_style_wins() -> None:
    assert IsaacGymEnv(LazyAfter([[3]]), reset_style="B").reset_style == "B"


class Unclocked(LazyAfter):
    """Ends nothing by its clock."""

    def check_ends(self) -> None:
        self.reset_buf.copy_(self.world.failed())


class ByMask(LazyAfter):
    """Resets without a call of `reset_idx`."""

    def reset_idx(self, env_ids: torch.Tensor) -> None:
        raise AssertionError

    def post_physics_step(self) -> None:
        self.progress_buf += 1
        self.reset_rows(self.reset_buf != 0)
        VecTask.compute_observations(self)
        self.compute_reward()
        self.check_ends()


class AtOnceToo(LazyAfter):
    """Resets some of its rows in the env step that ends them, and others in the next one."""

    def check_ends(self) -> None:
        super().check_ends()
        rows = (self.reset_buf != 0) & (self.world.name == 0)
        self.reset_idx(rows)
        self.reset_buf.masked_fill_(rows, 1)


class Forgetful(LazyAfter):
    """Neither resets what ended nor waits for anybody to do so."""

    reset_done = None  # type: ignore[assignment]

    def post_physics_step(self) -> None:
        self.progress_buf += 1
        self.check_ends()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Unclocked([[NEVER]]), r"did not end when `progress_buf` was at .*\(7\).*`reset_style="),
        (Forgetful([[NEVER]]), r"its calls of `reset_idx` show none.*`reset_style="),
        (ByMask([[NEVER]]), r"its calls of `reset_idx` show none.*`reset_style="),
        (AtOnce([[1]]), r"its calls of `reset_idx` show none.*`reset_style="),
        (AtOnceToo([[NEVER]] * 2), r"its calls of `reset_idx` show A and C.*`reset_style="),
        (
            LazyAfter([[NEVER]], 1),
            r"finite number of at least 2; got 1.*`reset_style=.*'A' \('next_step_after",
        ),
        (LazyAfter([[NEVER]], math.inf), r"finite number of at least 2; got inf.*`reset_style="),
    ],
    ids=[
        "no clock",
        "never reset",
        "by mask",
        "all of one step",
        "two styles",
        "one-step episodes",
        "endless",
    ],
)
def test_what_cannot_be_found_out_is_an_error_that_names_the_option(
    task: VecTask, message: str
) -> None:
    with pytest.raises(AdapterError, match=message):
        IsaacGymEnv(task)


def test_styles_that_cannot_be_are_errors() -> None:
    with pytest.raises(AdapterError, match=r"one of 'A' \('next_step_after_physics'\).*'lazily'"):
        IsaacGymEnv(LazyAfter([[3]]), reset_style="lazily")
    with pytest.raises(AdapterError, match="has no `reset_done`"):
        IsaacGymEnv(Forgetful([[3]]), reset_style="D")
    with pytest.raises(AdapterError, match=r"as its interface says; got `reset_style='A'`"):
        IsaacGymEnv(LeggedTask([[3]]), reset_style="A")


# ---- time-outs --------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("report", ["stale", "never", "absent"])
@pytest.mark.parametrize("style", STYLES)
def test_reports_of_time_outs_are_not_needed(style: str, report: str) -> None:
    scripts = SCRIPTS["both"]
    options = {"terminate": False} if style == "D" else {}
    env = IsaacGymEnv(TASKS[style](scripts, LONGEST, report=report, **options))
    assert env.describe()["limit"] == "time-outs: after 6 env steps, counted by `progress_buf`"
    check_rows(env, style, scripts)


@pytest.mark.usefixtures("float64")
def test_a_buffer_of_terminations_tells_failures_in_the_last_env_step() -> None:
    scripts = SCRIPTS["failures in the last env step"]
    env = IsaacGymEnv(Waiting(scripts, LONGEST))
    assert "buffer of terminations" in env.describe()["limit"]
    check_rows(env, "D", scripts, knows_failures=True)
    by_clock = IsaacGymEnv(Waiting(scripts, LONGEST), time_outs="clock")
    check_rows(by_clock, "D", scripts)


@pytest.mark.usefixtures("float64")
def test_reports_count_only_where_an_episode_ended() -> None:
    scripts = SCRIPTS["both"]
    env = IsaacGymEnv(LazyAfter(scripts, LONGEST), time_outs="reported")
    check_rows(env, "A", scripts)
    legged = IsaacGymEnv(LeggedTask(scripts, LIMIT - 1), observation_keys=("obs",))
    check_rows(legged, "C", scripts)


class Lengthless(LazyAfter):
    """Says in its report alone how long an episode is."""

    def __init__(self, scripts: list[Script], report: str) -> None:
        super().__init__(scripts, LONGEST, report=report)
        del self.max_episode_length

    def check_ends(self) -> None:
        self.reset_buf.copy_(self.world.failed() | (self.progress_buf >= LIMIT))

    def report_time_outs(self) -> None:
        if self.report == "true":
            self.extras["time_outs"] = self.progress_buf >= LIMIT


@pytest.mark.usefixtures("float64")
def test_a_length_that_the_task_does_not_have() -> None:
    scripts = SCRIPTS["both"]
    with pytest.raises(AdapterError, match=r"got None.*`reset_style="):
        IsaacGymEnv(Lengthless(scripts, "true"))
    with pytest.raises(AdapterError, match=r"how long an episode may be.*`max_episode_length=`"):
        IsaacGymEnv(Lengthless(scripts, "absent"), reset_style="A")
    check_rows(IsaacGymEnv(Lengthless(scripts, "true"), reset_style="A"), "A", scripts)
    told = IsaacGymEnv(Lengthless(scripts, "absent"), max_episode_length=LONGEST)
    check_rows(told, "A", scripts)


def test_without_a_limit_all_ends_are_failures() -> None:
    env = IsaacGymEnv(LazyAfter([[NEVER]]), reset_style="A", max_episode_length=math.inf)
    _, rows = play(env, some_actions(20, 1))
    assert sum(row["terminated"].item() for row in rows) == 3
    assert not any(row["truncated"].item() for row in rows)


def test_a_way_to_tell_time_outs_that_the_task_does_not_have_is_an_error() -> None:
    with pytest.raises(AdapterError, match=r"one of 'clock', 'reported'; got 'terminate'"):
        IsaacGymEnv(LazyAfter([[3]]), time_outs="terminate")
    with pytest.raises(AdapterError, match="got 'guess'"):
        IsaacGymEnv(LazyAfter([[3]]), time_outs="guess")


# ---- full resets ------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("after", [0, 3, LIMIT - 1, LIMIT])
@pytest.mark.parametrize("style", STYLES)
def test_a_full_reset_opens_new_episodes_and_leaves_nothing_pending(style: str, after: int) -> None:
    """`after` one of these the time is up, so every environment waits for a reset."""
    scripts = [[NEVER]] * 3
    env = IsaacGymEnv(TASKS[style](scripts, LONGEST, num_states=2))
    before = env.reset()["obs"].clone()
    for action in some_actions(after, 3):
        env.step(action.unsqueeze(-1))
    obs = env.reset()
    assert bool((obs["obs"][:, 1] > before[:, 1]).all())
    begun = 1.0 if style == "B" else 0.0  # one env step old, with an action of 0
    assert obs["obs"][:, 2].tolist() == [begun] * 3
    assert obs["obs"][:, 3].tolist() == [0.0] * 3
    assert obs["states"][:, 0].tolist() == [begun] * 3
    row = env.step(torch.full((3, 1), 0.5))
    assert not row["first"].any()
    assert row["obs", "obs"][:, 2].tolist() == [begun + 1] * 3


def test_zeros_are_never_taken_for_observations() -> None:
    """A task's own `reset` returns them before its first env step."""
    for style, cls in TASKS.items():
        env = IsaacGymEnv(cls([[NEVER]] * 2, LONGEST), reset_style=style)
        assert env.reset()[:, 0].tolist() == [0.0, 1.0]  # the environments' names


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("style", STYLES)
def test_bounds_of_observations_hold_after_a_reset(style: str) -> None:
    env = IsaacGymEnv(TASKS[style]([[NEVER]] * 5, LONGEST, clip_obs=1.5, num_states=2))
    for _ in range(3):
        obs = env.reset()
        assert obs["obs"].max() == 1.5
        assert obs["states"].max() == 1.5


def test_a_same_step_task_that_computes_nothing_on_demand_takes_an_env_step() -> None:
    env = IsaacGymEnv(AtOnce([[NEVER]] * 2, LONGEST, compute=False))
    assert env.reset()[:, 2].tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("float64")
def test_reset_done_that_forgets_the_observations_is_made_up_for() -> None:
    scripts = SCRIPTS["both"]
    check_rows(
        IsaacGymEnv(Waiting(scripts, LONGEST, fresh=False)), "D", scripts, knows_failures=True
    )


def test_a_reset_takes_no_options() -> None:
    env = IsaacGymEnv(LazyAfter([[3]]))
    env.reset(config={})
    with pytest.raises(AdapterError, match="takes no options in a reset; got gravity"):
        env.reset(config={"gravity": 0.0})


# ---- final observations of tasks that reset at once -------------------------------------------


def test_a_lost_final_observation_is_not_declared() -> None:
    env = IsaacGymEnv(AtOnce([[3]]))
    assert env.episode_keys == {"terminated", "truncated", "first"}
    assert env.describe()["final observations"] == "lost; `on_missing_final` decides"


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("key", "given"),
    [("final_obs", None), ("final_observation", None), ("terminal_obs", None), ("last", "last")],
)
def test_a_final_observation_in_the_extras_is_found(key: str, given: None | str) -> None:
    task = AtOnce(SCRIPTS["both"], LONGEST)
    task.final_key = key
    env = IsaacGymEnv(task, final_obs_key=given)
    assert env.describe()["final observations"] == f"`extras[{key!r}]`"
    check_rows(env, "C", SCRIPTS["both"])


def test_a_final_observation_that_is_not_there_this_time_is_nan_where_it_is_needed() -> None:
    task = AtOnce([[NEVER], [2]], LONGEST)
    task.final_key = "final_obs"
    env = IsaacGymEnv(task)
    task.final_key = None
    task.extras.clear()
    _, rows = play(env, some_actions(LIMIT, 2))
    for row in rows:
        lost = (row["truncated"] & ~row["terminated"]).expand(-1, 4)
        assert torch.equal(row["final_obs"].isnan(), lost)
    assert lost.tolist() == [[True] * 4, [False] * 4]


@pytest.mark.parametrize(
    ("alias", "dtype"),
    [(True, torch.float32), (False, torch.float32), (True, torch.int32)],
    ids=["the buffer", "a copy of it", "integers"],
)
def test_final_observations_that_the_reset_overwrites_are_lost_or_refused(
    alias: bool, dtype: torch.dtype
) -> None:
    """Observations may be the buffer itself or a copy; integers cannot be marked as lost."""
    task = Overwriting([[NEVER], [NEVER]], LONGEST, alias=alias)
    task.obs_buf = task.obs_buf.to(dtype)
    env = IsaacGymEnv(task)
    assert env.observation_spec.dtype is dtype

    def run() -> None:
        for action in some_actions(5 * LIMIT, 2):
            row = env.step(action.unsqueeze(-1))
            assert bool(row["final_obs"][row["truncated"].flatten()].isnan().all())

    with pytest.raises(EnvError, match=r"Overwriting (writes|may have).*final observ.* a copy"):
        run()


def test_final_observations_in_a_buffer_of_their_own_are_the_tasks() -> None:
    class Copying(AtOnce):
        final_buf = torch.zeros(2, 4)

        def compute_reward(self) -> None:
            super().compute_reward()
            self.extras["final_obs"] = self.final_buf.copy_(self.world.observe())

    env = IsaacGymEnv(Copying([[NEVER], [NEVER]], LONGEST))
    _, rows = play(env, some_actions(3 * LIMIT, 2))
    ends = [row["final_obs"][:, 2] for row in rows if row["truncated"].all()]
    assert [x.tolist() for x in ends] == [[LIMIT, LIMIT]] * len(ends)
    assert len(ends) >= 2


def test_a_key_of_final_observations_needs_the_right_style() -> None:
    with pytest.raises(AdapterError, match=r"resets at A \(next_step_after_physics\)"):
        IsaacGymEnv(LazyAfter([[3]]), final_obs_key="final_obs")


# ---- legged_gym, rsl_rl, Isaac Lab ------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("critic", [True, False])
@pytest.mark.parametrize("scripts", [SCRIPTS["both"], SCRIPTS["failures"], [[6], [6, 7]]], ids=str)
def test_legged_gym(scripts: list[Script], critic: bool) -> None:
    """Its clock goes further: `max_episode_length` of 5 ends an episode after 6 env steps."""
    env = everstep.wrap(LeggedTask(scripts, 5, critic))
    assert isinstance(env, IsaacGymEnv)
    assert env.reset_style == "C"
    assert env.reset_style == "C"
    first = env.reset()
    assert isinstance(first, TensorDict) is critic
    plain = IsaacGymEnv(
        LeggedTask(scripts, 5, critic), observation_keys=("obs",) if critic else None
    )
    check_rows(plain, "C", scripts)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("longest", [6, torch.full((2,), 6)], ids=["number", "tensor"])
@pytest.mark.parametrize("scripts", [SCRIPTS["both"], SCRIPTS["failures"]], ids=str)
def test_rsl_rl(scripts: list[Script], longest: Any) -> None:
    """It has no reset: a full one is made by letting the clock run out."""
    task = RslEnv(scripts, longest)
    env = IsaacGymEnv(task)
    assert isinstance(env.observation_spec, Composite)
    assert set(env.observation_spec.keys()) == {"policy", "critic"}
    for _ in range(3):
        assert env.reset()["policy"][:, 2].tolist() == [0.0, 0.0]
        env.step(torch.zeros(2, 1))
    check_rows(IsaacGymEnv(RslEnv(scripts, longest, critic=False)), "C", scripts)


def test_rsl_rl_whose_clock_ends_nothing_cannot_be_reset() -> None:
    task = RslEnv([[NEVER]], 6)
    env = IsaacGymEnv(task)
    task.max_episode_length = 3
    task.step = lambda actions: (  # type: ignore[method-assign]
        task.get_observations(),
        torch.zeros(1),
        torch.zeros(1),
        {},
    )
    with pytest.raises(EnvError, match=r"neither `reset` nor `reset_idx`.*Give it a `reset`"):
        env.reset()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("final", [False, True])
def test_isaac_lab(final: bool) -> None:
    scripts = [*SCRIPTS["both"], [LIMIT]]
    env = everstep.wrap(LabEnv(scripts, LONGEST, final))
    actions = some_actions(30, 3)
    first, rows = play(env, actions)
    assert ("final_obs" in env.episode_keys) is final
    for n, script in enumerate(scripts):
        start, moves = first["policy"][n].tolist(), actions[:, n].tolist()
        expected = expected_rows("C", script, start, moves, LIMIT, knows_failures=True)
        for row, want in zip(rows, expected, strict=True):
            assert row["obs", "policy"][n].tolist() == pytest.approx(want.obs)
            assert row["terminated"][n].item() is want.terminated
            assert (row["terminated"] | row["truncated"])[n].item() is want.first
            if final:
                assert row["final_obs", "policy"][n].tolist() == pytest.approx(want.led_to)


def test_one_flag_of_time_outs_for_all_environments_is_spread() -> None:
    task = LabEnv([[NEVER], [NEVER]])
    env = IsaacGymEnv(task)
    inner = task.step
    task.step = (
        lambda actions: (  # type: ignore[method-assign]
            *inner(actions)[:3],
            True,
            {},
        )
    )
    assert env.step(torch.zeros(2, 1))["truncated"].tolist() == [[True], [True]]


# ---- advantages -------------------------------------------------------------------------------

GAMMA, LAMBDA, HORIZON, ROLLOUTS = 0.9, 0.8, 8, 4


class KnownValue(Model):
    """Values that are a fixed function of the observation; a policy of one mind, nearly."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.loc = torch.nn.Parameter(torch.full((1,), 0.3))

    @staticmethod
    def value_of(obs: torch.Tensor) -> torch.Tensor:
        weights = torch.tensor([[0.3], [1.1], [0.7], [0.2]], dtype=obs.dtype)
        return torch.cos(obs @ weights)

    def forward(self, batch: TensorDict, /) -> TensorDict:
        obs = batch["obs"]
        self._value = self.value_of(obs) + 0 * self.loc
        mean = self.loc.expand(len(obs), 1)
        features = {"mean": mean, "log_std": torch.zeros_like(mean)}
        return TensorDict(features, batch_size=[len(obs)])

    def value_function(self) -> torch.Tensor:
        return self._value


def oracle(rows: list[Row], *, final_is_lost: bool) -> list[float]:
    """Advantages by definition: discounted sums of differences to the end of the episode.

    A time-out whose final observation is lost adds nothing, and has no advantage itself.
    """

    def value(obs: list[float]) -> float:
        return float(KnownValue.value_of(torch.tensor([obs])))

    def difference(row: Row) -> None | float:
        if row.led_to is None or (final_is_lost and row.truncated):
            return None
        following = 0.0 if row.terminated else value(row.led_to)
        return row.reward + GAMMA * following - value(row.seen)

    found = []
    for i, row in enumerate(rows):
        ends = (k for k, later in enumerate(rows) if k >= i and later.terminated | later.truncated)
        episode = rows[i : next(ends, len(rows)) + 1]
        weights = [(GAMMA * LAMBDA) ** k for k in range(len(episode))]
        total = sum(w * (difference(x) or 0.0) for w, x in zip(weights, episode, strict=True))
        found.append(math.nan if difference(row) is None else total)
    return found


@pytest.mark.few(7)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("scripts", SCRIPTS.values(), ids=SCRIPTS.keys())
@pytest.mark.parametrize("style", STYLES)
def test_advantages_equal_the_oracle(style: str, scripts: list[Script]) -> None:
    options: dict[str, Any] = {"terminate": False} if style == "D" else {}
    env = IsaacGymEnv(TASKS[style](scripts, LONGEST, report="stale", **options), HORIZON)
    algorithm = AlgorithmConfig(
        model_cls=KnownValue,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        normalize_advantages=False,
        normalize_observations=False,
        normalize_rewards=False,
        optimizer_config={"lr": 0.0},
    ).build(env)
    rollout, streams = algorithm.rollout, [[] for _ in scripts]
    starts: list[list[float]] = []
    for i in range(ROLLOUTS):
        algorithm.collect()
        algorithm.step()
        starts = starts or rollout.obs[0][0].tolist()
        for n, script in enumerate(scripts):
            streams[n] += rollout.actions[0][:-1, n, 0].tolist()
            rows = expected_rows(style, script, starts[n], streams[n], LIMIT)[i * HORIZON :]
            assert rollout.valid[:, n, 0].tolist() == [row.valid for row in rows]
            expected = torch.tensor(oracle(rows, final_is_lost=style == "C"))
            learned = ~expected.isnan()
            known = (rollout.known & rollout.valid)[:, n, 0]
            assert torch.equal(known, learned)
            found = algorithm.buffer["advantages"][n, :-1, 0]
            torch.testing.assert_close(found[learned], expected[learned], rtol=0, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_final_observations_in_the_extras_are_bootstrapped_from() -> None:
    task = AtOnce(SCRIPTS["time-outs"], LONGEST)
    task.final_key = "final_obs"
    algorithm = AlgorithmConfig(model_cls=KnownValue, horizon=16).build(IsaacGymEnv(task))
    algorithm.collect()
    assert bool(algorithm.rollout.final.any())
    assert bool(algorithm.rollout.known.all())


class Logging(LabEnv):
    """Reports the mean length of the episodes that end, which stays there until others do."""

    def step(self, actions: torch.Tensor) -> Any:
        lengths = self.episode_length_buf + 1
        returned = super().step(actions)
        done = returned[2] | returned[3]
        if bool(done.any()):
            mean = lengths[done].float().mean()
            self.extras["log"] = {"Episode/length": mean, "count": int(done.sum()), "text": "no"}
        return returned


def test_logs_of_a_task_are_means_over_the_episodes_that_ended() -> None:
    env = IsaacGymEnv(Logging(SCRIPTS["both"]))
    algorithm = AlgorithmConfig(horizon=16, horizons_per_env_reset=-1).build(env)
    algorithm.collect()
    for _ in range(2):
        stats: dict[str, Any] = {**algorithm.collect()}
        assert stats["episodes/count"] > 1
        assert stats["env/Episode/length"] == pytest.approx(stats["episodes/length_mean"])
        assert "env/text" not in stats


def test_logs_of_a_task_can_be_switched_off() -> None:
    env = IsaacGymEnv(Logging(SCRIPTS["both"]), metrics=["count"])
    stats = AlgorithmConfig(horizon=16).build(env).collect()
    assert {key for key in stats if key.startswith("env/")} == {
        *("env/steps", "env/resets", "env/count"),
    }
