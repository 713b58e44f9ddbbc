"""Environments that are functions in JAX: every row, resets, states, and refusals."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everstep
from everstep import AlgorithmConfig
from everstep.errors import AdapterError, CheckpointError, EnvError
from everstep.testing import EnvConformance
from tests.toys import KnownValue

jax = pytest.importorskip("jax")

from everstep_adapters.jax import program  # noqa: E402
from everstep_adapters.jax.source import Functions, Reals  # noqa: E402
from tests.everstep_adapters.jax.jax_toys import (  # noqa: E402
    ClockEnv,
    ClockParams,
    CountedApart,
    CountedInStep,
    Counter,
    CounterEnv,
    Row,
    reset,
    rows_of,
    step,
)

STEPS = 40


def counters(num_envs: int = 5, limit: None | int = None, seed: int = 0) -> CounterEnv:
    env = CounterEnv(Counter(), num_envs=num_envs, max_episode_steps=limit)
    env.seed(seed)
    return env


def play(env: Any, steps: int = STEPS) -> tuple[Any, torch.Tensor, list[Any]]:
    """First observations, actions, and copies of the rows."""
    obs = env.reset().clone()
    size = torch.Size([env.num_envs])
    actions = torch.stack([env.action_spec.rand(size) for _ in range(steps)])
    return obs, actions, [env.step(action).clone() for action in actions]


# ---- the law: rows are those of functions called by hand --------------------


@pytest.fixture(params=["all rows", "some at a time"])
def resets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How rows are reset: all, of which those that ended are taken, or these alone."""
    monkeypatch.setattr(program, "_CHEAP", 2**40 if request.param == "all rows" else 0)


@pytest.mark.usefixtures("resets")
@pytest.mark.parametrize("num_envs", [1, 5, 70])
@pytest.mark.parametrize("limit", [None, 3])
def test_rows_are_those_of_episodes_worked_out_by_hand(num_envs: int, limit: None | int) -> None:
    env = counters(num_envs, limit)
    assert env.max_episode_steps == limit
    obs, actions, rows = play(env)
    ends = 0
    for n in range(num_envs):
        # Which episode follows is random; all else follows from its first observation.
        firsts = [row["obs"][n].tolist() for row in rows if row["first"][n].item()]
        chosen = actions[:, n, 0].tolist()
        want = rows_of(obs[n].tolist(), firsts, chosen, limit or math.inf)
        found = [Row(*(row[key][n].squeeze().tolist() for key in Row._fields)) for row in rows]
        assert found == want
        ends += len(firsts)
    assert ends > num_envs


@pytest.mark.usefixtures("resets")
def test_keys_are_those_of_functions_called_one_by_one() -> None:
    """Without `vmap`, without `jit`, one row after the other."""
    env = counters(3, seed=7)
    obs, actions, rows = play(env, 12)
    key, following = jax.random.split(jax.random.PRNGKey(7))
    states = []
    for n, one in enumerate(jax.random.split(key, 3)):
        state, seen = reset(one)
        states.append(state)
        assert obs[n].tolist() == seen.tolist()
    for row, action in zip(rows, actions, strict=True):
        following, stepping, resetting = jax.random.split(following, 3)
        for n, one in enumerate(jax.random.split(stepping, 3)):
            stepped = step(one, states[n], int(action[n]))
            states[n] = stepped.state
            assert row["final_obs"][n].tolist() == stepped.obs.tolist()
            assert row["rewards"][n].item() == float(stepped.reward)
            if stepped.ended:
                states[n], seen = reset(jax.random.fold_in(resetting, n))
                assert row["obs"][n].tolist() == seen.tolist()


