"""Rules of hyperparameters that types cannot say: of devices, optimizers and schedules.

Each function returns the problems that it has found, one message each.
"""

import inspect
import math
import traceback
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn, optim

from ..errors import ConfigError
from ..schedulers import MOST, described, value_of
from .shown import named
from .validation import binds, signature_of


def device_problems(name: torch.device | str, *, needs_graphs: bool) -> list[str]:
    """A device that is unknown or not available, or cannot record CUDA graphs if it must."""
    if name == "auto":
        return []
    try:
        device = torch.device(name)
    except RuntimeError:
        return [f"`device` expected 'auto' or a device such as 'cpu' or 'cuda:0'; got {name!r}."]
    if device.type == "cpu" and device.index:
        return [f"`device` {device} is not available: a CPU is one device. Write 'cpu'."]
    if device.type == "meta":
        return ["`device` meta has no memory, so nothing can be trained there. Try 'cpu'."]
    if needs_graphs and device.type != "cuda":
        return [no_graphs_on(device)]
    count = torch.cuda.device_count()
    if device.type == "cuda":
        missing = (device.index or 0) >= count
        message = f"`device` {device} is not available: PyTorch sees {count} CUDA devices."
        return [message] if missing else []
    try:
        torch.empty(0, device=device)
    except Exception as error:  # each backend raises its own
        reason = str(error).splitlines()[0].split(". ")[0].removesuffix(".")
        return [f"`device` {device} cannot be used: {reason}. Try 'cpu' or 'auto'."]
    return []


def check_device(device: torch.device | str) -> None:
    """Raise a ConfigError if there is no such device for an environment."""
    problems = device_problems(device, needs_graphs=False)
    if device == "auto":
        problems = ["`device` of an environment is one such as 'cpu' or 'cuda:0'; got 'auto'."]
    if problems:
        raise ConfigError(problems)


def add_on_problems(add_ons: Sequence[Any]) -> list[str]:
    """Added terms of a loss that cannot be called, or whose names are not those of statistics."""
    key = "`policy_loss_addons`"
    terms = [x for x in add_ons if callable(x) and not isinstance(x, type)]
    problems = term_problems("policy_loss_addons", terms)
    for each in add_ons:
        if isinstance(each, type):
            problems.append(
                f"{key} expected objects; got the class {named(each)}. Write `{named(each)}()`."
            )
        elif not callable(each):
            problems.append(
                f"{key} expected objects that are called with minibatch, distribution and values; "
                f"got {named(each)}. See `everstep.objectives.LossAddOn`."
            )
        elif not binds(signature := signature_of(each), None, None, None):
            problems.append(
                f"{key} are called with minibatch, distribution and values; got {named(each)}, "
                f"which takes {signature}. Give it three arguments."
            )
    return problems


#: Names of terms that are Everstep's own.
_OWN_TERMS = ("total", "symmetry")


def term_problems(key: str, terms: Sequence[Any]) -> list[str]:
    """Terms of a loss without a name of their own: it is that of their statistic."""
    names, problems = [getattr(term, "name", None) for term in terms], []
    for term, name in zip(terms, names, strict=True):
        if not isinstance(name, str) or not name.strip() or name in _OWN_TERMS:
            got = f"`name = {name!r}`" if hasattr(term, "name") else "no `name`"
            problems.append(
                f"`{key}`: {named(term)} needs a name, for its statistic `losses/<name>`, other "
                f"than 'total' and 'symmetry'; got {got}. Set an attribute: `name = \"my_term\"`."
            )
    if not problems and len({*names}) < len(names):
        problems.append(f"`{key}` must have different names; got {', '.join(map(str, names))}.")
    return problems


#: Rows of a rollout; one of 268 million takes more than 10 GB.
MAX_ROWS = 2**28


def rollout_problems(num_envs: int, horizon: int) -> list[str]:
    """A rollout that no memory holds."""
    if num_envs * horizon <= MAX_ROWS:
        return []
    return [
        f"`horizon` times `num_envs` are the rows of a rollout, at most {MAX_ROWS:,}; got "
        f"{horizon:,} times {num_envs:,}. Lower one of them."
    ]


def compile_problems(backend: bool | str) -> list[str]:
    """A backend that `torch.compile` does not know."""
    if isinstance(backend, bool):
        return []
    known = torch.compiler.list_backends(exclude_tags=())
    if backend in known:
        return []
    expected = f"`compile` must be true, false or a backend of PyTorch ({', '.join(known)})"
    return [f"{expected}; got {backend!r}."]


def no_graphs_on(device: torch.device) -> str:
    """Message for CUDA graphs on another device."""
    return f"`cuda_graphs` True needs a CUDA device; got `device` {device}. Set it to 'auto'."


