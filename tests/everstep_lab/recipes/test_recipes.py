"""Recipes: every file is a training file with a header, is found by name, and builds."""

from pathlib import Path
from typing import Any

import pytest
import torch

from everstep import TrainConfig
from everstep.__main__ import main
from everstep.config import load, recipe_names
from everstep.errors import ConfigError
from everstep.loggers import read_metrics
from everstep_lab.recipes import find_recipes, read_recipe
from everstep_lab.recipes._recipes import RECIPES

NAMES = recipe_names()
RUN = [name for name in NAMES if read_recipe(name).header.not_run is None]
NOT_RUN = [name for name in NAMES if name not in RUN]

#: Modules that environments need, by the prefix of their spec.
LIBRARIES = {"envpool": "envpool", "everstep_lab.recipes.envs.MiniGrid": "envpool"}


def test_there_are_recipes_of_every_family() -> None:
    families = {name.partition("/")[0] for name in NAMES}
    assert families == {
        *("classic", "mujoco", "mujoco-v5", "atari", "minigrid", "memory", "exploration"),
        *("rl8", "a2c", "isaacgym", "rsl_rl", "ablation", "tuned"),
    }
    assert {path.suffix for path in RECIPES.glob("*/*") if path.parent.name in families} == {
        ".yaml"
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_header_is_valid_and_its_command_is_its_own(name: str) -> None:
    recipe = read_recipe(name)
    text = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
    assert f"#     everstep train recipe:{name}\n" in text
    assert recipe.env_steps > 0
    assert recipe.header.task
    if recipe.header.published is not None:
        assert recipe.header.published.link.startswith("https://")
    elif recipe.header.not_run is None:
        assert recipe.header.link


def needed_library(name: str) -> None:
    env = str(read_recipe(name).values["env_cls"])
    library = LIBRARIES.get(env, LIBRARIES.get(env.partition(":")[0]))
    if library is not None:
        pytest.importorskip(library)
    if name.startswith("mujoco-v5/"):
        pytest.importorskip("mujoco")
        pytest.importorskip("imageio")  # Gymnasium's MuJoCo environments import it


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_every_recipe_builds_and_makes_a_rollout(name: str) -> None:
    needed_library(name)
    small = ["seed=0", "num_envs=2"] if name.startswith("atari") else ["seed=0"]
    algorithm = TrainConfig.from_file(f"recipe:{name}", small).build_algorithm()
    try:
        algorithm.collect()
        for key in ("num_envs", "horizon"):
            given = read_recipe(name).values.get(key)
            assert small[1:] or given is None or getattr(algorithm.hparams, key) == given
    finally:
        algorithm.env.close()


@pytest.mark.parametrize("name", NOT_RUN)
def test_recipes_that_were_not_run_are_valid_but_for_their_environment(name: str) -> None:
    recipe = read_recipe(name)
    values = dict(recipe.values, env_cls="everstep.ContinuousDummyEnv")
    document = load(recipe.file)
    document.values.clear()
    document.values.update(values)
    config = TrainConfig.from_document(document)
    rows = recipe.values["num_envs"] * recipe.values["horizon"]
    assert rows % recipe.values["sgd_minibatch_size"] == 0
    assert config.num_envs == recipe.values["num_envs"]


ABLATIONS = {
    "gsde": {"model_config"},
    "normalize-values": {"normalize_values"},
    "bounds-loss": {"bounds_loss_coeff"},
    "asymmetric-critic": {"model_config"},
}


def test_ablations_are_pairs_that_differ_in_one_key() -> None:
    names = {name.partition("/")[2] for name in NAMES if name.startswith("ablation/")}
    assert names == {f"{name}{end}" for name in ABLATIONS for end in ("", "-without")}
    for name, keys in ABLATIONS.items():
        pair = [read_recipe(f"ablation/{name}{end}").values for end in ("", "-without")]
        assert {
            key for key in pair[0].keys() | pair[1].keys() if pair[0].get(key) != pair[1].get(key)
        } == keys


@pytest.mark.slow
def test_levels_of_tracking_cancel_and_actions_are_clipped() -> None:
    from everstep.testing import run_checks
    from everstep_lab.recipes.envs import Tracking

    env = Tracking(4, spread=2.0)
    obs = env.reset()
    for action in (-3.0, 0.25, 1.5):
        outcome = env.step(torch.full((4, 1), action))
        distance = max(-1.0, min(action, 1.0)) - obs["target"] / 2
        torch.testing.assert_close(outcome["rewards"], obs["level"] - distance**2)
        obs = outcome["obs"]
        assert obs["level"].tolist() == [[2.0], [-2.0], [2.0], [-2.0]]
    results = run_checks(
        lambda num_envs, horizon, device: Tracking(num_envs, horizon, device=device)
    )
    assert [result for result in results if result.status == "failed"] == []


def test_the_digest_is_of_the_keys_and_not_of_the_header(tmp_path: Path) -> None:
    def digest(header: str, keys: str) -> str:
        (tmp_path / "a.yaml").write_text(f"recipe: {header}\nenv_cls: CartPole-v1\n{keys}\n")
        return read_recipe(str(tmp_path / "a.yaml")).digest

    first = digest("{task: a, source: b}", "gamma: 0.9\nhorizon: 8")
    assert first == digest("{task: other, source: c}", "horizon: 8\ngamma: 0.9")
    assert first != digest("{task: a, source: b}", "gamma: 0.91\nhorizon: 8")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("null", "a.yaml:1: recipe: a recipe needs a header"),
        ("{task: x, sorce: y}", "recipe.sorce: unknown key (did you mean source?)"),
        ("{task: x, source: y, score: best}", "recipe.score: expected"),
        ("{task: x, source: y, published: {mean: a}}", "recipe.published.mean: expected"),
    ],
)
def test_errors_of_headers_name_the_place(tmp_path: Path, header: str, words: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"recipe: {header}\nenv_cls: CartPole-v1\n")
    with pytest.raises(ConfigError) as caught:
        read_recipe(str(file))
    assert words in "\n".join(caught.value.problems)


