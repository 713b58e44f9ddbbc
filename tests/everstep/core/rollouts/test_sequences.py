"""Sequences of a rollout: every column of a minibatch is from the same rows, at every size."""

from typing import Any

import pytest
import torch
from torchrl.data import Binary, Categorical, Composite, Unbounded

from everstep.core.rollouts import Rollout, Sequences
from everstep.data import EPISODE_KEYS
from everstep.env.specs import Structure
from tests.toys import flags

pytestmark = pytest.mark.usefixtures("float64")

T, N = 12, 3
ALL = T * N


def code(count: int) -> torch.Tensor:
    """Rows that say where they are: t·N + n, `[count, N, 1]`."""
    return torch.arange(float(count * N)).view(count, N, 1)


def coded(seq_len: int, *, invalid: bool = False, history: int = 0) -> Rollout:
    """A rollout whose every column is a function of env step and environment."""
    rollout = Rollout(
        N,
        T,
        observation=Structure.of(Unbounded(1)),
        action=Structure.of(Categorical(10**6, shape=torch.Size([1]))),
        memory=Structure.of(Composite(memory=Unbounded(1))),
        episode_keys=EPISODE_KEYS if invalid else EPISODE_KEYS - {"valid"},
        seq_len=seq_len,
        history=history,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )
    for x in (rollout.obs[0], rollout.values, rollout.logp, rollout.advantages, rollout.returns):
        x.copy_(code(T + 1))
    rollout.actions[0].copy_(code(T + 1))
    rollout.states[0].copy_(code(T)[::seq_len])
    rollout.final_obs[0].copy_(-code(T))
    rollout.truncated.copy_(flags(T, N, (1, 0), (4, 2), (6, 1), (11, 1)))
    rollout.first.copy_(flags(T, N, (1, 0), (5, 2), (6, 1)))
    if invalid:
        rollout.valid.copy_(~flags(T, N, (5, 2), (0, 0), (8, 1), (9, 1)))
    return rollout


def rows_of(minibatch: Any) -> list[int]:
    return [int(x) for x in minibatch.actions.flatten().tolist()]


def expected_rows(seq_len: int) -> dict[int, list[int]]:
    """Rows t·N + n of the sequence that begins in a row, by that row."""
    return {
        t * N + n: [(t + step) * N + n for step in range(seq_len)]
        for t in range(0, T, seq_len)
        for n in range(N)
    }


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("seq_len", [1, 2, 4])
def test_minibatches_cover_the_rollout_once_and_weigh_1_a_step(
    seq_len: int,
    copied: bool,
    shuffle: bool,
    joint: bool,
    chunk: None | int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the rollout is copied in the order of an epoch, or minibatch by minibatch."""
    if not copied:
        monkeypatch.setattr("everstep.core.rollouts._sequences.GATHERED_BYTES", 0)
    rollout = coded(seq_len, invalid=True)
    valid = rollout.valid.flatten()
    sequences = Sequences(rollout, rollout.valid)
    size, count = 3, ALL // seq_len
    assert sequences.count == count
    known, seen = expected_rows(seq_len), []
    options = {"chunk": chunk, "shuffle": shuffle, "joint": joint, "permute": torch.randperm}
    for step in sequences.steps(size, **options):
        minibatches = list(step)
        rows = [row for minibatch in minibatches for row in rows_of(minibatch)]
        weight = torch.cat([minibatch.weight.flatten() for minibatch in minibatches])
        expected = valid[rows] / valid[rows].sum().clamp(min=1)
        torch.testing.assert_close(weight, expected.double(), rtol=0, atol=1e-15)
        for minibatch in minibatches:
            check_columns(rollout, minibatch, seq_len, known)
        seen += rows
        if not joint:
            assert len(rows) == size * seq_len
    assert sorted(seen) == list(range(ALL))


def check_columns(rollout: Rollout, minibatch: Any, seq_len: int, known: Any) -> None:
    rows = rows_of(minibatch)
    valid = rollout.valid.flatten()[rows]
    starts = rows[::seq_len]
    assert rows == [row for start in starts for row in known[start]]
    assert minibatch.states[0].flatten().tolist() == starts
    for column in (minibatch.values, minibatch.logp, minibatch.advantages, minibatch.returns):
        assert column.flatten()[valid].tolist() == torch.tensor(rows)[valid].tolist()
        assert not column.flatten()[~valid].any()
    seen = minibatch.obs[0].flatten()
    assert seen[valid].tolist() == torch.tensor(rows)[valid].tolist()
    # Of a single row nothing is seen that is invalid; a sequence remembers it.
    expected = [0] * int((~valid).sum()) if seq_len == 1 else torch.tensor(rows)[~valid].tolist()
    assert seen[~valid].tolist() == expected
    opens = [row >= N and bool(rollout.first.flatten()[row - N]) for row in rows]
    assert minibatch.first.flatten().tolist() == opens


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("seq_len", [1, 2])
def test_shuffled_sequences_are_in_the_order_that_is_drawn(
    seq_len: int, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one for each epoch."""
    if not copied:
        monkeypatch.setattr("everstep.core.rollouts._sequences.GATHERED_BYTES", 0)
    rollout = coded(seq_len)
    sequences, starts = Sequences(rollout, rollout.valid), list(expected_rows(seq_len))
    for _ in range(2):
        order = torch.randperm(sequences.count)
        minibatches = sequences.minibatches(
            3, shuffle=True, joint=False, permute=lambda count, order=order: order
        )
        found = [start for minibatch in minibatches for start in rows_of(minibatch)[::seq_len]]
        assert found == [starts[i] for i in order.tolist()]


@pytest.mark.parametrize("seq_len", [1, 2, 4])
@pytest.mark.parametrize("size", [3, ALL])
def test_what_an_action_led_to_is_from_the_row_after_it_or_before_a_reset(
    seq_len: int, size: int
) -> None:
    rollout = coded(seq_len, invalid=True)
    cache = {"some": (code(T) + 0.5,)}
    sequences = Sequences(rollout, rollout.valid, cache=cache)
    ends = (rollout.truncated & rollout.first).flatten()
    size = min(size, sequences.count)
    for minibatch in sequences.minibatches(size, shuffle=True, joint=False, permute=torch.randperm):
        rows = rows_of(minibatch)
        expected = [-row if ends[row] else row + N for row in rows]
        assert minibatch.next_obs[0].flatten().tolist() == expected
        known = rollout.valid.flatten()[rows]
        assert minibatch.next_known.flatten().tolist() == known.tolist()
        assert minibatch.cache["some"][0].flatten().tolist() == [row + 0.5 for row in rows]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("chunk", [None, 5])
def test_windows_end_in_their_rows(shuffle: bool, chunk: None | int) -> None:
    rollout = coded(1, history=2)
    rollout.put_last_obs((torch.arange(-9.0, 0.0).view(3, N, 1) + 0.0,))
    rollout.carry()
    rollout.obs[0].copy_(code(T + 1))
    sequences = Sequences(rollout, rollout.valid)
    for step in sequences.steps(
        12, chunk=chunk, shuffle=shuffle, joint=False, permute=torch.randperm
    ):
        for minibatch in step:
            found = minibatch.obs[0].squeeze(-1).tolist()
            # What was carried over goes on where the rollout begins: -9 to -4 before 0.
            expected = [
                [x if x >= 0 else x - N for x in (row - 2 * N, row - N, row)]
                for row in rows_of(minibatch)
            ]
            assert found == expected


def test_invalid_rows_keep_the_mask_of_what_was_allowed() -> None:
    """All zeros would forbid the action that was stored."""
    spec = Composite(seen=Unbounded(1), action_mask=Binary(2, dtype=torch.bool))
    rollout = Rollout(
        N,
        2,
        observation=Structure.of(spec),
        action=Structure.of(Categorical(2, shape=torch.Size([1]))),
        episode_keys=EPISODE_KEYS - {"final_obs"},
        dtype=torch.float64,
        device=torch.device("cpu"),
    )
    for leaf in rollout.obs:
        leaf.copy_(torch.ones_like(leaf))
    rollout.valid.copy_(~flags(2, N, (1, 2)))
    minibatch = Sequences(rollout, rollout.valid).select(None)
    obs = dict(zip(rollout.observation.paths, minibatch.obs, strict=True))
    assert obs[("action_mask",)].all()
    assert obs[("seen",)].flatten().tolist() == [1.0] * 5 + [0.0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float32])