@pytest.mark.usefixtures("resets")
@pytest.mark.parametrize("seed", range(3))
def test_rows_that_are_reset_between_steps_begin_episodes_and_others_go_on(seed: int) -> None:
    limit, env = 4, counters(6, 4, seed=seed)
    draws = torch.Generator().manual_seed(seed)
    obs = env.reset().clone()
    before = obs
    for _ in range(12):
        mask = torch.rand(6, 1, generator=draws) < 0.4
        new = env.reset_rows(mask).clone()
        assert (new[mask[:, 0], 2] == 0).all()  # the env step of an episode
        now = torch.where(mask, new, before)
        action = torch.randint(2, (6, 1), generator=draws)
        row = env.step(action).clone()
        for n in range(6):
            firsts = [row["obs"][n].tolist()] if row["first"][n].item() else []
            start = now[n].tolist()
            length, elapsed = int(start[1]) // 4, start[2]
            (want,) = rows_of(start, firsts, [int(action[n])], min(limit, length))
            assert row["rewards"][n].item() == want.rewards
            assert row["final_obs"][n].tolist() == [*start[:2], elapsed + 1]
            assert row["first"][n].item() == (elapsed + 1 >= min(limit, length))
        before = row["obs"].clone()


def test_nothing_is_reset_before_all_rows_are() -> None:
    with pytest.raises(EnvError, match="was not reset"):
        counters(3).reset_rows(torch.ones(3, 1, dtype=torch.bool))


def test_resets_of_training_are_staggered() -> None:
    env = ClockEnv(CountedInStep(), num_envs=4, params=ClockParams(99), max_episode_steps=20)
    algorithm = AlgorithmConfig(horizon=5, num_sgd_iters=1, seed=0).build(env)
    env._actions.send = lambda action: np.zeros(4, np.int32)  # no episode ends but by its clock
    found = []
    for _ in range(6):
        found.append(algorithm.collect()["env/resets"])
        algorithm.step()
    assert found == [4, 1, 1, 1, 0, 0]
    assert sorted(algorithm.rollout.obs[0][0, :, 0].tolist()) == [0, 5, 10, 15]


@pytest.mark.parametrize("style", [CountedInStep, CountedApart])
def test_clocks_of_gymnax_truncate_however_they_are_asked(style: Any) -> None:
    """Row 0 is ended by the clock, row 1 by the task, row 2 by both at once."""
    env = ClockEnv(style(), num_envs=3)
    assert "5 env steps, its `max_steps_in_episode`" in env.describe()["limit"]
    env.reset()
    rows = []
    for t in range(1, 11):
        action = torch.tensor([[0], [t % 5 == 3], [t % 5 == 0]], dtype=torch.int64)
        rows.append(env.step(action).clone())
    flags = {
        key: torch.cat([row[key] for row in rows], dim=1).int().tolist()
        for key in ("terminated", "truncated", "first")
    }
    never, at_5 = [0] * 10, [0, 0, 0, 0, 1] * 2
    at_3 = [0, 0, 1, 0, 0, 0, 0, 1, 0, 0]
    assert flags["terminated"] == [never, at_3, at_5]
    assert flags["truncated"] == [at_5, never, never]
    assert flags["first"] == [at_5, at_3, at_5]
    final, obs = (torch.cat([row[key] for row in rows], 1).tolist() for key in ("final_obs", "obs"))
    assert final[0] == final[2] == [1, 2, 3, 4, 5] * 2
    assert obs[0] == obs[2] == [1, 2, 3, 4, 0] * 2
    assert final[1] == [1, 2, 3, 1, 2, 3, 4, 5, 1, 2]