def optimizer_problems(
    optimizer_cls: type[optim.Optimizer],
    options: dict[str, Any],
    rates: dict[str, float],
    *,
    has_schedule: bool,
) -> list[str]:
    """Options that the optimizer refuses; an optimizer of a single number costs nothing.

    Args:
        optimizer_cls: Optimizer class.
        options: Its keyword arguments.
        rates: Learning rates `lr_pi` and `lr_v`.
        has_schedule: Whether a schedule sets the learning rate.

    """
    problems = _number_problems(optimizer_cls, {**options, **rates})
    if problems:
        return problems
    if rates and has_schedule:
        problems.append(
            f"`optimizer_config` has {' and '.join(rates)}, and `lr_schedule` sets one "
            "learning rate for all parameters: drop one of them."
        )
    for rate in (options.get("lr"), *rates.values()):
        chosen = {**options, **({} if rate is None else {"lr": rate})}
        name = optimizer_cls.__name__
        weight = nn.Parameter(torch.zeros(1))
        try:
            optimizer_cls([weight], **chosen)
        except Exception as error:  # each checks its options in its own way
            return [*problems, f"`optimizer_config`: invalid option for {name}: {error}."]
        weight.grad = torch.zeros(1)
        chosen.pop("capturable", None)  # on a GPU only
        try:
            optimizer_cls([weight], **chosen).step()
        except Exception as error:  # it needs a closure, sparse gradients, or matrices
            frames = traceback.extract_tb(error.__traceback__)
            if frames[-1].name == "is_current_stream_capturing":
                return problems  # asked a driver that is not there whether a graph is captured
            reason = " ".join(str(error).split()).removesuffix(".")
            return [
                *problems,
                f"`optimizer_cls` {name} cannot take a step here: {reason}. Try Adam.",
            ]
    return problems


def _number_problems(optimizer_cls: Callable[..., Any], options: dict[str, Any]) -> list[str]:
    """Options that must be numbers, because their defaults are, and are not."""
    defaults = {k: p.default for k, p in inspect.signature(optimizer_cls).parameters.items()}
    rate = defaults.get("lr") if _is_number(defaults.get("lr")) else 1e-3
    defaults |= {"lr": rate, "lr_pi": rate, "lr_v": rate}
    problems = []
    for name, value in options.items():
        default = defaults.get(name)
        if _is_number(default):
            most = max(1000, abs(cast(float, default)))
            expected, fits = "a number", _is_number(value)
            if fits and not isinstance(value, torch.Tensor) and most < abs(value) < math.inf:
                expected, fits = f"a number of at most {most:g}", False
        elif isinstance(default, tuple) and all(map(_is_number, default)):
            default, expected = list(default), f"a list of {len(default)} numbers"
            fits = isinstance(value, list | tuple) and len(value) == len(default)
            fits = fits and all(map(_is_number, value))
        else:
            continue
        if not fits and (value is not None or name in ("lr", "lr_pi", "lr_v")):
            problems.append(
                f"`optimizer_config` {name} must be {expected}; got {value!r}. Try {default}."
            )
    return problems


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | torch.Tensor) and not isinstance(value, bool)


#: Fractions of the budget that functions are tried with before a training.
_TRIED = (1.0, 0.5, 0.0)


def schedule_problems(name: str, schedule: Any) -> list[str]:
    """Points that do not start at 0 or count upwards, and values out of range.

    Args:
        name: What the schedule sets, a key of `MOST`.
        schedule: The schedule.

    """
    if schedule is None or isinstance(schedule, str):
        return []
    if callable(schedule):
        if isinstance(schedule, type) or not binds(signature_of(schedule), 1.0):
            return [
                f"`{name}_schedule` (or `{name}`) must be a function of one number, the fraction "
                f"of the budget that is left; got {described(schedule)}. Try `lambda left: 3e-4 * "
                "left`."
            ]
        try:
            for left in _TRIED:
                value_of(name, schedule, left)
        except ConfigError as error:
            return list(error.problems)
        return []
    return point_problems(f"{name}_schedule", schedule, MOST[name])


def point_problems(name: str, schedule: Any, most: float) -> list[str]:
    """`schedule_problems` of the points of hyperparameter `name`, whose values are up to `most`."""
    counts = [count for count, _ in schedule]
    broken = {
        f"start at 0 env steps; got {schedule!r}": counts[:1] != [0],
        f"count env steps upwards; got {counts}": counts != sorted(set(counts)),
        f"not be negative; got {schedule!r}": any(value < 0 for _, value in schedule),
        f"not exceed {most:g}; got {schedule!r}": any(value > most for _, value in schedule),
    }
    return [f"`{name}` must {rule}." for rule, is_broken in broken.items() if is_broken]
