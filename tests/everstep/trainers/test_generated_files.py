"""Configuration files that are generated: refused with place, key and rule, or trained.

Files begin valid. Some of their keys get values of other types, sizes and nestings; some keys are
added, moved, misspelled or dropped. A file that is read is built and trained for one update:
whatever is raised must be of Everstep, and what is accepted must be in range (`nonsense`).
"""

import contextlib
import copy
import json
import random
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from everstep.core.hyperparameters import RecurrentHyperparameters
from everstep.errors import ConfigError, EverstepError
from everstep.trainers import TrainConfig
from everstep.trainers._options import RunOptions

DUMMY = "everstep.env.DiscreteDummyEnv"
VALID: list[dict[str, Any]] = [
    {"env_cls": DUMMY},
    {"env_cls": DUMMY, "recurrent": True, "seq_len": 4},
    {"env_cls": "everstep.env.ContinuousDummyEnv", "lr": 1e-3, "optimizer_cls": "torch.optim.SGD"},
    {"env_cls": DUMMY, "bonuses": [{"rnd": {"gamma_intrinsic": 0.9}}], "gamma": 0.9},
    {"env_cls": DUMMY, "lr_schedule": [[0, 1e-3], [64, 1e-4]], "lr_schedule_kind": "interp"},
    {"env_cls": DUMMY, "stop": [{"HitsUpperBound": {"key": "env/steps", "bound": 4}}]},
    {
        "env_cls": DUMMY,
        "callbacks": ["everstep.callbacks.Callback"],
        "model_config": {"hiddens": [8]},
    },
    {
        "env_cls": DUMMY,
        "steps_per_eval": 1,
        "eval_env_config": {"a": 1},
        "best": "eval/returns/mean",
    },
    {"env_cls": DUMMY, "symmetry": {"observation": [1], "action": {"options": [1, 0]}}},
    {
        "env_cls": "everstep.env.ContinuousDummyEnv",
        "symmetry": {"observation": {"signs": [-1]}, "action": [-1], "mirror_coeff": 0.5},
    },
    {"env_cls": DUMMY, "objective": {"distillation": {"teacher": "runs/teacher", "loss": "kl"}}},
]
SMALL = {"num_envs": 4, "horizon": 8, "num_sgd_iters": 1, "total_env_steps": 32}

KEYS = [field.name for cls in (RunOptions, RecurrentHyperparameters) for field in fields(cls)]

#: Keys whose valid values have an effect outside of this test, or take long.
ELSEWHERE = {"run_dir", "loggers", "video_every", "compile", "experiment_name", "model"}


def scalars(rng: random.Random) -> Any:
    return rng.choice(
        [
            *(
                None,
                True,
                False,
                0,
                1,
                -1,
                2,
                3,
                7,
                8,
                16,
                100,
                1000,
                10**9,
                2**40,
                2**62,
                -(2**62),
            ),
            *(0.0, 0.5, 0.99, 1.0, 1.5, -0.5, 7.0, 1e-9, 1e3, 9e18, 1e300, -1e300, 5e-324),
            *(
                "",
                "auto",
                "linear",
                "step",
                "interp",
                "adaptive",
                "ppo",
                "a2c",
                "mse",
                "cpu",
                "meta",
            ),
            *("cuda:99", "cpu:7", "vulkan", "x" * 3000, "é\u202e", "a.b", "..", "../../x", "rnd"),
            *("torch.optim.LBFGS", "torch.optim.SparseAdam", "torch.optim.Adam", "torch.nn.Linear"),
            *("everstep.distributions.Normal", "everstep.models.DefaultContinuousModel", DUMMY),
            *("subprocess.Popen", "os.system", "float16", "error", "terminate", "minibatch", "10s"),
            *("eval/episodes/return_mean", "env/steps", "1e-3", "null", "high"),
        ]
    )


