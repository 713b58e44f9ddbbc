"""Actions for observations as environments return them, outside of training.

Each call runs a copy of the model's modules in eval mode, which shares parameters and buffers: the
policy may be trained, or act in other threads, at the same time.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase
from torch import nn

from ..distributions._base import share_facts
from ..env.formats import ObservationFormat, check_held, numpy_dtype
from ..env.limits import Limit
from ..env.specs import Leaves, Structure
from ._core import PolicyCore
from ._windows import extended, past_structure, without

P = TypeVar("P", bound=PolicyCore[Any])

#: Kinds of dtypes: a value's may not be above that of its spec.
_RANKS = {"b": 0, "u": 1, "i": 1, "f": 2}


@torch.no_grad()
def predict(
    policy: PolicyCore[Any],
    obs: Any,
    state: None | Sequence[Any],
    episode_start: Any,
    *,
    deterministic: bool,
) -> tuple[Any, None | Leaves]:
    """Actions and the next state; see `Policy.predict`."""
    acting = _eval_copy_of(policy)
    leaves, is_single, home = _read(acting, obs, policy.device)
    past = past_structure(acting._observation, acting.history)
    windows: Leaves = leaves
    states: Leaves = ()
    starts = _starts(episode_start, len(leaves[0]))
    if acting.memory.paths:
        windows, states = _before(acting, past, leaves, state, starts)
    elif state is not None:
        raise ValueError(
            f"`state` must be None, as this {type(policy).__name__} has no state; got a "
            f"{type(state).__name__}. Pass on what `predict` returned."
        )
    distribution, _, states = acting._respond(windows, states)
    latents = distribution.latents(deterministic=deterministic)
    chosen = acting._action.flatten(distribution.actions(latents))
    actions = _write(acting, chosen, is_single, home)
    if not acting.memory.paths:
        return actions, None
    kept = tuple(window[:, 1:] for window in windows) if past.paths else ()
    return actions, (*kept, *states)


# ---- observations --------------------------------------------------------------------------------


def _read(
    policy: PolicyCore[Any], obs: Any, device: torch.device
) -> tuple[Leaves, bool, None | torch.device]:
    """Leaves `[N, …]`, whether that is a single observation, and the device of a tensor's."""
    structure, home = policy._observation, None
    found: list[torch.Tensor] = []
    counts: dict[str, None | int] = {}
    seen = acted_on(policy)
    is_nested = isinstance(obs, Mapping | TensorDictBase | tuple)
    # One leaf of several may be all that is observed: it is taken from the others, or alone.
    is_alone = not is_nested and (structure.is_plain or sum(seen) == 1)
    for form, (_, shape, dtype), is_seen, limit in zip(
        policy.env_format.observation,
        structure.leaves(),
        seen,
        policy.observation_limits,
        strict=True,
    ):
        if not is_seen:
            found.append(torch.zeros(1, *shape, dtype=dtype, device=device))
            continue
        name = "obs" + "".join(f"[{index!r}]" for index in form.path)
        value = obs if is_alone else _pick(obs, form.path, name)
        if isinstance(value, torch.Tensor):
            home = value.device
        tensor = read_leaf(value, form, shape, dtype, limit, name)
        count = counts[name] = _count(tensor.shape, form.shape, shape, dtype, name)
        rows = 1 if count is None else count
        found.append(tensor.reshape(rows, *shape).to(device))
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{n}: {'one' if c is None else c}" for n, c in counts.items())
        raise ValueError(
            "All entries of `obs` must be those of one observation, or of a batch of the same "
            f"size; got {listed}."
        )
    if len(counts) < len(found):
        found = [x.expand(max(map(len, found)), *x.shape[1:]) for x in found]
    return tuple(found), None in counts.values(), home


