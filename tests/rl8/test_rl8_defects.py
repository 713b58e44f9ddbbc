"""Promises to rl8's users: its public names, and none of its defects.

The page `docs/evidence/rl8.md` names a test for each defect; those that no other file has are
here. Each fails on what rl8 1.0.0 does.
"""

import ast
import importlib
import math
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import mlflow
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Unbounded

from everstep import (
    AlgorithmConfig,
    ContinuousDummyEnv,
    DiscreteDummyEnv,
    Policy,
    RecurrentAlgorithmConfig,
    Trainer,
    data,
)
from everstep.__main__ import _parser
from everstep.core.hyperparameters import RecurrentHyperparameters
from everstep.data import AlgorithmHparams, RecurrentAlgorithmHparams
from everstep.models import DefaultContinuousModel
from everstep.trainers._options import RunOptions
from everstep.trainers.config import HYPERPARAMETERS
from tests.everstep.policies.test_memory import KnownMemory
from tests.toys import ConstantEnv

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence" / "rl8.md"

SMALL: dict[str, Any] = {"num_envs": 8, "horizon": 4, "model_config": {"hiddens": (8,)}}


# ---- names ------------------------------------------------------------------------------------

#: Every public name of rl8 1.0.0, by module.
NAMES = {
    "rl8": "Algorithm AlgorithmConfig Env RecurrentAlgorithm RecurrentAlgorithmConfig "
    "RecurrentTrainer TrainConfig Trainer",
    "rl8.algorithms": "Algorithm AlgorithmConfig GenericAlgorithmBase RecurrentAlgorithm "
    "RecurrentAlgorithmConfig",
    "rl8.conditions": "And Condition HitsLowerBound HitsUpperBound Plateaus StopsDecreasing "
    "StopsIncreasing",
    "rl8.data": "AlgorithmHparams AlgorithmState CollectStats DataKeys Device EvalCollectStats "
    "MemoryStats RecurrentAlgorithmHparams RecurrentAlgorithmState StepStats TrainStatKey "
    "TrainStats TrainerState",
    "rl8.distributions": "Categorical Distribution Normal SquashedNormal TorchDistributionWrapper",
    "rl8.env": "ContinuousDummyEnv DiscreteDummyEnv DummyEnv Env EnvFactory GenericEnv",
    "rl8.models": "DefaultContinuousModel DefaultContinuousRecurrentModel DefaultDiscreteModel "
    "DefaultDiscreteRecurrentModel GenericModel GenericModelBase GenericRecurrentModel Model "
    "ModelFactory RecurrentModel RecurrentModelFactory",
    "rl8.nn": "CrossAttention MLP Module PerceiverIOLayer PerceiverLayer PositionalEmbedding "
    "SelfAttention SelfAttentionStack SequentialSkipConnection SquaredReLU "
    "binary_mask_to_float_mask float_mask_to_binary_mask generalized_advantage_estimate "
    "get_activation mask_from_lengths masked_avg masked_categorical_sample masked_log_softmax "
    "masked_max ppo_losses skip_connection",
    "rl8.nn.functional": "FINFO binary_mask_to_float_mask float_mask_to_binary_mask "
    "generalized_advantage_estimate mask_from_lengths masked_avg masked_categorical_sample "
    "masked_log_softmax masked_max ppo_losses skip_connection",
    "rl8.nn.modules": "CrossAttention MLP Module PerceiverIOLayer PerceiverLayer "
    "PositionalEmbedding SelfAttention SelfAttentionStack SequentialSkipConnection SquaredReLU "
    "get_activation",
    "rl8.nn.modules.activations": "ACTIVATIONS SquaredReLU get_activation",
    "rl8.nn.modules.attention": "CrossAttention PointerNetwork SelfAttention SelfAttentionStack",
    "rl8.nn.modules.embeddings": "PositionalEmbedding",
    "rl8.nn.modules.mlp": "MLP",
    "rl8.nn.modules.module": "Module",
    "rl8.nn.modules.perceiver": "PerceiverIOLayer PerceiverLayer",
    "rl8.nn.modules.skip": "SequentialSkipConnection",
    "rl8.policies": "GenericPolicyBase MLflowPolicyModel MLflowRecurrentPolicyModel Policy "
    "RecurrentPolicy",
    "rl8.schedulers": "ConstantScheduler EntropyScheduler InterpScheduler LRScheduler "
    "ScheduleKind Scheduler StepScheduler",
    "rl8.trainers": "GenericTrainerBase RecurrentTrainer TrainConfig Trainer",
    "rl8.trainers.config": "TrainConfig",
    "rl8.views": "PaddedRollingWindow RollingWindow View ViewKind ViewMethod ViewRequirement "
    "pad_last_sequence pad_whole_sequence rolling_window",
}

