"""Views: the same as cutting out every row's window by hand."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from everstep.data import DataKeys
from everstep.views import (
    VIEWS,
    PaddedRollingWindow,
    RollingWindow,
    ViewRequirement,
    pad_last_sequence,
    pad_whole_sequence,
    rolling_window,
)

INPUTS, PADDING_MASK = DataKeys.INPUTS, DataKeys.PADDING_MASK

#: Batch, rows and window: one of each, windows of one row, of all rows, and longer ones.
SIZES = [(1, 1, 1), (3, 1, 1), (1, 5, 1), (2, 5, 3), (3, 4, 4), (2, 3, 5), (1, 1, 4), (4, 2, 2)]
FITTING = [(batch, length, size) for batch, length, size in SIZES if size <= length]

FEATURES: list[tuple[int, ...]] = [(), (1,), (2, 3)]
DTYPES = [torch.float32, torch.int64, torch.bool, torch.uint8]


def sequence(batch: int, length: int, *features: int, dtype: torch.dtype = torch.float32) -> Any:
    """Every element is one of its own, none is 0."""
    count = torch.Size([batch, length, *features]).numel()
    return (1 + torch.arange(count)).reshape(batch, length, *features).to(dtype)


# ---- the reference: one row's window at a time --------------------------------------------------


def window(x: torch.Tensor, row: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `size` rows of `x` `[T, …]` that end in `row`, and which of them there are not."""
    places = range(row - size + 1, row + 1)
    rows = [x[place] if place >= 0 else torch.zeros_like(x[0]) for place in places]
    return torch.stack(rows), torch.tensor([place < 0 for place in places])


