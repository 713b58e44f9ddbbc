"""Work of the host: operations it launches, and times it waits, per env step and minibatch.

Without a GPU, a launch is an operation that reaches the dispatcher and a wait is an operation that
brings a number to Python. What the native library and NumPy do is not counted. Budgets are the
counts of today and a little more: a careless line breaks them. Lower them when the code gets
better.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from everstep import (
    AlgorithmConfig,
    ContinuousDummyEnv,
    DiscreteDummyEnv,
    RecurrentAlgorithmConfig,
)
from everstep.adapters import GymnasiumEnv

#: Operations that make no kernel run.
FREE = {
    "_record_function_enter_new", "_record_function_exit", "_unsafe_view", "alias", "as_strided",
    "detach", "expand", "permute", "select", "slice", "split", "squeeze", "t", "transpose",
    "unbind", "unfold", "unsafe_split", "unsqueeze", "view",
}  # fmt: skip

#: Operations after which the host knows a number, or a shape, that the device has computed.
WAITING = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2"}


class Work(TorchDispatchMode):
    """Counts operations by name, and those that the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def launched(self) -> int:
        return sum(count for name, count in self.names.items() if name not in FREE)

    @property
    def waited(self) -> int:
        return sum(count for name, count in self.names.items() if name in WAITING)


def work_of(call: Callable[[], Any]) -> Work:
    with Work() as work:
        call()
    return work


def ready(make: Callable[[], Any], config: Any, **options: Any) -> Any:
    """An algorithm that has done everything once."""
    algorithm = config(**{"num_sgd_iters": 1, "seed": 0, **options}).build(make())
    algorithm.collect()
    algorithm.step()
    return algorithm


def collecting(make: Callable[[int], Any], config: Any = AlgorithmConfig) -> tuple[float, int]:
    """Operations an env step, and waits of a whole `collect`."""
    short = work_of(ready(lambda: make(8), config).collect)
    long = work_of(ready(lambda: make(24), config).collect)
    return (long.launched - short.launched) / 16, long.waited


def updating(make: Callable[[], Any], config: Any = AlgorithmConfig, **options: Any) -> Any:
    """Operations and waits a minibatch, and those of a whole update beside its minibatches."""
    works = []
    for epochs in (1, 2):
        algorithm = ready(make, config, num_sgd_iters=epochs, sgd_minibatch_size=16, **options)
        algorithm.collect()
        works.append(work_of(algorithm.step))
    minibatches = algorithm.hparams.num_minibatches
    once, twice = works
    each = (twice.launched - once.launched) / minibatches
    waits = (twice.waited - once.waited) / minibatches
    return each, waits, once.launched - each * minibatches, once.waited - waits * minibatches


def dummy(cls: Any) -> Callable[[int], Any]:
    return lambda horizon: cls(8, horizon)


def cartpole(horizon: int) -> GymnasiumEnv:
    import gymnasium

    return GymnasiumEnv(gymnasium.make_vec("CartPole-v1", 8), horizon)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("make", "budget"),
    [(dummy(DiscreteDummyEnv), 9), (dummy(ContinuousDummyEnv), 7)],
    ids=["discrete", "continuous"],
)
def test_a_native_env_step_stays_in_its_budget(make: Any, budget: int) -> None:
    """Counted are the environment's operations and where rows are written: acting is one call."""
    operations, waits = collecting(make)
    assert operations <= budget
    assert waits == 0


@pytest.mark.usefixtures("native")
def test_a_native_env_step_of_a_gymnasium_environment_stays_in_its_budget() -> None:
    operations, waits = collecting(cartpole)
    assert operations <= 2  # natively: noise and memory of actions; NumPy writes the rows
    assert waits <= 2  # a rollout: which rows were truncated, and which of them are known


