"""LSTM and GRU natively: products of matrices by PyTorch, what is between them by the library.

A model is called as it is: while a rollout is collected and while an update runs, its `nn.LSTM` and
`nn.GRU` compute natively what they compute otherwise, differentiably. Episodes that start inside of
sequences reset states inside of one call, where the model is known to have no other states.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn
from torch.autograd import forward_ad

from ...policies import RecurrentPolicy
from .library import Cells, Library, library

#: Modules whose steps the library has.
LAYERS = (nn.LSTM, nn.GRU)

_Module = TypeVar("_Module", bound=nn.RNNBase)

#: Numbers of gates that are computed together, of all steps of some sequences, and the fewest of
#: these.
TILE, LEAST_ROWS = 2**20, 128

#: What a layer has trained: weights [G·H, D] and [G·H, H] and biases [G·H] of inputs and states.
_Weights = tuple[torch.Tensor, torch.Tensor, None | torch.Tensor, None | torch.Tensor]


def against_layer(module: nn.RNNBase) -> Iterator[str]:
    """Reasons why a recurrent layer is not computed natively."""
    name = type(module).__name__
    if "forward" in vars(module):
        yield f"`{name}.forward` is overridden or patched"
    if module.bidirectional or module.proj_size:
        yield f"{name} is bidirectional, or has projections"
    if module.dropout and module.num_layers > 1:
        yield f"{name} has dropout between its layers"
    for weight in module._flat_weights:
        if weight is None or weight.dtype not in (torch.float32, torch.float64):
            yield f"weights of {name} are not in float32 or float64"


class Recurrence:
    """The recurrent layers of a policy, natively.

    Args:
        policy: The policy.
        layers: Layers of its model without a reason against them.
        resets: Whether the model has no states but those of its layers, which begin as zeros.

    """

    def __init__(
        self, policy: RecurrentPolicy, layers: Sequence[nn.RNNBase], *, resets: bool
    ) -> None:
        self._policy, self._layers, self._resets = policy, layers, resets
        #: Where states are reset, uint8 `[T, B]`; None for nowhere.
        self.first: None | torch.Tensor = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """In the block the layers compute natively."""
        found = library()
        assert isinstance(found, Library)
        try:
            for module in self._layers:
                module.forward = _Forward(module, self, found)
            if self._resets:
                self._policy.resetting = self.resetting
            yield
        finally:
            self._policy.resetting = None
            for module in self._layers:
                vars(module).pop("forward", None)

    def resetting(self, first: torch.Tensor) -> None | AbstractContextManager[None]:
        """Context in which layers set states to 0 before the marked steps of sequences.

        Args:
            first: Steps that begin an episode, bool `[B, T, 1]`. A sequence's first step uses the
                given states all the same.

        Returns:
            The context; None if calls are traced or transformed now, which it does not support.

        """
        return None if _is_watched() else self._resetting(first)

    @contextmanager
    def _resetting(self, first: torch.Tensor) -> Iterator[None]:
        self.first = first.squeeze(-1).t().contiguous().view(torch.uint8)
        try:
            yield
        finally:
            self.first = None


class _Forward(Generic[_Module]):
    """Computes an `nn.LSTM` or `nn.GRU`, in place of its `forward`."""

    def __init__(self, module: _Module, recurrence: Recurrence, native: Library) -> None:
        self._module, self._recurrence, self._library = module, recurrence, native
        self._is_gru = isinstance(module, nn.GRU)

    def __call__(self, input: Any, hx: Any = None) -> Any:
        """See `nn.LSTM` and `nn.GRU`."""
        module, first = self._module, self._recurrence.first
        states = (hx,) if self._is_gru and hx is not None else hx
        if not self._fits(input, states):
            assert first is None  # models whose states are reset inside of sequences always fit
            return type(module).forward(module, input, hx)
        x = input if module.batch_first else input.transpose(0, 1)
        if states is None:
            zeros = x.new_zeros(module.num_layers, len(x), module.hidden_size)
            states = (zeros,) * (2 - self._is_gru)
        after = []
        size = len(module._flat_weights) // module.num_layers
        for i in range(module.num_layers):
            weights: Any = (*module._flat_weights[i * size : (i + 1) * size], None, None)[:4]
            sequences = _Sequences(self._library, self._is_gru, first)
            x, *last = sequences(x, [state[i] for state in states], weights)
            after.append(last)
        ends = tuple(torch.stack(each) for each in zip(*after, strict=True))
        latents = x if module.batch_first else x.transpose(0, 1)
        return latents, ends[0] if self._is_gru else ends

    def _fits(self, x: Any, states: Any) -> bool:
        """Whether these arguments are computed natively, and where."""
        module = self._module
        dtype = module._flat_weights[0].dtype  # type: ignore[union-attr]
        if type(x) is not torch.Tensor or x.dim() != 3 or x.dtype is not dtype:
            return False
        rows, steps = x.shape[:2] if module.batch_first else (x.shape[1], x.shape[0])
        shape = module.num_layers, rows, module.hidden_size
        tensors = [*(states or ()), *module._flat_weights]
        return (
            steps > 0
            and x.shape[2] == module.input_size
            and all(state.shape == shape for state in states or ())
            and len(states or (0,) * (2 - self._is_gru)) == 2 - self._is_gru
            and all(y.dtype is dtype and y.device.type == "cpu" for y in (x, *tensors))
            and not _is_watched()
        )


def _is_watched() -> bool:
    """Whether operations are traced, transformed or cast rather than done."""
    return (
        torch._C._is_any_autocast_enabled()
        or torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    )


class _Kept(NamedTuple):
    """Numbers that the derivatives of a tile's steps need, time first."""

    gates: torch.Tensor
    hidden: torch.Tensor
    cell: None | torch.Tensor
    kept: None | torch.Tensor