@pytest.mark.parametrize("half", [False, True])
def test_leaves_of_every_size_and_dtype(half: bool) -> None:
    """With `bfloat16`, which NumPy has not, results are the program's own memory, as on a GPU."""
    jnp = jax.numpy

    def spread(seen: Any) -> Any:
        return {
            "image": jnp.full((150, 100), seen[2], jnp.uint8),  # too large to be joined
            "numbers": {"one": seen[0], "place": seen[1:].astype(jnp.int32)},
            "small": seen.astype(jnp.bfloat16 if half else jnp.float16),
            "unsigned": seen.astype(jnp.uint16),
        }

    class Spread(CounterEnv):
        @classmethod
        def _read(cls, env: Any, params: Any) -> Functions:
            def of_reset(key: Any) -> Any:
                state, seen = reset(key)
                return state, spread(seen)

            def of_step(*args: Any) -> Any:
                stepped = step(*args)
                return stepped._replace(obs=spread(stepped.obs))

            return replace(super()._read(env, params), reset=of_reset, step=of_step)

    env = Spread(Counter(), num_envs=5)
    env.seed(3)
    first, actions, rows = play(env, 12)
    plain = counters(5, seed=3)
    start = plain.reset()
    wants = [plain.step(action).clone() for action in actions]
    pairs = [(first, start)]
    for row, want in zip(rows, wants, strict=True):
        pairs += [(row[key], want[key]) for key in ("obs", "final_obs")]
        for key in ("rewards", "terminated", "truncated", "first"):
            assert torch.equal(row[key], want[key])
    for seen, want in pairs:
        image = want[:, 2, None, None].expand(5, 150, 100)
        assert torch.equal(seen["image"], image.to(torch.uint8))
        assert torch.equal(seen["numbers", "one"], want[:, :1])
        assert torch.equal(seen["numbers", "place"], want[:, 1:].int())
        assert torch.equal(seen["small"], want.to(torch.bfloat16 if half else torch.float16))
        assert torch.equal(seen["unsigned"], want.int())


class RealCounterEnv(CounterEnv):
    """Counters whose action is a real number between -2 and 4."""

    @classmethod
    def _read(cls, env: Any, params: Any) -> Functions:
        bounds = np.array(-2.0), np.array(4.0)
        return replace(super()._read(env, params), action=Reals(*bounds, jax.numpy.float32))


@pytest.mark.parametrize("bounds", ["clip", "rescale"])
def test_real_actions_are_clipped_or_rescaled(bounds: Any) -> None:
    env = RealCounterEnv(Counter(), num_envs=3, action_bounds=bounds)
    env.seed(0)
    obs = env.reset().clone()
    action = torch.tensor([[-5.0], [0.5], [1.0]])
    sent = action if bounds == "clip" else 3 * action + 1
    row = env.step(action)
    assert torch.equal(row["rewards"], obs[:, :1] + 0.5 * sent.clamp(-2, 4))
    assert action.tolist() == [[-5.0], [0.5], [1.0]]


HORIZON, GAMMA, LAMBDA = 6, 0.9, 0.8


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("limit", [None, 3])
def test_advantages_equal_the_oracle(limit: None | int) -> None:
    wide = jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()
    with wide:
        check_advantages(limit)


def check_advantages(limit: None | int) -> None:
    env = counters(4, limit)
    env.horizon = HORIZON
    options: dict[str, Any] = {"normalize_advantages": False, "normalize_rewards": False}
    options["horizons_per_env_reset"] = -1
    config = AlgorithmConfig(model_cls=KnownValue, gamma=GAMMA, gae_lambda=LAMBDA, **options)
    algorithm = config.build(env)
    value = lambda obs: float(KnownValue.value_of(torch.tensor([obs], dtype=torch.float64)))  # noqa: E731
    for _ in range(5):
        algorithm.collect()
        algorithm.estimate()
        buffer = algorithm.buffer
        for n in range(4):
            obs = buffer["obs"][n].tolist()
            choices = buffer["actions"][n, :-1, 0].tolist()
            # An episode is new where the count of env steps is 0.
            firsts = [seen for seen in obs[1:] if seen[2] == 0]
            rows = rows_of(obs[0], firsts, choices, limit or math.inf)
            assert [row.obs for row in rows] == obs[1:]
            expected = []
            for t in range(HORIZON):
                total, weight = 0.0, 1.0
                for k in range(t, HORIZON):  # the definition, to the end of the episode
                    row = rows[k]
                    following = 0.0 if row.terminated else value(row.final_obs)
                    total += weight * (row.rewards + GAMMA * following - value(obs[k]))
                    weight *= GAMMA * LAMBDA
                    if row.first:
                        break
                expected.append(total)
            found = buffer["advantages"][n, :-1, 0]
            want = torch.tensor(expected, dtype=torch.float64)
            torch.testing.assert_close(found, want, rtol=0, atol=1e-12)


# ---- state --------------------