def read_leaf(
    value: Any,
    form: ObservationFormat,
    shape: torch.Size,
    dtype: torch.dtype,
    limit: None | Limit,
    name: str,
) -> torch.Tensor:
    """One leaf of observations, as everything that is not an environment's step reads it.

    Args:
        value: Number, list, array or tensor, as the environment's library has them.
        form: The leaf as that library has it.
        shape: Shape of one observation in the spec; the value's is the caller's to check.
        dtype: Dtype of the spec.
        limit: Its choices, or bounds; None for neither.
        name: Name in errors, such as `obs['camera']`.

    Returns:
        A tensor of that dtype, of choices that count from 0; it may share the value's memory.

    Raises:
        ValueError: If the dtype is of a larger kind, integers cannot hold the numbers, one in
            host memory is not finite, or a choice does not exist.

    """
    tensor = read_numbers(value, dtype, name, form)
    if limit is not None and limit.is_choice:
        _check_choices(tensor, limit, name, shape)
    # Of host memory: on a GPU it would wait. Training refuses such numbers.
    if dtype.is_floating_point and tensor.is_cpu and not bool(tensor.isfinite().all()):
        wrong = tensor[~tensor.isfinite()]
        raise ValueError(
            f"`{name}` must be finite, as in training; got {wrong[0].item()} ({len(wrong)} of "
            f"{tensor.numel()} numbers). Fix the environment, or bound what it returns."
        )
    return tensor


def read_numbers(
    value: Any, dtype: torch.dtype, name: str, form: None | ObservationFormat = None
) -> torch.Tensor:
    """Numbers of any library as a tensor of `dtype`; it may share the value's memory.

    Args:
        value: Number, list, array or tensor.
        dtype: Dtype of the tensor.
        name: Name in errors, such as `state[0]`.
        form: The leaf as the environment's library has it; None if it counts from 0.

    Raises:
        ValueError: If there are no such numbers in it.

    """
    form = form or ObservationFormat((), ())
    read = _from_torch if isinstance(value, torch.Tensor) else _from_numpy
    return read(value, form, dtype, name)


def acted_on(policy: PolicyCore[Any]) -> tuple[bool, ...]:
    """Whether actions depend on each leaf of the observation; else values alone do."""
    paths = getattr(policy.model, "actor_paths", None)
    return tuple(paths is None or path in paths for path in policy._observation.paths)


def _pick(obs: Any, path: tuple[str | int, ...], name: str) -> Any:
    """The value at the indices `path`."""
    value = obs
    try:
        for index in path:
            value = value[str(index) if isinstance(value, TensorDictBase) else index]
    except (LookupError, TypeError) as error:
        has_keys = hasattr(value, "keys")
        received = f"the keys {sorted(value.keys())}" if has_keys else type(value).__name__
        raise ValueError(
            f"`{name}` is missing: observations are nested as the environment's are. At "
            f"{index!r} there is {received}."
        ) from error
    return value


