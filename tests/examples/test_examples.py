"""The worlds in `examples/`: their physics, their files and their pictures."""

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode

from everstep import TrainConfig
from everstep.env import Env

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

WORLDS = (
    "cartpole.CartPole",
    "mountain_car.MountainCar",
    "pendulum.Pendulum",
    "algotrading.AlgoTrading",
)
FILES = (
    "cartpole/train.yaml",
    "mountain_car/train.yaml",
    "pendulum/train.yaml",
    "algotrading/views.yaml",
    "algotrading/lstm.yaml",
    "algotrading/transformer.yaml",
)

HOLD, BUY, SELL = 0, 1, 2


@pytest.fixture(autouse=True)
def _imports_as_from_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def world(name: str, num_envs: int, **config: Any) -> Any:
    """A world that was reset."""
    module, cls = name.split(".")
    env: Env = getattr(importlib.import_module(f"examples.{module}"), cls)(num_envs)
    env.reset(config=config)
    return env


def column(*values: float) -> torch.Tensor:
    """One value an environment."""
    return torch.tensor(values).unsqueeze(-1)


def close(found: torch.Tensor, expected: Any, atol: float = 1e-7) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected), rtol=1e-5, atol=atol)


def step(env: Any, *actions: float) -> tuple[Any, list[float]]:
    """Observations and rewards."""
    outcome = env.step(column(*actions))
    return outcome["obs"], outcome["rewards"].flatten().tolist()


# ---- what every world keeps to ----------------------------------------------------------------