def anything(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if kind < 0.7 or depth > 3:
        return scalars(rng)
    if kind < 0.85:
        return [anything(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    if kind < 0.88:  # points of a schedule
        return [[i * rng.choice([1, 16, -1]), scalars(rng)] for i in range(rng.randint(0, 3))]
    if kind < 0.9:
        value: Any = scalars(rng)
        for _ in range(rng.choice([5, 30, 40, 400])):
            value = [value] if rng.random() < 0.7 else {"a": value}
        return value
    names = ["a", "lr", "rnd", "lr_pi", "hiddens", "HitsUpperBound", "And", "key", "bound", "eps"]
    names += ["observation", "action", "signs", "permutation", "options", "teacher", "distillation"]
    return {rng.choice([*names, *KEYS]): anything(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def mutated(rng: random.Random) -> dict[str, Any]:
    """A valid file with one to three changes."""
    values = {**SMALL, **copy.deepcopy(rng.choice(VALID))}
    for _ in range(rng.randint(1, 3)):
        how, key = rng.random(), rng.choice(KEYS)
        if key in ELSEWHERE and rng.random() < 0.8:
            continue
        if how < 0.75:
            values[key] = anything(rng)
        elif how < 0.82:
            inner = values.get(rng.choice(list(values)))
            if isinstance(inner, dict):
                inner[rng.choice([*inner, "a"])] = anything(rng)
            elif isinstance(inner, list):
                inner.append(anything(rng))
        elif how < 0.9:
            values.pop(rng.choice(list(values)), None)
        elif how < 0.95:
            values[key[:-1] or "x"] = anything(rng)
        else:
            values["algorithm_config"] = {key: anything(rng), rng.choice(KEYS): scalars(rng)}
        if not values:
            values = dict(SMALL)
    return values


#: Ranges of numbers that make sense.
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("gamma", "gae_lambda", "clip_param"), (0, 1)),
    **dict.fromkeys(("lr", "entropy_coeff", "vf_coeff", "bounds_loss_coeff"), (0, 1000)),
    **dict.fromkeys(("horizon", "num_envs", "seq_len", "num_sgd_iters"), (1, 10**7)),
    **dict.fromkeys(("reward_scale", "clip_rewards", "vf_clip_param", "target_kl_div"), (0, 1e9)),
    **dict.fromkeys(("total_env_steps", "steps_per_eval", "test_every", "seed"), (0, 2**63)),
    **dict.fromkeys(("eval_episodes", "keep_last"), (1, 10**7)),
    "dual_clip_param": (1, 1e9),
}
SCHEDULES = {"lr_schedule": 1000, "clip_param_schedule": 1, "entropy_coeff_schedule": 1000}


def nonsense(config: TrainConfig) -> list[str]:
    """Values of an accepted file that make no sense."""
    found = []
    for key, (low, high) in RANGES.items():
        value = getattr(config, key)
        if isinstance(value, int | float) and not low <= value <= high:
            found.append(f"{key}: {value}")
    for key, high in SCHEDULES.items():
        value = getattr(config, key)
        for _, number in value if isinstance(value, list) else ():
            if not 0 <= number <= high:
                found.append(f"{key}: {value}")
    evaluates = config.steps_per_eval or config.test_every
    scored = (config.recipe or {}).get("score") == "evaluation"
    if config.eval_episodes and not (evaluates or scored):
        found.append(f"eval_episodes: {config.eval_episodes}")
    rates = {k: x for k, x in (config.optimizer_config or {}).items() if k.startswith("lr")}
    found += [f"{k}: {x}" for k, x in rates.items() if isinstance(x, float) and not 0 <= x <= 1000]
    return found


def is_large(config: TrainConfig) -> bool:
    """Whether training would take long; the file is accepted rightly."""
    sizes = [getattr(config, name) for name in ("num_envs", "horizon", "num_sgd_iters")]
    numbers = [size for size in sizes if isinstance(size, int)]
    rows = (sizes[0] if isinstance(sizes[0], int) else 64) * (
        sizes[1] if isinstance(sizes[1], int) else 32
    )
    evaluations = [config.eval_episodes or 0, config.algorithm_config.get("num_test_episodes") or 0]
    return max([*numbers, *evaluations], default=0) > 200 or rows > 4096


def outcome(file: Path) -> str:
    """Empty if a file is refused as it should be, or is trained; else what is wrong."""
    try:
        config = TrainConfig.from_file(file)
        found = nonsense(config)
        if found:
            return f"accepted nonsense: {found}"
        config.run_dir = None
        config.loggers = None
        config.video_every = None
        if is_large(config) or config.compile:
            return ""
        with contextlib.closing(config.build(run_dir=None)) as trainer:  # type: ignore[type-var]
            trainer.step()
    except ConfigError as error:
        # Rules between the file and the environment, which are known late, may have no line.
        return "" if error.problems and all(error.problems) else "no message"
    except EverstepError:
        return ""
    except Exception as error:  # the fault that is looked for
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def run(seed: int, count: int, folder: Path) -> list[str]:
    rng, wrong = random.Random(seed), []
    for number in range(count):
        values = mutated(rng)
        file = folder / "train.json"
        file.write_text(json.dumps(values))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            told = outcome(file)
        if told:
            wrong.append(f"{seed}/{number}: {told}\n  {json.dumps(values)[:600]}")
    return wrong


@pytest.mark.slow
def test_generated_files_are_refused_or_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(1, 60, tmp_path) == []


@pytest.mark.exhaustive
def test_many_generated_files_are_refused_or_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(2, 20_000, tmp_path) == []