def _from_numpy(value: Any, form: ObservationFormat, dtype: torch.dtype, name: str) -> torch.Tensor:
    """See `read_leaf`."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"`{name}` cannot be an array: {error}") from None
    target = numpy_dtype(dtype)
    _check_kind(array.dtype.kind, array.dtype, target, type(value), name)
    if form.start is not None:
        array = np.asarray(array - form.start)
    check_held(array, target, name, ValueError)
    with np.errstate(over="ignore"):  # what overflows is infinite, and refused as such
        array = array.astype(target, copy=False)
    if not (array.flags.writeable and array.flags.c_contiguous):
        array = array.copy()  # PyTorch takes no negative strides, and warns of read-only memory
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def _from_torch(
    value: torch.Tensor, form: ObservationFormat, dtype: torch.dtype, name: str
) -> torch.Tensor:
    """See `read_leaf`."""
    if value.is_meta or value.is_nested or value.layout is not torch.strided:
        received = "on the device meta" if value.is_meta else "nested or sparse"
        raise ValueError(
            f"`{name}` must be a tensor that holds all its numbers; got one that is {received}. "
            "Give a dense one, such as an environment computes."
        )
    is_real, is_flag = value.is_floating_point(), value.dtype is torch.bool
    kind = "c" if value.is_complex() else "f" if is_real else "b" if is_flag else "i"
    _check_kind(kind, value.dtype, numpy_dtype(dtype), type(value), name)
    counted = form.from_zero(value.detach())
    if counted.dtype is not dtype and not dtype.is_floating_point:
        check_held(counted.numpy(force=True), numpy_dtype(dtype), name, ValueError)
    return counted.to(dtype)


def _check_choices(values: torch.Tensor, limit: Limit, name: str, shape: torch.Size) -> None:
    """Raise if a choice does not exist. Choices that are on a GPU are copied to the host."""
    if values.numel() % max(1, shape.numel()):
        return  # the shape is wrong
    rows = values.cpu().reshape(-1, *shape)
    bad = limit.beyond(rows).flatten(1).any(-1).nonzero()
    if len(bad):
        row = int(bad[0])
        raise ValueError(f"`{name}` of row {row} is {limit.describe(rows[row])}.")


def _check_kind(kind: str, received: Any, target: np.dtype[Any], cls: type, name: str) -> None:
    if _RANKS.get(kind, 3) > _RANKS[target.kind]:
        raise ValueError(
            f"`{name}` must have the dtype {target} or one of a smaller kind (bool, then integers, "
            f"then floating point); got {received} ({cls.__name__})."
        )


def _count(
    received: torch.Size,
    own: tuple[int, ...],
    shape: torch.Size,
    dtype: torch.dtype,
    name: str,
) -> None | int:
    """Number of rows of a batch; None for a single observation.

    Args:
        received: Shape of the value.
        own: Shape of one observation as the environment has it.
        shape: Shape of one observation in the spec.
        dtype: Dtype of the spec.
        name: Name in the error.

    """
    if received == own:
        return None
    if len(received) == len(own) + 1 and received[1:] == own:
        return received[0]
    if shape == (1,):  # a scalar with a dimension of its own
        if len(received) == 0:
            return None
        if len(received) == 2 and received[1] == 1:
            return received[0]
        if len(received) == 1 and not dtype.is_floating_point:
            return received[0]
    expected = ", ".join(map(str, own))
    batch = f"[N, {expected}]" if own else "[N]"
    raise ValueError(
        f"`{name}` must have shape [{expected}], one observation, or {batch}, a batch; "
        f"got {list(received)}."
    )


# ---- actions -------------------------------------------------------------------------------------


def env_actions(policy: PolicyCore[Any], leaves: Leaves) -> Leaves:
    """Actions `[N, …]` as the environment takes them, of leaves `[…, *shape]` of a policy's."""
    return tuple(
        form.to_torch(leaf.reshape(-1, *form.choices))
        for leaf, form in zip(leaves, policy.env_format.action, strict=True)
    )


def _write(
    policy: PolicyCore[Any], leaves: Leaves, is_single: bool, home: None | torch.device
) -> Any:
    """Actions as the environment takes them, as tensors on `home` or as arrays."""
    written: list[Any] = []
    for leaf, form in zip(leaves, policy.env_format.action, strict=True):
        values = leaf.reshape(len(leaf), *form.choices)
        if home is None:
            half = values.dtype is torch.bfloat16  # NumPy has none
            array = (values.float() if half else values).numpy(force=True)
            actions: Any = form.to_numpy(array)
        else:
            actions = form.to_torch(values).to(home)
        if is_single:
            # As Gymnasium has them: scalars of choices, which are hashable, and arrays of numbers.
            actions = actions[0, ...] if form.dtype.kind == "f" else actions[0]
        written.append(actions)
    structure = policy._action
    if home is None:
        return structure.nest(written)
    return structure.unflatten(tuple(written), [] if is_single else [len(leaves[0])])


# ---- state ---------------------------------------------------------------------------------------


def _before(
    policy: PolicyCore[Any],
    past: Structure,
    obs: Leaves,
    state: None | Sequence[Any],
    starts: npt.NDArray[np.bool_],
) -> tuple[Leaves, Leaves]:
    """Observations or windows `[N, …]`, and recurrent states `[N, …]` before them."""
    rows, device = len(obs[0]), obs[0].device
    if state is None:
        earlier = past.zeros(rows, device=device)
        states = policy.memory.flatten(policy.init_states(rows))
    else:
        stored = _read_state(state, past, policy.memory, rows, device)
        earlier, states = stored[: len(past.paths)], stored[len(past.paths) :]
        if starts.any():
            first = torch.from_numpy(starts).to(device)
            earlier, states = without(earlier, first), policy.next_states(states, first)
    return extended(earlier, obs), states


