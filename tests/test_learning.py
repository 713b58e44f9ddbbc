"""Policies learn: small budgets here, the published thresholds behind the `learning` marker."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from everstep import ContinuousDummyEnv, TrainConfig, Trainer, evaluate, make

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
def test_cartpole_is_learned_in_40_000_env_steps() -> None:
    """A random policy's mean return is about 22."""
    config = TrainConfig.from_file(
        EXAMPLES / "gymnasium_cartpole" / "train.yaml", ["total_env_steps=40_000"]
    )
    trainer = config.build(run_dir=None)
    stats = trainer.run()
    assert stats["episodes/return_mean_100"] >= 150
    env = make("gymnasium:CartPole-v1", 8)
    env.seed(1)
    assert evaluate(trainer.algorithm.policy, env, episodes=16)["episodes/return_mean"] >= 150


@pytest.mark.slow
def test_the_known_optimum_of_the_continuous_dummy_is_approached() -> None:
    """The best action moves the point to the origin at once; doing nothing is far worse."""
    trainer = Trainer(
        ContinuousDummyEnv,
        num_envs=256,
        horizon=8,
        seed=0,
        gamma=0.9,
        sgd_minibatch_size=256,
        model_config={"hiddens": (32, 32)},
        run_dir=None,
    )
    config = {"bounds": 2.0}
    before = trainer.eval(env_config=config)["eval/rewards/mean"]
    for _ in range(60):
        trainer.step(env_config=config)
    after = trainer.eval(env_config=config)["eval/rewards/mean"]
    assert before < -0.9
    assert after > -0.15


@pytest.mark.slow
def test_what_was_shown_first_is_remembered_with_a_memory_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A perfect horizon returns 1; without a memory one half is the most there is."""
    monkeypatch.syspath_prepend(str(EXAMPLES.parent))
    found = {}
    for name, budget in (("repeat_first", 250_000), ("repeat_first_feedforward", 60_000)):
        overrides = ["seed=0", f"total_env_steps={budget}"]
        config = TrainConfig.from_file(EXAMPLES / "memory" / f"{name}.yaml", overrides)
        trainer = config.build(run_dir=None)
        trainer.run()
        found[name] = trainer.eval()["eval/returns/mean"]
    assert found["repeat_first"] >= 0.95
    assert found["repeat_first_feedforward"] <= 0.55  # of 128 environments' luck


README = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
FIRST_RUN = (EXAMPLES.parent / "docs" / "start" / "first_run.md").read_text(encoding="utf-8")

#: Seeds of the claims of README and of the first run: each must hold for all of them.
SEEDS = 5


@pytest.mark.learning
def test_the_ten_lines_of_the_readme_balance_the_pole(tmp_path: Path) -> None:
    """475 is the score from which CartPole-v1 counts as solved."""
    program = README.split("```python\n")[1].split("```")[0]
    assert program.count("seed=0)") == 2
    for seed in range(SEEDS):
        trained = program.replace("seed=0)", f"seed={seed})", 1)
        command = [sys.executable, "-c", trained]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
        assert float(ran.stdout.splitlines()[-1]) >= 475.0, f"seed {seed}: {ran.stdout}"


@pytest.mark.learning
def test_the_file_of_the_first_run_reaches_its_goal_within_its_budget(tmp_path: Path) -> None:
    file = FIRST_RUN.split(":caption: train.yaml\n\n")[1].split("```")[0]
    budget, bound = "total_env_steps: 150_000", "key: episodes/return_mean_100, bound: 475"
    assert budget in file
    assert bound in file
    (tmp_path / "train.yaml").write_text(file, encoding="utf-8")
    rows = train_seeds(str(tmp_path / "train.yaml"), SEEDS)
    assert [reached >= 475.0 for reached, _ in rows] == [True] * SEEDS, rows


@pytest.mark.learning
@pytest.mark.parametrize("example", ["cartpole", "acrobot", "pendulum"])
def test_the_table_of_the_readme(example: str) -> None:
    """Training stops at the return of the table, and evaluations are at least as good."""
    [row] = re.findall(rf"^\| {example}-v1 \|.*", README, flags=re.MULTILINE | re.IGNORECASE)
    cells = [cell.strip().replace("−", "-") for cell in row.strip("|").split("|")]
    threshold, evaluations = float(cells[1]), [float(x) for x in cells[3].split(",")]
    assert len(cells[2].split(";")) == len(evaluations) == SEEDS
    assert min(evaluations) >= threshold
    rows = train_seeds(f"gymnasium_{example}/train.yaml", SEEDS)
    assert all(reached >= threshold for reached, _ in rows), rows
    assert all(evaluated >= threshold for _, evaluated in rows), rows


@pytest.mark.learning
def test_cartpole_is_balanced_without_velocities() -> None:
    """The table of `examples/memory/README.md`, anew."""
    rows = train_seeds("memory/cartpole_positions.yaml", 5)
    assert sum(evaluated >= 475.0 for _, evaluated in rows) >= 4


@pytest.mark.learning
@pytest.mark.parametrize(
    ("example", "seeds", "needed", "threshold"),
    [("cartpole", 10, 9, 475.0), ("acrobot", 5, 4, -100.0), ("pendulum", 5, 4, -250.0)],
)
def test_examples_reach_their_thresholds(
    example: str, seeds: int, needed: int, threshold: float
) -> None:
    """The table of `examples/README.md`, anew."""
    rows = train_seeds(f"gymnasium_{example}/train.yaml", seeds)
    assert sum(reached >= threshold for reached, _ in rows) >= needed
    assert sum(evaluated >= threshold for _, evaluated in rows) >= needed


@pytest.mark.learning
@pytest.mark.parametrize("model", ["views", "lstm", "transformer"])
def test_algotrading_earns_more_than_holding(model: str) -> None:
    """The tables of `examples/algotrading/README.md`, anew: who only holds earns 0."""
    rows = table_of("examples/worlds.py", f"examples/algotrading/{model}.yaml", seeds=5)
    assert sum(float(row[4]) > 0 and float(row[5]) > 0 for row in rows) >= 4


@pytest.mark.learning
def test_a_treasure_is_found_with_a_bonus_only() -> None:
    """The table of `examples/deep_sea/README.md`, anew."""
    with_bonus = train_seeds("deep_sea/rnd.yaml", 5)
    assert sum(reached >= 0.9 for reached, _ in with_bonus) >= 4
    without = train_seeds("deep_sea/ppo.yaml", 5)
    assert sum(reached >= 0.9 for reached, _ in without) <= 1


@pytest.mark.learning
@pytest.mark.parametrize(("example", "threshold"), [("cartpole", 475.0), ("acrobot", -100.0)])
def test_a2c_reaches_the_thresholds_too(example: str, threshold: float) -> None:
    rows = train_seeds(f"gymnasium_{example}/a2c.yaml", 5)
    assert sum(reached >= threshold for reached, _ in rows) >= 4


def train_seeds(file: str, seeds: int) -> list[tuple[float, float]]:
    """Mean return of the last 100 episodes and of an evaluation's 100, for each seed."""
    rows = table_of("examples/seeds.py", str(EXAMPLES / file), seeds=seeds)
    return [(float(row[2]), float(row[3])) for row in rows]


def table_of(script: str, file: str, *, seeds: int) -> list[list[str]]:
    """The rows of the table that a script prints."""
    command = [sys.executable, script, file, "--seeds", str(seeds)]
    root = EXAMPLES.parent
    ran = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    return [line.strip("|").split("|") for line in ran.stdout.splitlines()[2:]]