def windows(x: torch.Tensor, rows: range, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of the given rows of every sequence, sequences first."""
    found = [window(x[i], row, size) for i in range(len(x)) for row in rows]
    inputs, masks = zip(*found, strict=True)
    return torch.stack(inputs), torch.stack(masks)


def same(found: Any, expected: torch.Tensor) -> None:
    assert isinstance(found, torch.Tensor)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def leaves(x: Any) -> dict[Any, torch.Tensor]:
    return {"": x} if isinstance(x, torch.Tensor) else dict(x.items(True, True))


def same_leaves(found: Any, expected: Any) -> None:
    """Whatever the batch sizes are: all windows are `[B·T]`, last ones `[B, size]`."""
    assert leaves(found).keys() == leaves(expected).keys()
    for name, leaf in leaves(found).items():
        same(leaf, leaves(expected)[name])


def same_padded(found: Any, expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    inputs, mask = expected
    assert set(found.keys()) == {INPUTS, PADDING_MASK}
    assert found.batch_size == mask.shape[: len(found.batch_size)]
    same(found[INPUTS], inputs)
    same(found[PADDING_MASK], mask)


# ---- tensors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize(("batch", "length", "size"), SIZES)
def test_padded_windows_row_by_row(
    batch: int, length: int, size: int, features: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = sequence(batch, length, *features, dtype=dtype)
    every = PaddedRollingWindow.apply_all(x, size)
    same_padded(every, windows(x, range(length), size))
    last = PaddedRollingWindow.apply_last(x, size)
    same_padded(last, windows(x, range(length - 1, length), size))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize(("batch", "length", "size"), FITTING)
def test_windows_row_by_row(
    batch: int, length: int, size: int, features: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = sequence(batch, length, *features, dtype=dtype)
    first = RollingWindow.drop_size(size)
    expected, mask = windows(x, range(first, length), size)
    assert not mask.any()
    same(RollingWindow.apply_all(x, size), expected)
    same(RollingWindow.apply_last(x, size), windows(x, range(length - 1, length), size)[0])


def test_the_last_rows_are_fewer_where_there_are_fewer() -> None:
    x = sequence(2, 3, 1)
    same(RollingWindow.apply_last(x, 5), x)
    assert RollingWindow.apply_last(TensorDict({"x": x}, [2, 3]), 5).batch_size == (2, 3)


def test_windows_longer_than_the_sequences_are_refused() -> None:
    x = sequence(2, 3, 1)
    for y in (x, TensorDict({"x": x}, [2, 3])):
        with pytest.raises(ValueError, match=r"length \(3 rows\); got 4"):
            RollingWindow.apply_all(y, 4)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_steps_between_windows(step: int) -> None:
    x = sequence(2, 7, 2)
    found = rolling_window(x, 3, step=step)
    assert found.shape == (2, (7 - 3) // step + 1, 3, 2)
    for i in range(found.shape[1]):
        same(found[:, i], x[:, i * step : i * step + 3])


def test_windows_share_the_sequences_memory() -> None:
    x = sequence(2, 7, 2)
    assert rolling_window(x, 3).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.parametrize(("batch", "length", "size"), SIZES)
def test_padding_goes_in_front(batch: int, length: int, size: int) -> None:
    x = sequence(batch, length, 2)
    for pad, found in (
        (size - 1, pad_whole_sequence(x, size)),
        (max(0, size - length), pad_last_sequence(x, size)),
    ):
        rows = found.shape[1] - pad
        assert found[PADDING_MASK].tolist() == [[True] * pad + [False] * rows] * batch
        assert found[INPUTS][:, :pad].abs().sum() == 0
        same(found[INPUTS][:, pad:], x[:, length - rows :])


# ---- TensorDicts --------------------------------------------------------------------------------

LEAVES: list[Any] = ["image", ("deep", "flag"), ("deep", "deeper", "number")]


def nested(batch: int, length: int) -> TensorDict:
    return TensorDict(
        {
            "image": sequence(batch, length, 2, 3, 3, dtype=torch.uint8),
            "deep": {
                "flag": sequence(batch, length, 1, dtype=torch.bool),
                "deeper": {"number": sequence(batch, length)},
            },
        },
        batch_size=[batch, length],
    )


@pytest.mark.parametrize("view", [PaddedRollingWindow, RollingWindow])
@pytest.mark.parametrize(("batch", "length", "size"), FITTING)
def test_every_leaf_of_a_tensordict_is_viewed(
    view: Any, batch: int, length: int, size: int
) -> None:
    x = nested(batch, length)
    for kind in (view.apply_all, view.apply_last):
        found = kind(x, size)
        for leaf in LEAVES:
            expected = kind(x[leaf], size)
            same_leaves(found[leaf], expected)
            assert found.batch_size == expected.shape[: len(found.batch_size)]


def test_leaves_may_be_longer_than_sequences_are() -> None:
    found = PaddedRollingWindow.apply_all(nested(2, 3), 5)
    for leaf in LEAVES:
        same_padded(found[leaf], windows(nested(2, 3)[leaf], range(3), 5))


# ---- laws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "length", "size"), SIZES)
def test_the_last_view_is_the_last_of_all(batch: int, length: int, size: int) -> None:
    x = sequence(batch, length, 2)
    every = PaddedRollingWindow.apply_all(x, size).reshape(batch, length)
    same_leaves(PaddedRollingWindow.apply_last(x, size), every[:, -1])


@pytest.mark.parametrize(("batch", "length", "size"), FITTING)
def test_methods_agree_where_nothing_is_padded(batch: int, length: int, size: int) -> None:
    x = sequence(batch, length, 2)
    padded = PaddedRollingWindow.apply_all(x, size)
    whole = ~padded[PADDING_MASK].any(1)
    same(padded[INPUTS][whole], RollingWindow.apply_all(x, size))
    assert (
        whole.reshape(batch, length).sum(1).tolist()
        == [length - RollingWindow.drop_size(size)] * batch
    )


@pytest.mark.parametrize("view", VIEWS.values())
def test_views_leave_what_they_view_alone(view: Any) -> None:
    x = sequence(2, 4, 2)
    before = x.clone()
    view.apply_all(x, 3)
    view.apply_last(x, 3)
    same(x, before)


def test_gradients_reach_every_row_as_often_as_it_is_seen() -> None:
    x = sequence(1, 4).requires_grad_()
    PaddedRollingWindow.apply_all(x, 3)[INPUTS].sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[3, 3, 2, 1]]


# ---- requirements -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", VIEWS)
@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("key", ["x", ("deep", "deeper", "number"), "deep"])
def test_requirements_are_views_of_their_key(method: Any, shift: int, key: Any) -> None:
    requirement = ViewRequirement(shift=shift, method=method)
    batch = nested(2, 4)
    batch["x"] = sequence(2, 4, 3)
    every, last = requirement.apply_all(key, batch), requirement.apply_last(key, batch)
    if shift:
        same_leaves(every, VIEWS[method].apply_all(batch[key], shift + 1))
        same_leaves(last, VIEWS[method].apply_last(batch[key], shift + 1))
    else:
        same_leaves(every, batch[key].reshape(8, *batch[key].shape[2:]))
        same_leaves(last, batch[key][:, -1])
    rows = every.reshape(2, 4 - requirement.drop_size, *every.shape[1:])
    same_leaves(rows[:, -1], last)


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_only_unpadded_windows_drop_rows(shift: int) -> None:
    assert ViewRequirement(shift=shift, method="rolling_window").drop_size == shift
    assert ViewRequirement(shift=shift).drop_size == 0


def test_requirements_pad_if_nothing_is_said() -> None:
    requirement = ViewRequirement()
    assert (requirement.shift, requirement.method) == (0, PaddedRollingWindow)


def test_impossible_requirements_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`shift` must be at least 0 rows; got -1"):
        ViewRequirement(shift=-1)
    with pytest.raises(ValueError, match=r"rolling_window, padded_rolling_window; got 'rolling'"):
        ViewRequirement(method="rolling")  # type: ignore[arg-type]