def _starts(episode_start: Any, rows: int) -> npt.NDArray[np.bool_]:
    """Whether each row begins an episode, `[N, 1]`."""
    if episode_start is None:
        return np.zeros((rows, 1), np.bool_)
    rule = f"`episode_start` must be one bool, or one for each of {rows} observations; got"
    try:
        flags = read_numbers(episode_start, torch.float32, "it").numpy(force=True)
    except ValueError as error:
        raise ValueError(f"{rule} {type(episode_start).__name__}: {error}") from None
    if flags.shape not in ((), (rows,), (rows, 1)):
        raise ValueError(f"{rule} {type(episode_start).__name__} of shape {list(flags.shape)}.")
    if (wrong := flags[(flags != 0) & (flags != 1)]).size:
        raise ValueError(f"{rule} the number {wrong[0]}. Pass `terminated | truncated`.")
    return np.broadcast_to(flags.reshape(-1, 1), (rows, 1)).astype(np.bool_)


def _read_state(
    state: Sequence[Any], past: Structure, memory: Structure, rows: int, device: torch.device
) -> Leaves:
    """Past observations and recurrent states `[N, …]`."""
    dtypes = (*past.dtypes, *memory.dtypes)
    expected = [[rows, *shape] for shape in (*past.shapes, *memory.shapes)]
    received: Any = type(state).__name__
    if isinstance(state, Sequence) and len(state) == len(dtypes):
        pairs = enumerate(zip(state, dtypes, strict=True))
        leaves = tuple(read_numbers(x, dtype, f"state[{i}]") for i, (x, dtype) in pairs)
        if any(leaf.is_cpu and bool(leaf.isnan().any()) for leaf in leaves):
            raise ValueError("`state` has NaN, which every later action would be computed from.")
        received = [list(leaf.shape) for leaf in leaves]
        if received == expected:
            return tuple(leaf.to(device) for leaf in leaves)
    elif isinstance(state, list | tuple):
        received = f"{received} of {len(state)}"
    raise ValueError(
        f"`state` must be what `predict` returned for {rows} observation(s): a tuple of "
        f"tensors of shapes {expected}; got {received}. Pass None where all episodes begin."
    )


# ---- the model -----------------------------------------------------------------------------------


def _eval_copy_of(policy: P) -> P:
    """The policy with a copy of its model in eval mode, and without what values alone need."""
    acting = object.__new__(type(policy))
    vars(acting).update(vars(policy), is_wired=False)  # nothing trains the copy
    acting.model, acting.critic = _eval_copy(policy.model, {}), None
    share_facts(acting.model, policy.model)
    if isinstance(policy._autocast, torch.autocast):
        # Contexts store what they restore, and the cache of casts is common to all threads.
        acting._autocast = torch.autocast(
            policy._autocast.device,
            policy._autocast.fast_dtype,
            policy._autocast._enabled,
            cache_enabled=False,
        )
    return acting


def _eval_copy(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """A copy of a module and its children in eval mode, with the same parameters and buffers.

    A microsecond a module, which is less than setting the mode and restoring it.
    """
    if module in done:
        return done[module]
    if isinstance(module, torch.jit.ScriptModule):  # its state is not in Python: copies weights too
        return deepcopy(module).eval()
    if type(module).__name__ == "OptimizedModule":  # what was compiled calls the original
        return _eval_copy(module._orig_mod, done)  # type: ignore[arg-type]
    copy = done[module] = object.__new__(type(module))
    attributes = vars(copy)
    attributes.update(vars(module))
    attributes.pop("_compiled_call_impl", None)
    attributes["training"] = False
    attributes["_buffers"] = dict(module._buffers)
    attributes["_modules"] = {
        name: None if child is None else _eval_copy(child, done)
        for name, child in module._modules.items()
    }
    return copy
