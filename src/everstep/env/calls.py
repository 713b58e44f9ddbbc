"""Calls of an environment during training and evaluation, with the caller's PyTorch settings."""

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import is_
from types import TracebackType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from tensordict import TensorDict

from ..core.episodes import to_floats
from ..core.graphs import detach_tensors
from ..core.rollouts import Rollout
from ..errors import EnvError
from . import Env
from .specs import Leaves

_log = logging.getLogger(__name__)

#: Names that were logged as unread, of each class of environments.
_unread: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()

# Without a call of Python.
_matmul_precision = torch._C._get_float32_matmul_precision


class Settings(NamedTuple):
    """PyTorch's settings that training and evaluation change, except in the caller's code."""

    has_grad: bool
    precision: str
    is_inference: bool

    @classmethod
    def now(cls) -> "Settings":
        """Gradients, precision of float32 matrix products, and inference mode."""
        return cls(torch.is_grad_enabled(), _matmul_precision(), torch.is_inference_mode_enabled())


class Switched:
    """Context that switches to the caller's settings, and back at its end.

    Training and evaluation run without gradients, and with a precision of their own. The caller's
    own code, such as its environment, runs as if the caller had called it directly. Both settings
    are arguments, because looking them up costs 1 % of a vector step of CartPole.

    Args:
        outside: Settings of the caller, which are in force in the context.
        inside: Settings of training, which are in force before and after it.

    """

    def __init__(self, outside: Settings, inside: Settings) -> None:
        self._has_grad, self._had_grad = outside.has_grad, inside.has_grad
        self._precision, self._had_precision = outside.precision, inside.precision
        self._switches_inference = outside.is_inference is not inside.is_inference
        self._is_inference = outside.is_inference

    # `torch.set_grad_enabled` and `contextmanager` would cost 2 µs a vector step.
    def __enter__(self) -> None:
        if self._switches_inference:
            self._inference = torch.inference_mode(self._is_inference)
            self._inference.__enter__()
        if self._had_precision != self._precision:
            torch.set_float32_matmul_precision(self._precision)
        torch._C._set_grad_enabled(self._has_grad)

    def __exit__(
        self,
        kind: None | type[BaseException],
        error: None | BaseException,
        traceback: None | TracebackType,
    ) -> None:
        if self._switches_inference:
            self._inference.__exit__(kind, error, traceback)
        if _matmul_precision() != self._had_precision:
            torch.set_float32_matmul_precision(self._had_precision)
        torch._C._set_grad_enabled(self._had_grad)


_REPLACED = (
    "A tensor of the locked TensorDict that `step` of the wrapped environment returned was "
    "replaced, which later vector steps would not know of. Return a changed copy: "
    "`row.clone().set('rewards', …)`."
)


class _Lent:
    """A rollout's memory that its environment writes into, kept from one rollout to the next."""

    def __init__(self) -> None:
        self._of: tuple[Any, Any] = None, None
        #: What `env.borrow_rows` returned; None if the environment writes into memory of its own.
        self.borrowed: Any = None
        self._rows: list[TensorDict] = []
        self._tensors: list[list[Any]] = []

    def __deepcopy__(self, memo: Any) -> "_Lent":
        return type(self)()  # arrays and tensors of a copy would no longer share memory

    def __reduce__(self) -> Any:
        return type(self), ()

    def offer(self, env: Any, rollout: Rollout) -> None:
        """Lend the rollout's memory to an environment that has `borrow_rows`, once for each."""
        if self._of[0] is env and self._of[1] is rollout:
            return
        self._of, self._rows, self.borrowed = (env, rollout), [], None
        borrow = getattr(env, "borrow_rows", None)
        # Replaced tensors of nested observations would not be seen.
        is_fit = rollout.observation.is_plain and rollout.device.type == "cpu"
        if borrow is not None and is_fit:
            self._rows = rollout.lend()
            self.borrowed = borrow(self._rows)
        self._tensors = [list(row.values()) for row in self._rows]

    def holds(self, t: int, outcome: Any) -> bool:
        """Whether an outcome is row `t` as it was lent, so that nothing is left to write.

        Raises:
            EnvError: If a tensor of it was replaced.

        """
        if outcome is not self._rows[t]:
            return False
        tensors, found = self._tensors[t], list(outcome.values())
        if len(found) != len(tensors):  # a key that was added, or deleted
            return False
        if not all(map(is_, found, tensors)):
            raise EnvError(_REPLACED)
        return True