def test_a_state_that_was_saved_continues_exactly(tmp_path: Path) -> None:
    env = counters(5, 4)
    play(env, 9)
    torch.save(env.state_dict(), tmp_path / "state.pt")
    actions = [torch.randint(2, (5, 1)) for _ in range(20)]
    want = [env.step(action).clone() for action in actions]
    other = counters(5, 4, seed=99)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for action, row in zip(actions, want, strict=True):
        found = other.step(action)
        assert all(torch.equal(found[key], row[key]) for key in row.keys())  # noqa: SIM118
    other.load_state_dict(counters(5, 4, seed=3).state_dict())  # of one that was not reset
    assert torch.equal(other.reset(), counters(5, 4, seed=3).reset())


def test_a_state_of_another_environment_changes_nothing() -> None:
    env = counters(5)
    env.reset()
    before = env.state_dict()["carry"]
    other = counters(4)
    other.reset()
    with pytest.raises(CheckpointError, match=r"not one of this Counter.*`num_envs`"):
        env.load_state_dict(other.state_dict())
    assert all(map(torch.equal, env.state_dict()["carry"], before))


def test_seeds_fix_the_stream_and_later_resets_draw_new_states() -> None:
    one, other = counters(seed=3), counters(seed=3)
    assert torch.equal(one.reset(), other.reset())
    assert not torch.equal(one.reset(), counters(seed=3).reset())
    unseeded = CounterEnv(Counter(), num_envs=5)
    again = CounterEnv(Counter(), num_envs=5)
    assert not torch.equal(unseeded.reset(), again.reset())


def test_what_is_returned_may_be_written_to() -> None:
    one, other = counters(), counters()
    one.reset().fill_(-1.0)
    other.reset()
    action = torch.zeros(5, 1, dtype=torch.int64)
    for _ in range(8):
        row, want = one.step(action), other.step(action)
        assert torch.equal(row["obs"], want["obs"])
        row["obs"].fill_(-1.0)
        row["final_obs"].fill_(-1.0)


def test_an_env_step_is_compiled_once() -> None:
    env = counters()
    play(env)
    play(env)
    assert env._program.advance._cache_size() == 1


# ---- refusals --------------------


def test_refusals() -> None:
    with pytest.raises(AdapterError, match=r"everstep.wrap\(env, num_envs=64\)"):
        CounterEnv(Counter())
    with pytest.raises(AdapterError, match="must be an environment of counters; got int"):
        CounterEnv(3, num_envs=2)
    with pytest.raises(AdapterError, match="`max_episode_steps` of CounterEnv: expected int > 0"):
        CounterEnv(Counter(), num_envs=2, max_episode_steps=0)
    env = counters()
    with pytest.raises(EnvError, match="Counter was not reset"):
        env.step(torch.zeros(5, 1, dtype=torch.int64))
    with pytest.raises(AdapterError, match="take no options in a reset; got wind"):
        env.reset(config={"wind": 3})
    env.reset()
    with pytest.raises(AdapterError, match="must have shape"):
        env.step(torch.zeros(4, 1, dtype=torch.int64))
    env.close()
    with pytest.raises(EnvError, match="Counter was closed"):
        env.reset()


def test_an_environment_that_fails_is_named() -> None:
    class Broken(CounterEnv):
        @classmethod
        def _read(cls, env: Any, params: Any) -> Any:
            def fail(*_: Any) -> Any:
                raise ValueError("the pole broke")

            return replace(super()._read(env, params), step=fail)

    env = Broken(Counter(), num_envs=2)
    env.reset()
    with pytest.raises(EnvError, match=r"Counter failed in `step`: ValueError: the pole broke"):
        env.step(torch.zeros(2, 1, dtype=torch.int64))


@pytest.mark.slow
class TestCountersConform(EnvConformance):
    episodes_end = True

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Any:
        return CounterEnv(Counter(), horizon, num_envs=num_envs, device=device)


def test_everything_is_described() -> None:
    found = counters(5, 9).describe()
    assert found["resets"] == "in the env step that ends an episode, in the same compiled call"
    assert "9 env steps, counted by the adapter" in found["limit"]
    assert everstep.wrap(counters()) is not None