@pytest.mark.usefixtures("general")
@pytest.mark.parametrize(
    ("make", "config", "budget"),
    [
        (dummy(DiscreteDummyEnv), AlgorithmConfig, 28),
        (dummy(ContinuousDummyEnv), AlgorithmConfig, 29),
        (dummy(DiscreteDummyEnv), RecurrentAlgorithmConfig, 24),
    ],
    ids=["discrete", "continuous", "recurrent"],
)
def test_an_env_step_stays_in_its_budget(make: Any, config: Any, budget: int) -> None:
    operations, waits = collecting(make, config)
    assert operations <= budget
    assert waits == 0


@pytest.mark.usefixtures("general")
def test_an_env_step_of_a_gymnasium_environment_stays_in_its_budget() -> None:
    operations, waits = collecting(cartpole)
    assert operations <= 24  # three of them normalise the observation
    assert waits <= 2  # a rollout: which rows were truncated, and which of them are known


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (DiscreteDummyEnv, {}),
        (ContinuousDummyEnv, {}),
        (DiscreteDummyEnv, {"objective": "a2c"}),
        (DiscreteDummyEnv, {"entropy_coeff": 0.01}),
        (DiscreteDummyEnv, {"target_kl_div": 1e9}),
    ],
    ids=["discrete", "continuous", "a2c", "entropy", "target"],
)
def test_a_native_update_stays_in_its_budget(cls: Any, options: Any) -> None:
    """Counted are an epoch's order, the advantages, and sums of what the library has returned.

    A minibatch with its optimizer step is one call.
    """
    each, waits, rest, rest_waits = updating(lambda: dummy(cls)(16), **options)
    assert each <= 1  # natively
    assert waits == 0
    assert rest <= 50  # natively
    assert rest_waits <= 1  # the entropy's weight, which the library is told


@pytest.mark.usefixtures("general")
@pytest.mark.parametrize(
    ("cls", "config", "options", "budget"),
    [
        (DiscreteDummyEnv, AlgorithmConfig, {}, 119),
        (ContinuousDummyEnv, AlgorithmConfig, {}, 133),
        (DiscreteDummyEnv, AlgorithmConfig, {"objective": "a2c"}, 111),
        (DiscreteDummyEnv, AlgorithmConfig, {"entropy_coeff": 0.01}, 139),
        (DiscreteDummyEnv, RecurrentAlgorithmConfig, {}, 106),
    ],
    ids=["discrete", "continuous", "a2c", "entropy", "recurrent"],
)
def test_a_minibatch_stays_in_its_budget(cls: Any, config: Any, options: Any, budget: int) -> None:
    each, waits, rest, rest_waits = updating(lambda: dummy(cls)(16), config, **options)
    assert each <= budget
    assert waits == 0
    # The entropy is measured in one of eight optimizer steps: here once an update.
    assert rest <= (158 if config is RecurrentAlgorithmConfig else 146)
    assert rest_waits == 0


@pytest.mark.usefixtures("general")
def test_stopping_early_waits_once_a_minibatch() -> None:
    _, waits, _, rest_waits = updating(lambda: DiscreteDummyEnv(8, 16), target_kl_div=1e9)
    assert (waits, rest_waits) == (1, 0)


def test_the_budget_notices_a_careless_line() -> None:
    def careless(minibatch: Any, distribution: Any, values: torch.Tensor) -> torch.Tensor:
        return 0 * values.sum() * float(values.detach().max())

    careless.name = "careless"  # type: ignore[attr-defined]
    options = {"policy_loss_addons": [careless]}
    each, waits, *_ = updating(lambda: DiscreteDummyEnv(8, 16), **options)
    assert waits == 1
    assert each > 119


def test_the_horizon_costs_no_operations_beyond_its_env_steps() -> None:
    """Advantages and returns are not computed row by row."""

    def update(horizon: int) -> int:
        algorithm = ready(lambda: DiscreteDummyEnv(8, horizon), AlgorithmConfig)
        algorithm.collect()
        return work_of(algorithm.step).launched

    assert update(256) - update(32) <= 3 * 6  # three more rounds
