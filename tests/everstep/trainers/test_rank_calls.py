"""Calls that all ranks must make alike: one that does something else is refused on all of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep import ContinuousDummyEnv, DiscreteDummyEnv, Trainer
from everstep.algorithms import AlgorithmConfig
from everstep.algorithms.build import _shared, compared
from everstep.callbacks import Callback
from everstep.conditions import HitsUpperBound
from everstep.core.ranks import current_reducer
from everstep.distributions import Normal, SquashedNormal
from everstep.loggers.history import read_history
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {"num_envs": 4, "horizon": 4, "seed": 1, "track": False, "progress": False}


class Counts(Callback):
    """Counts train steps from a number on, and stops after two."""

    def __init__(self, first: int) -> None:
        self.count = first

    def on_train_step(self, stats: dict[str, Any]) -> None:
        self.count += 1
        stats[f"rank_{current_reducer().rank}/count"] = self.count
        if self.count % 10 == 2:
            self.trainer.stop()

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Rigid(DiscreteDummyEnv):
    """Its resets are told what they are."""

    told: Any = None

    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        self.told = config
        return super().reset(config=config)


def rigid(num_envs: int, horizon: int, *, device: Any, level: int) -> Rigid:
    env = Rigid(num_envs, horizon, device=device)
    env.level = level
    return env


class Evaluates(Callback):
    """Evaluates in the first train step, on one rank."""

    def on_train_step(self, stats: dict[str, Any]) -> None:
        if current_reducer().rank:
            self.trainer.eval()


class Fails(Callback):
    """Fails on one rank: at the end, or in its last train step."""

    def __init__(self, when: str) -> None:
        self.when, self.statuses = when, list[str]()

    def on_train_step(self, stats: dict[str, Any]) -> None:
        if self.when == "train step" and current_reducer().rank and stats["env/steps"] == 32:
            raise RuntimeError("the disk is full")

    def on_end(self, status: str) -> None:
        self.statuses.append(status)
        if self.when == "end" and current_reducer().rank:
            raise RuntimeError("the disk is full")


class Closed:
    """A logger that keeps how a run ended."""

    def __init__(self) -> None:
        self.statuses: list[str] = []

    def log_params(self, params: Any) -> None: ...

    def log_metrics(self, metrics: Any, *, step: int) -> None: ...

    def close(self, status: str = "FINISHED") -> None:
        self.statuses.append(status)


class AddOn:
    """An object whose representation has an address, which differs between processes."""

    name = "add_on"

    def __call__(self, *args: Any) -> torch.Tensor:
        return torch.zeros(())


class OtherAddOn(AddOn):
    """Another one."""


#: Options of rank 0 and of rank 1, by the name that a refusal has.
DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lr": ({"lr": 1e-3}, {"lr": 2e-3}),
    "seed": ({}, {"seed": 2}),
    "seed of one": ({}, {"seed": None}),
    "num_envs": ({}, {"num_envs": 8}),
    "lr_schedule": (
        {"lr_schedule": [(0, 1e-3), (9, 1e-4)]},
        {"lr_schedule": [(0, 1e-3), (9, 1e-5)]},
    ),
    "clip_param_schedule": (
        {"clip_param_schedule": lambda left: 0.2 * left},
        {"clip_param_schedule": lambda left: 0.1 * left},
    ),
    "entropy_coeff_schedule": ({}, {"entropy_coeff_schedule": [(0, 0.1), (99, 0.0)]}),
    "model_config": ({"model_config": {"hiddens": [8]}}, {"model_config": {"hiddens": [16]}}),
    "optimizer_config": (
        {"optimizer_config": {"eps": 1e-5}},
        {"optimizer_config": {"eps": 1e-3}},
    ),
    "optimizer_cls": ({}, {"optimizer_cls": torch.optim.SGD}),
    "distribution_cls": ({}, {"distribution_cls": SquashedNormal}),
    "objective": ({}, {"objective": "a2c"}),
    "bonuses": ({}, {"bonuses": [{"rnd": {}}]}),
    "policy_loss_addons": (
        {"policy_loss_addons": [AddOn()]},
        {"policy_loss_addons": [OtherAddOn()]},
    ),
    "symmetry": ({"symmetry": {"observation": [-1.0]}}, {"symmetry": {"observation": [1.0]}}),
    "run_dir": ({"run_dir": None}, {"run_dir": "a"}),
    "best": ({}, {"best": "episodes/return_mean_100"}),
    "eval_env": ({"eval_env": True}, {}),
}


def made(place: str) -> dict[str, str]:
    """Refusals of trainers that are made with other things on rank 1, by name."""
    rank, found = current_reducer().rank, {}
    for name, options in DIFFERENT.items():
        run_dir = None if name == "seed" else Path(place) / name
        own: dict[str, Any] = {"run_dir": run_dir, **SIZES, **options[rank]}
        if "eval_env" in own:
            own["eval_env"] = ContinuousDummyEnv(2, 4)
        if name == "run_dir" and rank:
            own["run_dir"] = Path(place) / "a"
        env: Any = ContinuousDummyEnv
        try:
            Trainer(env, **own)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    for name, env in {
        "action_spec": (DiscreteDummyEnv, ContinuousDummyEnv)[rank],
        "nothing": ContinuousDummyEnv,
    }.items():
        own = SIZES | {"distribution_cls": Normal} if name == "nothing" else SIZES
        own = own | {"lr": lambda left: 1e-3 * left, "policy_loss_addons": [AddOn()]}
        try:
            Trainer(env, run_dir=None, **own).run(total_env_steps=32)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def test_ranks_that_are_given_different_things_are_refused(tmp_path: Path) -> None:
    """They trained different weights, or waited for each other for ever."""
    first, second = run_ranks(2, made, tmp_path / "ranks", str(tmp_path))
    assert first == second
    assert [*first] == [*DIFFERENT, "action_spec"]
    for name, message in first.items():
        key = name.removesuffix(" of one")
        assert message.startswith(f"ConfigError: `{key}` must be the same on all ranks; got ")
        assert " on rank 0 and " in message
        assert ". Give every process the same" in message
        assert ("share" in message or "from one seed" in message) is (key in ("num_envs", "seed"))


def test_ranks_on_other_kinds_of_devices_are_refused() -> None:
    """One that sends from a GPU and one that receives on a CPU waited for each other."""
    env = DiscreteDummyEnv(4, 4)
    config = AlgorithmConfig(num_envs=4, horizon=4, seed=None)
    alike = [_shared(env, replace(config, device=x)) for x in ("cuda:0", "cuda:1", "cpu")]
    assert alike[0] == alike[1]
    assert {key for key, x in alike[0].items() if alike[2][key] != x} == {"device"}


def apart(place: str) -> list[Any]:
    """Outcome of a run whose ranks have what they may have of their own, and of going on."""
    rank, found = current_reducer().rank, []
    for resume in (False, True):
        counts = Counts(100 * rank)
        with Trainer(
            rigid,
            env_kwargs={"level": rank},
            run_dir=Path(place) / "run",
            callbacks=[counts, Callback()] if rank else [counts],
            resume=resume,
            **SIZES,
        ) as one:
            one.run(total_env_steps=320, env_config={"rank": rank})
            env: Any = one.algorithm.env
            model = one.algorithm.policy.model
            total = sum(float(x.detach().double().sum()) for x in model.parameters())
            found += [counts.count, env.level, env.told, one.state["env/steps"], total]
    return found


def test_what_ranks_may_have_of_their_own(tmp_path: Path) -> None:
    """Callbacks, whose state each rank keeps, and what environments are made and reset with."""
    first, second = run_ranks(2, apart, tmp_path / "ranks", str(tmp_path))
    assert first[:4] == [2, 0, {"rank": 0}, 32]
    assert second[:4] == [102, 1, {"rank": 1}, 32]
    assert first[4] == second[4]
    assert (first[5], second[5]) == (12, 112), "each goes on from its own"
    assert first[8:] == second[8:]


#: Options, calls of rank 0 and of rank 1, and a part of the refusal.
RUN = "total_env_steps=32"
APART: dict[str, tuple[str, str, str]] = {
    "evaluations": (f"run({RUN}, steps_per_eval=1)", f"run({RUN})", "`steps_per_eval` must be"),
    "budgets": (f"run({RUN})", "run(total_env_steps=64)", "`total_env_steps` must be"),
    "conditions": (
        f"run({RUN}, stop_conditions=[HitsUpperBound('env/steps', 16)])",
        f"run({RUN})",
        "`stop_conditions` must be",
    ),
    "eval": ("eval()", "step()", "got `Trainer.eval` on rank 0 and `Trainer.step` on rank 1"),
    "episodes": ("eval(episodes=2)", "eval(episodes=3)", "`episodes` must be"),
    "sampled": ("eval()", "eval(deterministic=False)", "`deterministic` must be"),
    "eval in a run": (f"run({RUN})", "eval()", "got `Trainer.run` on rank 0 and `Trainer.eval`"),
    "save": ("save()", "step()", "got `Trainer.save` on rank 0 and `Trainer.step` on rank 1"),
    "save_checkpoint": ("step()", "save_checkpoint(place)", "`Trainer.save_checkpoint` on rank 1"),
    "state_dict": ("state_dict()", "step()", "got `Trainer.state_dict` on rank 0"),
    "load": ("load_checkpoint()", "step()", "got `Trainer.load_checkpoint` on rank 0"),
    "collect": ("algorithm.collect()", "step()", "got `Algorithm.collect` on rank 0"),
    "twice": ("algorithm.step()", "algorithm.collect()", "got `Algorithm.step` on rank 0"),
    "minibatches": ("algorithm.minibatches().__next__()", "step()", "`Algorithm.minibatches`"),
    "changed": (
        "algorithm.update_algorithm_parameter('gamma', 0.5)",
        "algorithm.params",
        "`gamma` must be the same on all ranks; got 0.5 on rank 0 and nothing on rank 1",
    ),
    "in a callback": (f"run({RUN})", f"run({RUN})", "`Trainer.eval` on rank 1"),
    "nothing": (f"run({RUN})", f"run({RUN})", ""),
}


def called(place: str) -> dict[str, str]:
    """Refusals of calls that are others on rank 1, by name, and of a call after them."""
    rank, found = current_reducer().rank, {}
    for name, (*calls, _) in APART.items():
        own = {**SIZES, "callbacks": [Evaluates()] if name == "in a callback" else []}
        with Trainer(
            DiscreteDummyEnv,
            run_dir=Path(place) / name,
            eval_env=DiscreteDummyEnv(2, 4),
            eval_episodes=2,
            **own,
        ) as trainer:
            trainer.algorithm.collect()
            found[name] = ""
            try:
                names = {"HitsUpperBound": HitsUpperBound, "place": Path(place) / "checkpoint"}
                eval(f"trainer.{calls[rank]}", {"trainer": trainer, **names})
                if name == "changed":
                    trainer.step()
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
    return found


def test_calls_of_one_rank_alone_are_refused(tmp_path: Path) -> None:
    first, second = run_ranks(2, called, tmp_path / "ranks", str(tmp_path))
    assert first == second
    for name, (_, _, part) in APART.items():
        assert part in first[name], name
        assert bool(first[name]) is (name != "nothing")
        assert first[name].startswith("ConfigError: " if part else "")


def ended(place: str) -> list[Any]:
    """How a run ended that fails on rank 1, and what callbacks, loggers and the record say."""
    found = []
    for number, (when, run_dir, *_) in enumerate(ENDS):
        fails, logger, path = Fails(when), Closed(), Path(place) / str(number)
        trainer = Trainer(
            DiscreteDummyEnv,
            run_dir=path if run_dir else None,
            callbacks=[fails],
            loggers=[logger],
            **SIZES,
        )
        message = ""
        try:
            trainer.run(total_env_steps=32)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        trainer.close()
        stretches = read_history(path / "history.jsonl")
        found.append(
            [
                message.splitlines()[0],
                fails.statuses,
                logger.statuses,
                [x["status"] for x in stretches],
            ]
        )
    return found


#: When rank 1 fails, whether there is a record, what callbacks were told, and rank 0's error.
ENDS = (
    ("end", False, "FINISHED", "EverstepError: Rank 1 failed: the disk is full"),
    ("end", True, "FINISHED", "EverstepError: Rank 1 failed: the disk is full"),
    # The last one, for rank 1 does not go on with rank 0.
    (
        "train step",
        True,
        "FAILED",
        "RankError: Rank 1 failed first: RuntimeError: the disk is full",
    ),
)


def test_an_error_at_the_end_of_a_run_is_of_all_ranks(tmp_path: Path) -> None:
    """Rank 0 reported success: to its callbacks, if they were not called at the same time."""
    first, second = run_ranks(2, ended, tmp_path / "ranks", str(tmp_path))
    for number, (_, is_recorded, told, message) in enumerate(ENDS):
        assert first[number] == [message, [told], ["FAILED"], [None] * is_recorded]
        assert second[number][:2] == ["RuntimeError: the disk is full", [told]]


def test_values_that_hold_themselves_are_compared() -> None:
    endless: dict[str, Any] = {"units": 8}
    endless["more"] = [endless]
    text = compared({"model_config": endless})["model_config"]
    assert text.startswith("{units: 8, more: [{units: 8")
    assert "…" in text
