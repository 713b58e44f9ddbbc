"""Numbers that the integers of their spec cannot hold are refused: a cast would wrap them."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

import everstep
from everstep import AlgorithmConfig, Env
from everstep.env.formats import check_held
from everstep.errors import AdapterError, EnvError
from everstep_adapters.export.specs import export_spec

WRAPS = r"300 of dtype int64, which the int8 of its spec cannot hold: .* from -128 to 127"


@pytest.mark.parametrize("seed", range(40))
def test_what_is_accepted_is_unchanged_by_the_cast(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["bool", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))]
    source, target = (np.dtype(str(rng.choice(names))) for _ in range(2))
    limits = (0, 1) if source.kind == "b" else (np.iinfo(source).min, np.iinfo(source).max)
    scale = min(limits[1], int(rng.choice([1, 100, 200, 40_000, 2**33])))
    values = rng.integers(max(limits[0], -scale), scale + 1, 5, dtype=np.int64).astype(source)
    kept = all(int(x) == int(y) for x, y in zip(values, values.astype(target), strict=True))
    try:
        check_held(values, target, "x")
        accepted = True
    except EnvError:
        accepted = False
    assert accepted == kept


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf, -1e30])
def test_fractions_are_no_integers(value: float) -> None:
    with pytest.raises(EnvError, match="cannot hold"):
        check_held(np.array([1.0, value], np.float32), np.dtype(np.int64), "x")
    check_held(np.array([1.0, 2.0], np.float32), np.dtype(np.int64), "x")


class Counting(EnvBase):
    """Returns its count, in a wider dtype than its spec says."""

    def __init__(self, dtype: Any = torch.int64, high: int = 100) -> None:
        super().__init__(batch_size=[2])
        self.dtype_, self.count = dtype, 299
        spec = Bounded(0, high, (2, 1), dtype=torch.int8) if high else Unbounded(
            (2, 1), dtype=torch.int8
        )  # fmt: skip
        self.observation_spec = Composite(pixels=spec, shape=(2,))
        self.action_spec = Categorical(2, shape=(2, 1))
        self.reward_spec = Unbounded((2, 1))

    def _reset(self, tensordict: Any = None, **_: Any) -> Any:
        return TensorDict({"pixels": torch.ones(2, 1, dtype=self.dtype_)}, [2])

    def _step(self, tensordict: Any) -> Any:
        self.count += 1
        done = torch.zeros(2, 1, dtype=torch.bool)
        count = torch.full((2, 1), self.count, dtype=self.dtype_)
        row = {"pixels": count, "reward": torch.zeros(2, 1), "done": done, "terminated": done}
        return TensorDict(row, [2])

    def _set_seed(self, seed: Any) -> None:
        pass


@pytest.mark.parametrize("high", [100, 0])
def test_torchrl(high: int) -> None:
    env = everstep.wrap(Counting(high=high))
    assert env.reset().dtype is torch.int8
    with pytest.raises(EnvError, match=f"`pixels` has the value {WRAPS}"):
        env.step(torch.zeros(2, 1, dtype=torch.int64))


def test_torchrl_in_floating_point() -> None:
    env: Any = everstep.wrap(Counting(torch.float32))
    env.env.count = 11.5
    env.reset()
    with pytest.raises(EnvError, match=r"12\.5 of dtype float32, which the int8"):
        env.step(torch.zeros(2, 1, dtype=torch.int64))


def test_a_wider_dtype_with_numbers_that_fit_is_read() -> None:
    env: Any = everstep.wrap(Counting())
    env.reset()
    env.env.count = 41
    row = env.step(torch.zeros(2, 1, dtype=torch.int64))
    assert row["obs"].tolist() == [[42], [42]]


class Native(Env):
    """Everstep's own protocol: the dtype itself is refused."""

    def __init__(self, at_reset: bool = False) -> None:
        super().__init__(2, 4)
        self.observation_spec = Bounded(-128, 127, 1, dtype=torch.int8)
        self.action_spec, self.at_reset = Categorical(2, shape=torch.Size([1])), at_reset

    def reset(self, *, config: Any = None) -> torch.Tensor:
        return torch.zeros(2, 1, dtype=torch.int64 if self.at_reset else torch.int8)

    def step(self, action: Any) -> TensorDict:
        return TensorDict({"obs": torch.full((2, 1), 300), "rewards": torch.zeros(2, 1)}, [2])


@pytest.mark.parametrize("at_reset", [False, True])
def test_the_protocol(at_reset: bool) -> None:
    algorithm = AlgorithmConfig(model_config={"hiddens": (4,)}).build(Native(at_reset))
    with pytest.raises(EnvError, match=r"`obs` with dtype torch.int64; expected torch.int8"):
        algorithm.collect()


def test_predictions() -> None:
    algorithm = AlgorithmConfig(model_config={"hiddens": (4,)}).build(Native())
    for value in (np.array([[300]]), torch.tensor([[300]])):
        with pytest.raises(ValueError, match=f"`obs` has the value {WRAPS}"):
            algorithm.policy.predict(value)
    algorithm.policy.predict(np.array([[127]]))


def test_exports() -> None:
    spec = Bounded(-128, 127, 1, dtype=torch.int8)
    exported: Any = export_spec("action", spec, 2, is_action=True)
    with pytest.raises(AdapterError, match=f"`action` has the value {WRAPS}"):
        exported.to_torch(np.array([[1], [300]]), torch.device("cpu"))
    with pytest.raises(EnvError, match=f"`action` has the value {WRAPS}"):
        exported.to_numpy(torch.tensor([[1], [300]]), copy=True)


def test_dm_control() -> None:
    dm_env = pytest.importorskip("dm_env")

    class Wide(dm_env.Environment):  # type: ignore[misc]
        value = 300

        def reset(self) -> Any:
            return dm_env.restart({"count": np.ones(1, np.int64)})

        def step(self, action: Any) -> Any:
            return dm_env.transition(0.0, {"count": np.full(1, self.value)})

        def observation_spec(self) -> Any:
            return {"count": dm_env.specs.Array((1,), np.int8)}

        def action_spec(self) -> Any:
            return dm_env.specs.DiscreteArray(2)

    def stepped(value: int) -> Any:
        one = Wide()
        one.value = value
        env = everstep.wrap([one])
        env.reset()
        return env.step(torch.zeros(1, 1, dtype=torch.int64))

    assert stepped(127)["obs", "count"].tolist() == [[127]]
    with pytest.raises(EnvError, match=rf"obs\['count'\]` has the value {WRAPS}"):
        stepped(300)


def test_pettingzoo() -> None:
    pytest.importorskip("pettingzoo")
    from tests.everstep_adapters.pettingzoo.pettingzoo_toys import Team

    class Wide(Team):
        value = 300

        def observation_space(self, agent: str) -> Any:
            return spaces.Dict({"count": spaces.Box(-128, 127, (1,), np.int8)})

        def seen(self, agent: str) -> Any:
            return {"count": np.full(1, self.value if self.t else 1)}

    def stepped(value: int) -> Any:
        team = Wide({"a_0": (3, "terminated"), "a_1": (3, "terminated")})
        team.value = value
        env = everstep.wrap(team)
        env.reset()
        return env.step(torch.zeros(2, 1, dtype=torch.int64))

    assert stepped(127)["obs", "count"].flatten().tolist() == [127, 127]
    with pytest.raises(
        EnvError, match=r"'count'\]` must hold numbers of int8, .*; got 300 \(int64"
    ):
        stepped(300)