def test_recipes_are_found_by_name_family_pattern_file_and_folder(tmp_path: Path) -> None:
    def found(*names: str, **options: Any) -> list[str]:
        return [recipe.name for recipe in find_recipes(list(names), **options)]

    assert found("recipe:classic/CartPole-v1") == found("classic/CartPole-v1")
    assert found("classic", only="Acro*") == ["classic/Acrobot-v1"]
    assert found("*/CartPole-v1") == ["a2c/CartPole-v1", "classic/CartPole-v1"]
    assert found("all") == NAMES
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("b", "a"):
        (folder / f"{name}.yaml").write_text("recipe: {task: x, source: y}\nenv_cls: CartPole-v1\n")
    assert found(str(folder)) == ["mine/a", "mine/b"]
    assert found(str(folder / "a.yaml"), str(folder)) == ["mine/a", "mine/b"]
    with pytest.raises(ConfigError, match="did you mean classic/CartPole-v1"):
        found("classic/CartPol-v1")
    with pytest.raises(ConfigError, match="matches none"):
        found("classic", only="Hopper*")


def test_the_list_has_published_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "mujoco"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + sum(name.startswith("mujoco/") for name in NAMES)
    [hopper] = [line for line in lines if line.startswith("mujoco/Hopper-v4")]
    assert "2,383 ± 272" in hopper
    assert "1,000,000" in hopper


def test_show_prints_a_file_that_trains_as_the_recipe_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recipes", "show", "classic/CartPole-v1"]) == 0
    file = tmp_path / "mine.yaml"
    file.write_text(capsys.readouterr().out)
    mine, theirs = (TrainConfig.from_file(x) for x in (file, "recipe:classic/CartPole-v1"))
    assert mine.to_dict() == theirs.to_dict()


def test_an_unknown_recipe_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "recipe:CartPole-v1"]) == 2
    said = capsys.readouterr().err
    assert "recipe:CartPole-v1: unknown recipe" in said
    assert "classic/CartPole-v1" in said


def test_overrides_are_blamed_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "recipe:classic/CartPole-v1", "gama=1"]) == 2
    assert "command line: gama=1: unknown key (did you mean gamma?)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_recipe_trains_and_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["recipe:classic/CartPole-v1", "--run-dir", "r", "--no-mlflow", "--resume", "auto"]
    assert main(["train", *words, "seed=1", "--steps", "1024"]) == 0
    record = load(tmp_path / "r" / "config.yaml").values
    assert record["env_cls"] == "gymnasium:CartPole-v1"
    assert record["recipe"]["source"] == "CleanRL, ppo.py"
    assert main(["train", *words, "--steps", "2048"]) == 0
    assert main(["resume", "r", "--steps", "3072", "--no-mlflow"]) == 0
    steps = [record["step"] for record in read_metrics(tmp_path / "r" / "metrics.jsonl")]
    assert steps == sorted(set(steps))
    assert 3072 <= steps[-1] < 3072 + 512


@pytest.mark.slow
def test_init_prints_a_recipe_with_all_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "recipe:classic/CartPole-v1", "--seed", "3"]) == 0
    file = tmp_path / "all.yaml"
    file.write_text(capsys.readouterr().out)
    config = TrainConfig.from_file(file)
    assert (config.num_envs, config.seed, config.total_env_steps) == (4, 3, 500_000)


@pytest.mark.slow
def test_minigrid_shows_choices_within_their_bounds() -> None:
    pytest.importorskip("envpool")
    from everstep_lab.recipes.envs import MiniGrid

    env = MiniGrid(4, 16, task="MiniGrid-MemoryS7-v0")
    env.seed(0)
    obs = env.reset()
    counts = torch.tensor([int(n) for n in env.observation_spec.nvec])
    for _ in range(64):
        assert bool((obs.long() < counts).all())
        obs = env.step(torch.randint(3, (4, 1)))["obs"]
    env.close()