#: Fields of rl8's `AlgorithmConfig` and `RecurrentAlgorithmConfig`.
FIELDS = (
    "model model_cls model_config distribution_cls horizon horizons_per_env_reset num_envs "
    "optimizer_cls optimizer_config accumulate_grads enable_amp lr_schedule lr_schedule_kind "
    "entropy_coeff entropy_coeff_schedule entropy_coeff_schedule_kind gae_lambda gamma "
    "sgd_minibatch_size num_sgd_iters shuffle_minibatches clip_param vf_clip_param "
    "dual_clip_param vf_coeff target_kl_div max_grad_norm normalize_advantages "
    "normalize_rewards device seq_len seqs_per_state_reset"
)

#: Statistics of rl8's train steps.
STATISTICS = (
    "algorithm/collects algorithm/steps env/resets env/steps profiling/collect_ms returns/min "
    "returns/max returns/mean returns/std rewards/min rewards/max rewards/mean rewards/std "
    "coefficients/entropy coefficients/vf losses/entropy losses/policy losses/vf losses/total "
    "memory/free memory/total memory/percent monitors/kl_div profiling/step_ms"
)


def section(title: str) -> str:
    """Text under a heading of the page, up to the next one."""
    text = PAGE.read_text(encoding="utf-8").split(f"# {title}\n", 1)[1]
    return re.split(r"^#+ ", text, maxsplit=1, flags=re.MULTILINE)[0]


def rows(title: str) -> list[list[str]]:
    """Cells of the one table under a heading, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_maps_every_public_name() -> None:
    table = {names(theirs)[0]: names(listed) for theirs, _, listed in rows("Modules and names")}
    assert {module: sorted(listed) for module, listed in table.items()} == {
        module: sorted(listed.split()) for module, listed in NAMES.items()
    }


@pytest.mark.parametrize("module", NAMES)
def test_every_name_is_where_the_page_says(module: str) -> None:
    [ours] = [names(row[1])[0] for row in rows("Modules and names") if names(row[0])[0] == module]
    found = importlib.import_module(ours)
    assert not [name for name in NAMES[module].split() if not hasattr(found, name)]


def test_every_hyperparameter_and_statistic_has_its_name() -> None:
    assert set(FIELDS.split()) <= set(HYPERPARAMETERS)
    assert set(STATISTICS.split()) <= set(get_type_hints(data.TrainStats))
    assert {"env_cls", "algorithm_config", "recurrent"} <= set(get_type_hints(RunOptions))


def test_the_command_line_takes_the_same_flags() -> None:
    flags = ["--experiment-name", "a", "--max-steps", "3", "--save", "out", "--steps-per-eval", "2"]
    arguments = _parser(["train"]).parse_args(["train", "-f", "config.yaml", *flags])
    assert (arguments.experiment_name, arguments.max_steps) == ("a", 3)
    assert (arguments.save, arguments.steps_per_eval) == ("out", 2)
    assert _parser(["train"]).parse_args(["train", "--file", "config.yaml"]).file == "config.yaml"


# ---- the table of defects ---------------------------------------------------------------------


@cache
def defined(file: str) -> set[str]:
    """Names of the tests in a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_defect_has_a_test_or_a_reason() -> None:
    table = [row for part in ("Results", "Crashes and lost work") for row in rows(part)]
    assert [int(row[0]) for row in table] == list(range(1, 39))
    for number, *_, tests in table:
        named = [name.split("::") for name in names(tests)]
        assert named or tests.startswith("Does not apply"), number
        for file, test in named:
            assert test in defined(file), f"{number}: {file}::{test}"