@pytest.mark.parametrize(
    ("centre", "width", "warns"),
    [(5_400_000, 0.2, True), (5_400_000, 200.0, False), (5_400_000, 0.0, False), (0, 1e-9, False)],
)
@pytest.mark.parametrize("half", [False, True])
def test_differences_that_float32_does_not_have_are_named_once(
    centre: float, width: float, warns: bool, half: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With `bfloat16`, results are the program's own memory, as on a GPU."""
    jnp = jax.numpy

    def spread(key: Any, seen: Any) -> Any:
        noise = jax.random.uniform(key, (), jnp.float64, -width, width)
        other = seen.astype(jnp.bfloat16 if half else jnp.float32)
        return {"other": other, "place": jnp.stack([noise, centre + noise])}

    class Far(CounterEnv):
        @classmethod
        def _read(cls, env: Any, params: Any) -> Functions:
            def of_reset(key: Any) -> Any:
                state, seen = reset(key)
                return state, spread(key, seen)

            def of_step(key: Any, state: Any, action: Any) -> Any:
                stepped = step(key, state, action)
                return stepped._replace(obs=spread(key, stepped.obs))

            return replace(super()._read(env, params), reset=of_reset, step=of_step)

    wide = jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()
    with wide:
        env = Far(Counter(), num_envs=3)
        env.seed(0)
        play(env, 100)
        play(env, 100)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == warns
    assert all("`obs['place']` are lost: element 1 of its numbers were between" in x for x in texts)


def odd(**changes: Any) -> CounterEnv:
    """Counters whose env step returns something else in place of these parts."""

    class Odd(CounterEnv):
        @classmethod
        def _read(cls, env: Any, params: Any) -> Functions:
            functions = CounterEnv._read(env, params)

            def other(key: Any, state: Any, action: Any) -> Any:
                stepped = functions.step(key, state, action)
                new = {name: change(getattr(stepped, name)) for name, change in changes.items()}
                return stepped._replace(**new)

            return replace(functions, step=other)

    return Odd(Counter(), num_envs=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": lambda x: jax.numpy.stack([x, x])}, r"`reward` must be one number; .* \[2\]"),
        ({"terminated": lambda x: x[None].repeat(3)}, r"`terminated` must be one number; .* \[3\]"),
        ({"ended": lambda x: x[None].repeat(0)}, r"`ended` must be one number; .* \[0\]"),
        (
            {"state": lambda x: x._replace(t=x.t + 0.5)},
            r"`state.t` is int32 \[\] in .* float32 \[\]",
        ),
        (
            {"state": lambda x: x._replace(t=x.t[None])},
            r"`state.t` is int32 \[\] in .* int32 \[1\]",
        ),
        ({"state": lambda x: x._asdict()}, "`state` of an env step has other entries"),
        ({"obs": lambda x: x[:2]}, r"`obs` is float32 \[3\] in a reset and float32 \[2\] in an"),
        ({"obs": lambda x: x + 1j}, r"`obs` is float32 \[3\] in a reset and complex64 \[3\]"),
        ({"obs": lambda x: {"x": x}}, "`obs` of an env step has other entries"),
    ],
)
def test_an_env_step_returns_what_a_reset_does(changes: dict[str, Any], message: str) -> None:
    """Numbers were cast to the dtype of the reset, and rewards were those of other rows."""
    env = odd(**changes)
    env.reset()
    with pytest.raises(EnvError, match=message):
        env.step(torch.zeros(3, 1, dtype=torch.int64))


def test_numbers_that_keep_their_values_may_have_another_dtype() -> None:
    changes: Any = {
        "obs": lambda x: x.astype(np.float16),
        "reward": lambda x: x[None],
        "state": lambda x: x._replace(t=x.t.astype(np.int16)),
    }
    for env in (odd(), odd(**changes)):
        env.seed(1)
        _, _, rows = play(env, 8)
        assert [row["obs"].dtype for row in rows] == [torch.float32] * 8
        assert torch.stack([row["rewards"] for row in rows]).sum() > 0