def test_invalid_rows_are_zeros_of_every_type_and_shape(dtype: torch.dtype) -> None:
    rollout = Rollout(
        N,
        2,
        observation=Structure.of(Unbounded((2, 4, 4), dtype=dtype)),
        action=Structure.of(Categorical(2, shape=torch.Size([1]))),
        episode_keys=EPISODE_KEYS - {"final_obs"},
        dtype=torch.float64,
        device=torch.device("cpu"),
    )
    rollout.obs[0].fill_(1)
    rollout.valid.copy_(~flags(2, N, (1, 2)))
    rollout.obs[0][1, 2] = torch.nan if dtype.is_floating_point else torch.ones((), dtype=dtype)
    [obs] = Sequences(rollout, rollout.valid).select(None).obs
    assert obs.dtype == dtype
    assert obs.flatten(1).all(-1).tolist() == [True] * 5 + [False]
    assert not obs[-1].any()


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("seq_len", [1, 2])
def test_advantages_are_standardised_over_each_minibatch(
    seq_len: int, copied: bool, joint: bool, chunk: None | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CleanRL and stable-baselines3 do: (A - mean) / (std + 1e-8) over the rows that count."""
    monkeypatch.setattr("everstep.core.rollouts._sequences.GATHERED_BYTES", 10**9 if copied else 0)
    rollout = coded(seq_len, invalid=True)
    rollout.advantages.copy_(torch.randn_like(rollout.advantages))
    options = {"shuffle": True, "joint": joint, "permute": torch.randperm}
    sequences = Sequences(rollout, rollout.valid, standardized=True)
    size = 6 // seq_len
    found = [list(step) for step in sequences.steps(size, chunk=chunk, **options)]
    pieces = [piece for step in found for piece in step]
    per = -(-size // (chunk or size))
    groups = [pieces[i : i + per] for i in range(0, len(pieces), per)]
    assert len(groups) == ALL // 6
    for group in groups:
        rows = [row for piece in group for row in rows_of(piece)]
        given = torch.cat([piece.advantages for piece in group]).flatten()
        counts = torch.cat([piece.weight for piece in group]).flatten() > 0
        stored = rollout.advantages[:-1].flatten()[torch.tensor(rows)][counts]
        expected = (stored - stored.mean()) / (stored.std() + 1e-8)
        torch.testing.assert_close(given[counts], expected, rtol=0, atol=1e-12)
        assert not given[~counts].any()
