"""Every environment class of TorchRL's mocks, beside TorchRL's own steps, or refused with a reason.

An error that gives advice is followed, as a reader would. `--junitxml` has what became of each.
"""

import inspect
import re
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torchrl.envs import EnvBase, MarlGroupMapType, ParallelEnv, SerialEnv
from torchrl.modules import SafeModule, WorldModelWrapper

from everstep.errors import AdapterError, EnvError
from everstep_adapters import TorchRLEnv
from everstep_adapters.torchrl.calls import end_processes
from tests.everstep_adapters.torchrl.torchrl_oracle import STEPS, Make, check_beside, follow

mocks = pytest.importorskip("torchrl.testing.mocking_classes")


def environments() -> dict[str, Any]:
    """The module's environment classes; those that begin with an underscore have no specs."""
    return {
        name: kind
        for name, kind in sorted(vars(mocks).items())
        if inspect.isclass(kind)
        and issubclass(kind, EnvBase)
        and not inspect.isabstract(kind)
        and not name.startswith("_")
    }


def world_model() -> Any:
    """A model of four numbers, for environments that are made of one."""
    torch.manual_seed(0)
    step = mocks.ActionObsMergeLinear(5, 4)
    seen = ["hidden_observation"]
    return WorldModelWrapper(
        SafeModule(step, in_keys=[*seen, "action"], out_keys=seen),
        SafeModule(torch.nn.Linear(4, 1), in_keys=seen, out_keys=["reward"]),
    )


def nested() -> list[dict[str, Any]]:
    names = ("nest_obs_action", "nest_done", "nest_reward", "has_root_done")
    return [dict(zip(names, flags, strict=True)) for flags in product([True, False], repeat=4)]


BATCH: dict[str, Any] = {"batch_size": torch.Size([2])}

#: Arguments of the constructors; without any where a class is not here.
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "AutoResetHeteroCountingEnv": [{"auto_reset": True}, {}],
    "AutoResettingCountingEnv": [{"auto_reset": True}, {}],
    "ContinuousActionConvMockEnv": [{}, {"pixel_shape": [3, 5, 5]}],
    "ContinuousActionVecMockEnv": [{}, {"dtype": torch.float64}],
    "CountingBatchedEnv": [{}, {**BATCH, "max_steps": torch.tensor([3, 5])}],
    "CountingEnv": [{}, BATCH, {"max_steps": 2, "start_val": 1}],
    "CountingEnvWithString": [{}, BATCH],
    "DiscreteActionConvMockEnvNumpy": [{}, {"categorical_action_encoding": True}],
    "DiscreteActionVecMockEnv": [{}, {"categorical_action_encoding": True}],
    "DummyModelBasedEnvBase": [
        {"world_model": world_model()},
        {"world_model": world_model(), **BATCH},
    ],
    "EnvWithScalarAction": [{}, {"singleton": True}, BATCH],
    "EnvWithTensorClass": [{}, BATCH],
    "FastImageEnv": [{"img_shape": (3, 8, 8)}, {"img_shape": (3, 8, 8), **BATCH}],
    "HeterogeneousCountingEnv": [{}, BATCH],
    "IncrementingEnv": [{}, BATCH],
    "MockBatchedLockedEnv": [{}, BATCH],
    "MockBatchedUnLockedEnv": [{}, BATCH],
    "MockNestedResetEnv": [{"num_steps": 3, "done_at_root": root} for root in (True, False)],
    "MultiAgentCountingEnv": [
        {"n_agents": 2, "group_map": groups, **more}
        for groups in MarlGroupMapType
        for more in ({}, {"env_done_key": "done"})
    ],
    "MultiKeyCountingEnv": [{}, BATCH],
    "NestedCountingEnv": [*nested(), BATCH, {"nested_dim": 1}],
}

CASES = [
    pytest.param(kind, arguments, id=f"{name}-{i}")
    for name, kind in environments().items()
    for i, arguments in enumerate(ARGUMENTS.get(name, [{}]))
]

#: Environments that fail in TorchRL's own rollouts, too: on purpose, without `auto_reset`, in a
#: batch, or in processes (a locked TensorDict; gradients, after `set_seed`).
FAILING = {
    "AutoResettingCountingEnv",
    "DummyModelBasedEnvBase",
    "EnvThatErrorsAfter10Iters",
    "EnvThatErrorsBecauseOfStack",
    "EnvWithScalarAction",
    "EnvWithTensorClass",
}

#: How one environment, or two of them, are made.
BATCHED: dict[str, Callable[[Make], EnvBase]] = {
    "plain": lambda make: make(),
    "serial": lambda make: SerialEnv(2, make),
    "parallel": lambda make: ParallelEnv(2, make, mp_start_method="fork"),
}

PLACES = [
    pytest.param("plain", marks=pytest.mark.slow),
    pytest.param("serial", marks=pytest.mark.exhaustive),
    pytest.param("parallel", marks=pytest.mark.long),
]


def make_seeded(kind: Any, arguments: dict[str, Any]) -> EnvBase:
    """An environment whose random numbers are the same in each process."""
    torch.manual_seed(0)
    return kind(**arguments)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batched", PLACES)
@pytest.mark.parametrize(("kind", "arguments"), CASES)
def test_mocks(
    kind: Any, arguments: dict[str, Any], batched: str, record_property: Callable[[str, Any], None]
) -> None:
    outcome = follow(partial(make_seeded, kind, arguments), BATCHED[batched])
    if outcome.env is None:
        assert re.search("specs of .* have no (action|reward)", outcome.errors[-1])
        record_property("outcome", f"{batched}: refused for good")
        return
    own = BATCHED[batched](outcome.make)
    if kind.__name__ in FAILING and fails(own):
        with pytest.raises(EnvError, match="failed in"):
            check_beside(outcome.env, BATCHED[batched](outcome.make))
        record_property("outcome", f"{batched}: fails in TorchRL's rollout, too")
        return
    ends = check_beside(outcome.env, own)
    outcome.env.close()
    own.close()
    assert ends or "Counting" not in kind.__name__ or is_endless(kind, arguments)
    record_property("outcome", f"{batched}: {'advice followed' if outcome.errors else 'wrapped'}")


def fails(own: EnvBase) -> bool:
    """Whether TorchRL's own rollout fails. A process that failed is ended."""
    try:
        own.set_seed(1)
        own.rollout(STEPS, break_when_any_done=False)
    except RuntimeError:
        if isinstance(own, ParallelEnv):
            end_processes(own)
        return True
    own.reset()
    return False


def is_endless(kind: Any, arguments: dict[str, Any]) -> bool:
    """Mocks whose flags at the root are never set."""
    return kind.__name__ == "AutoResetHeteroCountingEnv" or arguments.get("has_root_done", False)


@pytest.mark.parametrize("mode", ["history", "text", "tokens"])
@pytest.mark.filterwarnings("ignore")
def test_chats_have_no_reward(mode: str) -> None:
    llm = pytest.importorskip("torchrl.envs.llm")
    with pytest.raises(AdapterError, match="specs of ChatEnv have no reward"):
        TorchRLEnv(llm.ChatEnv(batch_size=(1,), input_mode=mode))