class _Sequences:
    """One layer over a batch of sequences.

    Args:
        library: The library.
        is_gru: Whether it is a GRU rather than an LSTM.
        first: Where states are zeros, uint8 `[T, B]`; see `Recurrence.first`.

    """

    def __init__(self, native: Library, is_gru: bool, first: None | torch.Tensor) -> None:
        self.library, self.is_gru, self.first = native, is_gru, first

    def __call__(
        self, x: torch.Tensor, states: Sequence[torch.Tensor], weights: _Weights
    ) -> tuple[torch.Tensor, ...]:
        """Latents `[B, T, H]` and the states `[B, H]` after the sequences.

        Args:
            x: Inputs `[B, T, D]`.
            states: States before the sequences: the hidden one, and an LSTM's cell.
            weights: Of the layer.

        """
        tensors = (x, *states, *weights)
        if torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in tensors):
            found: tuple[torch.Tensor, ...] = _Differentiable.apply(self, *tensors)  # type: ignore[no-untyped-call]
            return found
        return self.forward(x, states, weights, keeps=False)[0]

    def forward(
        self, x: torch.Tensor, states: Sequence[torch.Tensor], weights: _Weights, *, keeps: bool
    ) -> tuple[tuple[torch.Tensor, ...], list[_Kept]]:
        """Results, and what the derivatives of each tile need if that is to be kept."""
        rows, steps, _ = x.shape
        size = weights[1].shape[1]
        latents = x.new_empty(rows, steps, size)
        ends = tuple(x.new_empty(rows, size) for _ in states)
        kept = [
            self._forward(
                *(x[tile], [state[tile] for state in states], weights),
                *(latents[tile], [end[tile] for end in ends], tile),
                keeps=keeps,
            )
            for tile in self._tiles(rows, steps, weights)
        ]
        return (latents, *ends), kept

    def _forward(
        self,
        x: torch.Tensor,
        states: Sequence[torch.Tensor],
        weights: _Weights,
        latents: torch.Tensor,
        ends: Sequence[torch.Tensor],
        tile: slice,
        *,
        keeps: bool,
    ) -> _Kept:
        """Write results of a tile; what their derivatives need."""
        rows, steps, size = latents.shape
        for_inputs, for_states, bias, state_bias = weights
        if not self.is_gru and bias is not None and state_bias is not None:
            bias = bias + state_bias  # one sum: an LSTM's gates are sums of both
        gates = _linear(_time_first(x), for_inputs, bias).view(steps, rows, len(for_inputs))
        hidden, *cells = (y.new_empty(steps + 1, rows, size) for y in states)
        for y, state in zip((hidden, *cells), states, strict=True):
            y[0] = state
        cell = cells[0] if cells else None
        inner = x.new_empty(rows, 3 * size) if self.is_gru else None
        kept = x.new_empty(steps, rows, size) if keeps else None
        structure = self._structure(
            *(gates, tile), inner=inner, hidden=hidden, cell=cell, kept=kept, latents=latents
        )
        address, transposed = ctypes.addressof(structure), for_states.t()
        for t, (sums, state) in enumerate(zip(gates.unbind(), hidden.unbind(), strict=False)):
            if inner is None:
                sums.addmm_(state, transposed)
            elif state_bias is None:
                torch.mm(state, transposed, out=inner)
            else:
                torch.addmm(state_bias, state, transposed, out=inner)
            self.library.cells_forward(address, t)
        for end, y in zip(ends, (hidden, *cells), strict=True):
            end.copy_(y[-1])
        return _Kept(gates, hidden, cell, kept)

    def backward(
        self,
        kept: Sequence[_Kept],
        x: torch.Tensor,
        weights: _Weights,
        d_latents: None | torch.Tensor,
        d_states: Sequence[None | torch.Tensor],
        needed: Sequence[bool],
    ) -> list[None | torch.Tensor]:
        """Derivatives by inputs, states and weights, from those by the results.

        Args:
            kept: What `forward` kept.
            x: Inputs `[B, T, D]`.
            weights: Of the layer.
            d_latents: Derivative by the latents, `[B, T, H]`; None for zeros.
            d_states: Derivatives by the last states, `[B, H]`; None for zeros.
            needed: Which derivatives are needed, of those that are returned.

        """
        rows, steps, _ = x.shape
        d_weights = [None if w is None else torch.zeros_like(w) for w in weights]
        # Of few inputs the transpose: MKL takes ten times as long for the other one.
        d_weights[0] = torch.zeros_like(weights[0].t())
        dx = torch.empty_like(x) if needed[0] else None
        like = x.new_zeros(rows, weights[1].shape[1])
        d_before = [torch.zeros_like(like) if d is None else d.clone() for d in d_states]
        d_latents = None if d_latents is None else d_latents.contiguous()
        for tile, each in zip(self._tiles(rows, steps, weights), kept, strict=True):
            self._backward(
                *(each, x[tile], weights, None if d_latents is None else d_latents[tile]),
                *([d[tile] for d in d_before], d_weights, None if dx is None else dx[tile], tile),
                needs_states=any(needed[1:-4]),
            )
        of_inputs, *others = d_weights
        assert of_inputs is not None
        return [dx, *d_before, of_inputs.t(), *others]

    def _backward(
        self,
        kept: _Kept,
        x: torch.Tensor,
        weights: _Weights,
        d_latents: None | torch.Tensor,
        d_states: Sequence[torch.Tensor],
        d_weights: Sequence[None | torch.Tensor],
        dx: None | torch.Tensor,
        tile: slice,
        *,
        needs_states: bool,
    ) -> None:
        """Write a tile's derivatives by inputs and states, and add those by weights."""
        for_inputs, for_states, _, _ = weights
        d_hidden, *d_cells = d_states
        d_gates = torch.empty_like(kept.gates)
        d_inner = torch.empty_like(kept.gates) if self.is_gru else None
        structure = self._structure(
            *(kept.gates, tile),
            hidden=kept.hidden,
            cell=kept.cell,
            kept=kept.kept,
            d_latents=d_latents,
            d_gates=d_gates,
            d_inner=d_inner,
            d_hidden=d_hidden,
            d_cell=d_cells[0] if d_cells else None,
        )
        address, by_state = ctypes.addressof(structure), d_gates if d_inner is None else d_inner
        for t in range(len(d_gates) - 1, -1, -1):
            self.library.cells_backward(address, t)
            if t or needs_states:
                # An LSTM's state is in its sums alone; a GRU's has its own way, too.
                d_hidden.addmm_(by_state[t], for_states, beta=int(self.is_gru))
        d_gates, by_state = d_gates.flatten(0, 1), by_state.flatten(0, 1)
        if dx is not None:
            products = (d_gates @ for_inputs).view(*dx.transpose(0, 1).shape)
            dx.copy_(products.transpose(0, 1))
        of_inputs, of_states, bias, state_bias = d_weights
        assert of_inputs is not None
        assert of_states is not None
        of_inputs.addmm_(_time_first(x).t(), d_gates)
        of_states.addmm_(by_state.t(), kept.hidden[:-1].flatten(0, 1))
        if bias is not None:
            bias.add_(d_gates.sum(0))
        if state_bias is not None:
            state_bias.add_(by_state.sum(0))

    def _tiles(self, rows: int, steps: int, weights: _Weights) -> list[slice]:
        """Rows whose numbers are computed together: as many as stay in a cache."""
        numbers = steps * len(weights[1])
        size = max(LEAST_ROWS, TILE // numbers) if numbers * rows > TILE else max(rows, 1)
        return [slice(start, min(start + size, rows)) for start in range(0, max(rows, 1), size)]

    def general(
        self, x: torch.Tensor, states: Sequence[torch.Tensor], weights: _Weights
    ) -> tuple[torch.Tensor, ...]:
        """Results by operations of PyTorch, which can be differentiated more than once."""
        for_inputs, for_states, bias, state_bias = weights
        latents = []
        for t in range(x.shape[1]):
            if t and self.first is not None:
                is_first = self.first[t].bool().unsqueeze(1)
                states = [torch.where(is_first, 0.0, state) for state in states]
            by_input = nn.functional.linear(x[:, t], for_inputs, bias)
            by_state = nn.functional.linear(states[0], for_states, state_bias)
            if self.is_gru:
                (r, z, n), (hr, hz, hn) = by_input.chunk(3, 1), by_state.chunk(3, 1)
                n, z = (n + (r + hr).sigmoid() * hn).tanh(), (z + hz).sigmoid()
                states = [(1 - z) * n + z * states[0]]
            else:
                i, f, g, o = (by_input + by_state).chunk(4, 1)
                cell = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
                states = [o.sigmoid() * cell.tanh(), cell]
            latents.append(states[0])
        return (torch.stack(latents, 1), *states)

    def _structure(self, gates: torch.Tensor, tile: slice, **tensors: None | torch.Tensor) -> Any:
        """The `Cells` of these tensors, which must stay."""
        steps, rows, width = gates.shape
        found = Cells(
            is_double=gates.dtype is torch.float64,
            is_gru=self.is_gru,
            threads=torch.get_num_threads(),
            steps=steps,
            rows=rows,
            size=width // (3 if self.is_gru else 4),
        )
        first = None if self.first is None else self.first[:, tile].contiguous()
        tensors |= {"gates": gates, "first": first}
        for name, tensor in tensors.items():
            if tensor is not None:
                assert tensor.is_contiguous()
                setattr(found, name, tensor.data_ptr())
        found.tensors = tensors
        return found


class _Differentiable(torch.autograd.Function):
    """`_Sequences` for autograd."""

    @staticmethod
    def forward(ctx: Any, sequences: _Sequences, *tensors: Any) -> Any:
        ctx.sequences, ctx.count = sequences, len(tensors)
        x, states, weights = tensors[0], tensors[1:-4], tensors[-4:]
        results, kept = sequences.forward(x, states, weights, keeps=True)
        ctx.save_for_backward(*tensors, *(y for each in kept for y in each))
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, d_latents: Any, *d_states: Any) -> Any:
        sequences, saved = ctx.sequences, ctx.saved_tensors
        tensors, kept = saved[: ctx.count], saved[ctx.count :]
        x, states, weights = tensors[0], tensors[1:-4], tensors[-4:]
        needed = ctx.needs_input_grad[1:]
        if not torch.is_grad_enabled():
            tiles = [_Kept(*kept[i : i + 4]) for i in range(0, len(kept), 4)]
            found = sequences.backward(tiles, x, weights, d_latents, d_states, needed)
            return None, *found
        # These derivatives are to be differentiated.
        pairs = zip(sequences.general(x, states, weights), (d_latents, *d_states), strict=True)
        results, given = zip(*((y, d) for y, d in pairs if d is not None), strict=True)
        wanted = [y for y, needs in zip(tensors, needed, strict=True) if needs]
        each = torch.autograd.grad(results, wanted, given, create_graph=True, allow_unused=True)
        by_need = iter(each)
        return None, *(next(by_need) if needs else None for needs in needed)


def _time_first(x: torch.Tensor) -> torch.Tensor:
    """Rows `[T·B, D]` of `[B, T, D]`."""
    return x.transpose(0, 1).flatten(0, 1)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: None | torch.Tensor) -> torch.Tensor:
    return x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())