# ---- results ----------------------------------------------------------------------------------


class AskedFor(Exception):
    """The device that an environment was asked to live on."""


def tell_device(num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> Any:
    raise AskedFor(str(device))


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize("cls", [AlgorithmConfig, RecurrentAlgorithmConfig])
def test_the_device_is_the_one_asked_for(cls: Any, device: str, monkeypatch: Any) -> None:
    """Also where there is another one that might be taken for it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(AskedFor, match=f"^{device}$"):
        cls(device=device, num_envs=2).build(tell_device)


@pytest.mark.parametrize("env_cls", [DiscreteDummyEnv, ContinuousDummyEnv])
def test_a_rollout_of_one_transition_is_learned_from(env_cls: Any) -> None:
    algorithm = AlgorithmConfig(num_envs=1, horizon=1).build(env_cls)
    stats = {**algorithm.collect(), **algorithm.step()}
    assert all(math.isfinite(value) for value in stats.values())
    assert all(p.isfinite().all() for p in algorithm.policy.model.parameters())


@pytest.mark.parametrize("horizon", [1, 10])
def test_statistics_of_recurrent_rollouts_have_every_env_step(horizon: int) -> None:
    config = RecurrentAlgorithmConfig(model_cls=KnownMemory, seq_len=1)
    stats = config.build(ConstantEnv(4, horizon)).collect()
    assert stats["returns/mean"] == stats["returns/min"] == horizon
    assert stats["rewards/mean"] == 1.0


def test_evaluation_leaves_the_training_environment_alone() -> None:
    """Its options, and where it stands; `horizons_per_env_reset` < 0 would show both for long."""
    trainer = Trainer(
        DiscreteDummyEnv,
        **SMALL,
        horizons_per_env_reset=-1,
        run_dir=None,
        eval_env=DiscreteDummyEnv(2, 4),
        eval_episodes=4,
    )
    trainer.step()
    env = trainer.algorithm.env
    before = env.state.clone()
    trainer.eval(env_config={"bounds": 1.0})
    assert trainer.eval_env.bounds == 1.0
    assert env.bounds == 100.0
    assert torch.equal(env.state, before)
    trainer.step()
    assert trainer.algorithm.state.horizons == 2


@pytest.mark.parametrize("log_std", [-4.0, 3.0])
def test_the_standard_deviation_is_in_no_cage(log_std: float) -> None:
    model = DefaultContinuousModel(Unbounded(2), Unbounded(1), log_std_init=log_std)
    features = model(TensorDict({"obs": 100 * torch.randn(16, 2)}, [16]))
    assert features["log_std"].detach() == pytest.approx(log_std)


@pytest.mark.parametrize(("kl_div", "steps"), [(0.09, 12), (0.11, 0)])
@pytest.mark.usefixtures("general")
def test_an_update_stops_at_the_target_itself(kl_div: float, steps: int) -> None:
    algorithm = AlgorithmConfig(
        **SMALL, target_kl_div=0.1, num_sgd_iters=3, sgd_minibatch_size=8
    ).build(DiscreteDummyEnv)
    algorithm.collect()
    gradients, taken = algorithm._add_gradients, []
    far = lambda m: {**gradients(m), "kl_div": torch.tensor(kl_div)}  # noqa: E731
    algorithm._add_gradients = far  # type: ignore[method-assign]
    algorithm.updater.step = lambda **_: taken.append(1)  # type: ignore[method-assign]
    algorithm.step()
    assert len(taken) == steps


def test_a_record_names_everything_that_was_set() -> None:
    set_here: dict[str, Any] = {
        "optimizer_config": {"lr": 3e-4},
        "lr_schedule": [(0, 3e-4), (100, 1e-4)],
        "entropy_coeff_schedule": [(0, 0.1)],
        "seed": 7,
    }
    params = AlgorithmConfig(**SMALL, **set_here).build(DiscreteDummyEnv).params
    assert {key: params[key] for key in set_here} == set_here
    assert set(HYPERPARAMETERS) - {"seq_len", "seqs_per_state_reset"} <= set(params)


# ---- crashes and lost work --------------------------------------------------------------------


@pytest.mark.parametrize("fails", ["forward", "value_function"])
def test_gradients_stay_on_when_a_model_fails(fails: str, monkeypatch: Any) -> None:
    policy = Policy(Unbounded(3), DiscreteDummyEnv(1).action_spec)
    monkeypatch.setattr(policy.model, fails, lambda *_: 1 / 0)
    batch = TensorDict({"obs": torch.zeros(2, 1, 3)}, [2, 1])
    with pytest.raises(ZeroDivisionError):
        policy.sample(batch, deterministic=True, return_values=True)
    assert torch.is_grad_enabled()
    assert policy.model.training


def test_a_saved_policy_does_not_grow_with_what_it_has_seen(tmp_path: Path) -> None:
    algorithm = AlgorithmConfig(**{**SMALL, "num_envs": 512, "horizon": 16}).build(DiscreteDummyEnv)
    algorithm.policy.save(tmp_path / "before")
    algorithm.collect()
    algorithm.step()
    algorithm.policy.save(tmp_path / "after")
    sizes = [(tmp_path / name).stat().st_size for name in ("before", "after")]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.05)


def test_two_trainers_have_a_run_each(tmp_path: Path, empty_store: Path) -> None:
    shutil.copy(empty_store, tmp_path)
    with (
        Trainer(DiscreteDummyEnv, **SMALL, gamma=0.9, run_dir=tmp_path / "a") as one,
        Trainer(DiscreteDummyEnv, **SMALL, gamma=0.8, run_dir=tmp_path / "b") as other,
    ):
        one.step()
        other.step()
        sinks = [one.mlflow, other.mlflow]
    found = []
    for sink in sinks:
        assert sink is not None
        client = mlflow.MlflowClient(sink.tracking_uri)
        found.append(client.get_run(sink.run_id).data.params["gamma"])
    assert found == ["0.9", "0.8"]


def test_building_neither_resets_nor_steps_the_environment() -> None:
    class Counted(ConstantEnv):
        resets = 0

        def reset(self, *, config: Any = None) -> Any:
            self.resets += 1
            return super().reset(config=config)

    env = Counted()
    algorithm = AlgorithmConfig().build(env)
    algorithm.validate()
    assert (env.resets, env.steps) == (0, 0)
    algorithm.collect()
    assert (env.resets, env.steps) == (1, 8)


@pytest.mark.parametrize("hparams_cls", [AlgorithmHparams, RecurrentAlgorithmHparams])
@pytest.mark.parametrize("device", ["mps", "xpu", "cuda:3", "cpu"])
def test_the_type_of_a_device_is_its_own(hparams_cls: Any, device: str) -> None:
    hparams = hparams_cls(RecurrentHyperparameters(device=device), num_minibatches=1)
    assert hparams.device_type == device.partition(":")[0]


def test_only_cuda_is_asked_for_the_memory_of_cuda(monkeypatch: Any) -> None:
    algorithm = AlgorithmConfig(**SMALL).build(DiscreteDummyEnv)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: 1 / 0)
    hparams = AlgorithmHparams(AlgorithmConfig(device="mps"), num_minibatches=1)
    algorithm.parts = replace(algorithm.parts, hparams=hparams)
    stats = algorithm.memory_stats()
    assert 0 < stats["memory/free"] <= stats["memory/total"]