class EnvCalls:
    """Calls of an environment, with the PyTorch settings in which the rollout was started.

    Results are detached. Tensors that the environment holds are detached, too, so that no graph of
    autograd grows from one env step to the next: after each env step whose results require
    gradients, and between rollouts if the environment was seen to hold a graph.

    Args:
        env: The environment.

    """

    def __init__(self, env: Env) -> None:
        self.env = env
        #: Whether the environment holds tensors with a graph; None before that was looked at.
        self._holds_graphs: None | bool = None
        self._has_stepped = False
        self._lent = _Lent()
        self._write_into: None | Callable[[int], None] = None  # a row of the rollout
        self.begin()

    def begin(self) -> None:
        """Use the present settings for the calls that follow, and set their time to 0."""
        self.settings = Settings.now()
        self._step = self.env.step
        self._ns = 0

    def reset(self, rollout: Rollout, config: None | dict[str, Any]) -> None:
        """Reset the environment, and open the rollout with its observations.

        Call it without gradients.
        """
        self._drop_graphs()
        self._switched = self._switch()
        with self._switched:
            obs = self.env.reset(config=config)
        rollout.open(obs)
        if rollout.unread:
            self._warn_of_unread(rollout)

    def carry(self, rollout: Rollout) -> None:
        """Start the rollout where the last one ended."""
        self._drop_graphs()
        self._switched = self._switch()
        rollout.carry()

    def reset_rows(self, rollout: Rollout, rows: torch.Tensor) -> None:
        """Reset some environments after `carry`; see `Env`.

        Args:
            rollout: The rollout.
            rows: Environments, bool `[N, 1]`.

        """
        with self._switched:
            obs = cast(Any, self.env).reset_rows(rows)
        rollout.reopen(rows, obs)

    @contextmanager
    def lending(self, rollout: Rollout) -> Iterator[None]:
        """Context in which the environment writes its rows into the rollout, if it can."""
        self._lent.offer(self.env, rollout)
        borrowed = self._lent.borrowed
        if borrowed is None:
            yield
            return
        self._write_into = borrowed.use
        try:
            yield
        finally:
            self._write_into = None
            borrowed.give_back()

    def step(self, rollout: Rollout, t: int, actions: Leaves) -> None:
        """Execute actions, and write what happened as row `t`; nothing is waited for on a device.

        Call it without gradients, in the settings in which `reset` or `carry` was called.

        Args:
            rollout: The rollout.
            t: Env step of the rollout.
            actions: Leaves of the actions, `[N, …]`.

        """
        action: torch.Tensor | TensorDict = rollout.action.unflatten(actions, [rollout.num_envs])
        if self._write_into is not None:
            self._write_into(t)
        start = time.perf_counter_ns()
        with self._switched:
            outcome = self._step(action)
        self._ns += time.perf_counter_ns() - start
        self._has_stepped = True
        if self._write_into is not None and self._lent.holds(t, outcome):
            return
        if rollout.write_outcome(t, outcome):
            detach_tensors(self.env)
        if rollout.unread:
            self._warn_of_unread(rollout)

    def _warn_of_unread(self, rollout: Rollout) -> None:
        """Log what the environment returns and nothing reads, once a class and name."""
        kind = type(self.env)
        names = sorted(rollout.unread - _unread.setdefault(kind, set()))
        rollout.unread.clear()
        _unread[kind].update(names)
        if names:
            _log.warning(
                "%s returns %s, which nothing reads. Return numbers to log from `metrics()`; what "
                "the policy observes is in `obs` and in `observation_spec`.",
                kind.__name__,
                ", ".join(f"`{name}`" for name in names),
            )

    def _switch(self) -> Switched:
        """Context with the caller's settings instead of the present ones."""
        return Switched(self.settings, Settings.now())

    def _drop_graphs(self) -> None:
        """Detach what the environment holds, if it holds graphs after its first rollout."""
        if self._holds_graphs is not False and self._has_stepped:
            self._holds_graphs = detach_tensors(self.env)

    def metrics(self) -> dict[str, float]:
        """See `read_metrics`."""
        with self._switch():
            return read_metrics(self.env)

    @property
    def statistics(self) -> dict[str, float]:
        """Milliseconds of all env steps, by name; nothing if a graph was replayed instead."""
        return {"profiling/env_ms": self._ns / 1e6} if self._ns else {}


def read_metrics(env: Any) -> dict[str, float]:
    """The environment's own metrics since the last call, as `env/<name>`; NaN is left out.

    Raises:
        EnvError: If `metrics` does not return numbers by name.

    """
    metrics = getattr(env, "metrics", None)
    if not callable(metrics):
        return {}
    found = metrics()
    if not isinstance(found, Mapping):
        raise EnvError(
            f"`{type(env).__name__}.metrics` must return a mapping of names to numbers; got "
            f"{type(found).__name__}."
        )
    numbers: dict[str, float] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, value in found.items():
        # Names that MLflow accepts; a rollout's own statistics keep theirs.
        key = "env/" + re.sub(r"[^\w\-./ :]", "_", str(name)).strip("/")
        key += "_" * (key in ("env/steps", "env/resets"))
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            tensors[key] = value.detach().reshape(())
            continue
        try:
            numbers[key] = float(value)
        except (TypeError, ValueError):
            what = list(value.shape) if isinstance(value, torch.Tensor) else repr(value)
            raise EnvError(
                f"`{type(env).__name__}.metrics` must return a number, or a tensor of one element, "
                f"for each name; got {what} for {name!r}."
            ) from None
    numbers |= to_floats(tensors) if tensors else {}  # one sync a rollout
    return {name: value for name, value in numbers.items() if value == value}