class OnTheDevice(TorchDispatchMode):
    """Forbids what makes a CPU wait for another device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._schema.name not in ("aten::_local_scalar_dense", "aten::nonzero"), func
        return func(*args, **(kwargs or {}))


def addresses(env: Env) -> dict[str, int]:
    found = {k: v.data_ptr() for k, v in vars(env).items() if isinstance(v, torch.Tensor)}
    for value in vars(env).values():
        if isinstance(value, TensorDict):
            found |= {k: v.data_ptr() for k, v in value.items()}
    return found


@pytest.mark.parametrize("name", WORLDS)
def test_everything_stays_finite_and_as_the_specs_say(name: str) -> None:
    env = world(name, 64)
    spec = env.observation_spec.expand(64, *env.observation_spec.shape)
    before = addresses(env)
    assert spec.is_in(env.reset())
    for t in range(env.max_horizon):
        action = env.action_spec.rand([64])
        if action.is_floating_point():
            action = 10.0 ** (t % 8) * action  # samples of an unbounded policy
        with OnTheDevice():
            outcome = env.step(action)
        assert set(outcome.keys()) == {"obs", "rewards"}
        assert spec.is_in(outcome["obs"])
        assert outcome["rewards"].shape == (64, 1)
        assert outcome["rewards"].dtype == torch.float32
        leaves = outcome.flatten_keys().values()
        assert all(bool(leaf.isfinite().all()) for leaf in leaves)
    assert addresses(env) == before


@pytest.mark.parametrize("name", WORLDS)
def test_an_unknown_option_of_a_reset_is_an_error(name: str) -> None:
    with pytest.raises(TypeError, match="moon"):
        world(name, 2, moon=1.0)


# ---- cart-pole --------------------------------------------------------------------------------


def test_cartpole_mirrored_is_mirrored() -> None:
    env = world("cartpole.CartPole", 2)
    state = torch.tensor([0.3, -0.2, 0.5, 1.0])
    env.state.copy_(torch.stack([state, -state]))
    for right, left in ((2, 0), (1, 1), (0, 2), (2, 0)):
        _, rewards = step(env, right, left)
        close(env.state[0], -env.state[1])
        assert rewards[0] == pytest.approx(rewards[1])


@pytest.mark.parametrize("semi_implicit", [False, True])
def test_cartpole_is_pushed_from_rest(semi_implicit: bool) -> None:
    """Thrust 5 / 1.1; the pole turns by thrust / (0.5 · (4/3 − 0.1/1.1)) the other way."""
    env = world("cartpole.CartPole", 1, semi_implicit=semi_implicit)
    env.state.zero_()
    obs, [reward] = step(env, 2)
    turning = -(5 / 1.1) / (0.5 * (4 / 3 - 0.1 / 1.1))
    velocity, rate = 0.02 * (5 / 1.1 - 0.05 * turning / 1.1), 0.02 * turning
    moved = 0.02 if semi_implicit else 0.0  # times the new velocities
    angle = moved * rate
    expected = [moved * velocity, velocity, math.cos(angle), math.sin(angle), rate]
    close(obs[0], expected)
    upright = (0, 0, 1, 0, 0)
    assert reward == pytest.approx(
        -sum(abs(x - y) for x, y in zip(expected, upright, strict=True)), rel=1e-5
    )


CARTS = [[0.1, 0.3, 0.2, -0.5], [-0.2, 0.4, -2.5, 1.5]]

HEAVY = {
    "semi_implicit": True,
    "force": 3.0,
    "length": 0.7,
    "cart_mass": 2.0,
    "pole_mass": 0.3,
    "gravity": 9.0,
    "time_step": 0.05,
}


@pytest.mark.parametrize(
    ("config", "last_obs", "rewards"),
    [
        (
            {},
            [
                [0.11589276, 0.29210475, 0.98445737, 0.17562363, -0.32090071],
                [-0.17267643, 0.37661475, -0.74856955, -0.66305625, 0.92938882],
            ],
            [[-0.80739617, -4.51285887], [-0.98310727, -4.30680466], [-0.92006445, -3.89030600]],
        ),
        (
            HEAVY,
            [
                [0.13875878, 0.27418411, 0.98741990, 0.15812007, -0.20784360],
                [-0.14144939, 0.31789249, -0.71448708, -0.69964862, 0.50864136],
            ],
            [[-0.84861034, -4.27422142], [-0.88735235, -3.89465380], [-0.79148662, -3.38211894]],
        ),
    ],
    ids=["as it is", "heavy"],
)
def test_cartpole_moves_as_in_rl8(config: Any, last_obs: Any, rewards: Any) -> None:
    env = world("cartpole.CartPole", 2, **config)
    env.state.copy_(torch.tensor(CARTS))
    for actions, expected in zip(([0, 2], [2, 1], [1, 0]), rewards, strict=True):
        obs, found = step(env, *actions)
        assert found == pytest.approx(expected, rel=1e-5)
    close(obs, last_obs, atol=1e-6)


# ---- mountain car -----------------------------------------------------------------------------


def test_mountain_car_rolls_in_its_valley() -> None:
    """From rest at −0.5: velocity 0.001 − 0.0025·cos(1.5), and so far it moves."""
    env = world("mountain_car.MountainCar", 1)
    env.state.copy_(torch.tensor([[-0.5, 0.0]]))
    obs, [reward] = step(env, 2)
    velocity = 0.001 - 0.0025 * math.cos(1.5)
    close(obs[0], [-0.5 + velocity, velocity])
    assert reward == pytest.approx(-(1.0 - velocity))


def test_mountain_car_is_too_weak_for_its_hill() -> None:
    env = world("mountain_car.MountainCar", 1)
    env.state.copy_(torch.tensor([[-math.pi / 6, 0.0]]))  # the bottom
    found = [step(env, 2)[1][0] for _ in range(300)]
    assert max(found) < -0.5


def test_mountain_car_stops_at_the_wall_and_is_paid_at_the_goal() -> None:
    env = world("mountain_car.MountainCar", 3)
    env.state.copy_(torch.tensor([[-1.19, -0.06], [0.49, 0.05], [0.59, -0.02]]))
    obs, rewards = step(env, 0, 2, 0)
    close(obs[0], [-1.2, 0.0])
    assert rewards[1] == 1.0
    assert obs[2, 0] > 0.5  # at the goal, but rolling back
    assert rewards[2] == pytest.approx(0.5 - float(obs[2, 0]), abs=1e-6)


def test_mountain_car_moves_as_in_rl8() -> None:
    env = world("mountain_car.MountainCar", 4)
    env.state.copy_(torch.tensor([[-0.5, 0.01], [-1.19, -0.06], [0.48, 0.05], [0.59, -0.2]]))
    for actions, expected in (
        ([0, 0, 2, 1], [-0.99117684, -1.70000005, 1.0, -0.01999998]),
        ([2, 1, 2, 2], [-0.98159647, -1.69775820, 1.0, -0.04902703]),
        ([1, 2, 0, 0], [-0.97233027, -1.69226706, 1.0, -0.11902702]),
    ):
        obs, found = step(env, *actions)
        assert found == pytest.approx(expected, abs=1e-6)
    close(obs[:, 1], [0.00926619, 0.00549118, 0.05116574, -0.07], atol=1e-6)


# ---- pendulum ---------------------------------------------------------------------------------


def test_pendulum_hangs_and_is_lifted() -> None:
    """Hanging costs π²; upright it is turned by 3·2 a second², more torque than 2 adds nothing."""
    env = world("pendulum.Pendulum", 3)
    env.state.copy_(torch.tensor([[math.pi, 0.0], [0.0, 0.0], [2 * math.pi, 0.0]]))
    obs, rewards = step(env, 0.0, 2.0, 500.0)
    assert rewards == pytest.approx([-(math.pi**2), -0.004, -0.004], rel=1e-5)
    lifted = [math.cos(0.015), math.sin(0.015), 0.3]  # 0.05 s of it
    close(obs, [[-1.0, 0.0, 0.0], lifted, lifted], atol=1e-5)


def test_pendulum_moves_as_in_rl8() -> None:
    env = world("pendulum.Pendulum", 3)
    env.state.copy_(torch.tensor([[0.5, 0.7], [-3.0, -7.9], [7.0, 0.3]]))
    for actions, expected in (
        ([0.5, -3.0, 9.0], [-0.29925001, -15.24499989, -0.52682340]),
        ([-1.0, 1.5, 0.1], [-0.43967146, -14.71500874, -0.71455580]),
        ([2.0, -2.0, 0.0], [-0.58627325, -12.02481651, -0.99347174]),
    ):
        obs, found = step(env, *actions)
        assert found == pytest.approx(expected, rel=1e-5)
    last = [
        [0.74398559, 0.66819566, 2.12017035],
        [-0.53235197, 0.84652311, -7.43690777],
        [0.57125634, 0.82077169, 2.19555688],
    ]
    close(obs, last, atol=1e-6)


# ---- algotrading ------------------------------------------------------------------------------

CHANGE, GAIN = "LOG_CHANGE(price)", "LOG_CHANGE(price, position)"


def assets(frequency: Any, cyclic: Any, market: Any, time: Any) -> Any:
    """Assets with known prices, none of them owned."""
    env = world("algotrading.AlgoTrading", len(frequency))
    for tensor, values in (
        (env.frequency, frequency),
        (env.cyclic, cyclic),
        (env.growth, [math.log1p(k) for k in market]),
        (env.time, time),
    ):
        tensor.copy_(column(*values))
    return env


def test_holding_what_is_not_owned_earns_nothing() -> None:
    env = world("algotrading.AlgoTrading", 8)
    assert all(step(env, *[HOLD] * 8)[1] == [0.0] * 8 for _ in range(20))


def test_what_is_paid_follows_the_price() -> None:
    """The price is computed here; holding earns its last change, selling the gain since buying."""
    frequency, cyclic, market, phase = 0.8, 0.04, 0.01, 3
    env = assets([frequency], [cyclic], [market], [phase])
    prices = [100.0]
    actions = [HOLD, BUY, HOLD, HOLD, SELL, HOLD, BUY, SELL]
    found = []
    for t, action in enumerate(actions, start=phase + 1):
        found += step(env, action)[1]
        prices.append(prices[-1] * (1 + market) * (1 + cyclic * math.sin(frequency * t)))
    log = [math.log(price) for price in prices]
    expected = [0, 0, log[2] - log[1], log[3] - log[2], log[4] - log[1], 0, 0, log[7] - log[6]]
    assert found == pytest.approx(expected, abs=1e-6)
    assert float(env.obs[CHANGE]) == pytest.approx(log[8] - log[7], abs=1e-6)
    assert float(env.obs[GAIN]) == pytest.approx(log[8] - log[7], abs=1e-6)  # nothing is owned


def test_masks_say_what_can_be_done_and_the_rest_is_held() -> None:
    env = assets([0.5, 0.5], [0.0, 0.0], [0.02, 0.02], [0, 0])
    assert env.obs["action_mask"].tolist() == [[True, True, False]] * 2
    obs, rewards = step(env, BUY, SELL)
    assert rewards == [0.0, 0.0]
    assert obs["invested"].tolist() == [[1], [0]]
    assert obs["action_mask"].tolist() == [[True, False, True], [True, True, False]]
    obs, rewards = step(env, BUY, SELL)
    assert rewards == pytest.approx([math.log(1.02), 0.0])
    close(obs[GAIN], column(2 * math.log(1.02), math.log(1.02)), atol=1e-6)


def test_algotrading_trades_as_in_rl8() -> None:
    env = assets([0.5, 1.0, 2.0, 3.0], [0.05, -0.03, 0.02, 0.01], [0.02, -0.01, 0, -0.05], range(4))
    env.time.copy_(column(0, 3, 5, 9))
    for actions, expected in (
        ([BUY, BUY, HOLD, HOLD], [0.0, 0.0, 0.0, 0.0]),
        ([HOLD, SELL, BUY, HOLD], [0.04349089, 0.01239967, 0.0, 0.0]),
        ([HOLD, BUY, HOLD, BUY], [0.06101513, 0.0, 0.01961803, 0.0]),
        ([SELL, HOLD, HOLD, SELL], [0.17297983, -0.00170279, -0.00577450, -0.06126118]),
        ([HOLD, SELL, SELL, HOLD], [0.0, -0.03165960, -0.00129032, 0.0]),
        ([BUY, HOLD, BUY, BUY], [0.0, 0.0, 0.0, 0.0]),
        ([HOLD, HOLD, HOLD, HOLD], [0.02683401, 0.0, -0.00017643, -0.04281998]),
    ):
        obs, found = step(env, *actions)
        assert found == pytest.approx(expected, abs=2e-6)  # of logarithms of prices up to 9,000
    assert obs["invested"].flatten().tolist() == [1, 0, 1, 1]
    close(obs[CHANGE], column(0.00210762, 0.00613832, -0.01827812, -0.05900574), atol=2e-6)
    close(obs[GAIN], column(0.02894163, 0.00613832, -0.01845455, -0.10182571), atol=2e-6)


def test_rules_earn_what_the_readme_says() -> None:
    rules = importlib.import_module("examples.algotrading.rules")
    torch.manual_seed(0)
    found = {rule.__name__: rules.mean_return(rule, num_envs=5000) for rule in rules.RULES}
    assert found["hold"] == 0.0
    expected = {"uniform": 0, "buy_and_hold": 0, "follow": 0.41, "know": 0.38, "know_and_sell": 0.6}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("model", ["views", "lstm", "transformer"])
def test_no_model_does_what_cannot_be_done(model: str) -> None:
    config = TrainConfig.from_file(EXAMPLES / "algotrading" / f"{model}.yaml", ["num_envs=32"])
    trainer = config.build(run_dir=None)
    trainer.algorithm.collect()
    obs, actions = trainer.algorithm.buffer["obs"], trainer.algorithm.buffer["actions"]
    assert bool(obs["action_mask"][:, :-1].gather(-1, actions[:, :-1]).all())
    assert set(actions[:, :-1].unique().tolist()) == {HOLD, BUY, SELL}


# ---- files, tables and pictures ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_files_build_and_train(file: str) -> None:
    config = TrainConfig.from_file(EXAMPLES / file, ["num_envs=8", "sgd_minibatch_size=8"])
    trainer = config.build(run_dir=None)
    before = [parameter.clone() for parameter in trainer.algorithm.policy.model.parameters()]
    stats = trainer.step()
    assert math.isfinite(stats["losses/total"])
    after = trainer.algorithm.policy.model.parameters()
    assert all(not torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_every_file_is_tested() -> None:
    worlds = {name.split(".")[0] for name in WORLDS}
    found = {f"{p.parent.name}/{p.name}" for p in EXAMPLES.glob("*/*.yaml")}
    assert {name for name in found if name.split("/")[0] in worlds} == set(FILES)


@pytest.mark.parametrize("name", sorted(name.split(".")[0] for name in WORLDS))
def test_readmes_show_a_picture_that_is_there(name: str) -> None:
    assert "](curve.svg)" in (EXAMPLES / name / "README.md").read_text()
    picture = EXAMPLES / name / "curve.svg"
    assert picture.read_text().rstrip().endswith("</svg>")
    assert picture.stat().st_size < 60_000


def write_run(directory: Path, returns: list[float], rollouts_per_reset: int) -> None:
    directory.mkdir(parents=True)
    rows = [
        {
            "env/steps": 100 * (i + 1),
            "env/resets": 0 if i % rollouts_per_reset else 10,
            "returns/mean": value,
        }
        for i, value in enumerate(returns)
    ]
    rows.insert(1, {"eval/returns/mean": 0.0})  # an evaluation's row has no train step
    lines = [json.dumps({"step": i, "time": 0.0, **row}) for i, row in enumerate(rows)]
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_curves_add_up_the_rollouts_of_an_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    curves = importlib.import_module("curves")
    write_run(tmp_path / "0", [1.0, 2.0, 3.0, 4.0, 5.0], rollouts_per_reset=2)
    write_run(tmp_path / "1", [1.0, 2.0, 3.0], rollouts_per_reset=1)
    assert curves.episodes(tmp_path / "0" / "metrics.jsonl") == [(200, 3.0), (400, 7.0)]
    assert curves.episodes(tmp_path / "1" / "metrics.jsonl") == [(100, 1), (200, 2), (300, 3)]
    assert len(curves.runs_in(tmp_path)) == 2
    with pytest.raises(SystemExit, match="holds no runs"):
        curves.runs_in(tmp_path / "0")


def run_script(name: str, *arguments: str, cwd: Path) -> str:
    """Output of a script, run with the examples of this tree."""
    paths = [str(ROOT / "src"), str(ROOT / "adapters"), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    ran = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_curves_are_the_same_picture_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, scale in (("short", 1.0), ("long", 2.0)):
        for seed in range(3):
            returns = [scale * (t + seed) for t in range(5 + seed)]
            write_run(tmp_path / name / str(seed), returns, rollouts_per_reset=1)
    for out in ("a.svg", "b.svg", "c.png"):
        run_script("curves.py", "short", "long", "--out", out, cwd=tmp_path)
    picture = (tmp_path / "a.svg").read_text()
    assert picture == (tmp_path / "b.svg").read_text()
    assert all(label in picture for label in ("short", "long", "env steps"))
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.slow
def test_the_table_of_a_world(tmp_path: Path) -> None:
    text = (EXAMPLES / "pendulum" / "train.yaml").read_text()
    small = text.replace("num_envs: 128", "num_envs: 8").replace("horizon: 128", "horizon: 8")
    small = small.replace("524_288", "512").replace("sgd_minibatch_size: 1024\n", "")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "world.yaml").write_text(small)
    head, _, row = run_script(
        "worlds.py", "tiny/world.yaml", "--seeds", "1", cwd=tmp_path
    ).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert head.split("|")[2].strip() == "env steps"
    assert cells[:2] == ["0", "512"]
    assert all(-32 * 16.3 < float(cell) < 0 for cell in cells[2:6])  # 32 env steps an episode
    assert (tmp_path / "runs" / "tiny" / "world" / "0" / "metrics.jsonl").is_file()
