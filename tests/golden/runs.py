"""Trainings whose numbers are kept: every kind of policy, loss and update, small and in float64.

`python -m tests.golden` compares them with those that are kept, for whoever moves code: bit for bit
on the machine that kept them. Other processors round differently, so it compares to 1e-9 there, as
the tests do. `python -m tests.golden --write` keeps those of now.

The numbers are those of the general way, which is the same code on every machine; whether there is
a native library, and what it rounds, depends on the compiler and the processor. Trainings that take
the native way must come to the same numbers.
"""

import hashlib
import math
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Bounded, Composite, TensorSpec, Unbounded

from everstep import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.algorithms.recording import Recorder
from everstep.core.fast import SWITCH
from everstep.core.graphs import Tape
from everstep.models import RecurrentModel
from tests.everstep.core.graphs.graph_toys import Seeing, Walk

#: Updates of each training: recorded work is done, recorded, and replayed.
UPDATES = 3

#: How work is done.
WAYS = ("eager", "tape")


class Game(Walk):
    """A walk whose actions are directions or pushes, with other observations.

    Args:
        num_envs: Points.
        horizon: Env steps between resets.
        continuous: Whether actions are pushes rather than one of four directions.
        kind: Observation: `"point"`, `"parts"` of which the policy sees one, `"image"`, or
            `"masked"` with the directions that are allowed.

    """

    def __init__(
        self,
        num_envs: int = 4,
        /,
        horizon: None | int = 8,
        *,
        device: Any = "cpu",
        continuous: bool = False,
        kind: str = "point",
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        point, number = Unbounded(2, dtype=torch.float64), Unbounded(1, dtype=torch.float64)
        specs: dict[str, TensorSpec] = {
            "point": point,
            "parts": Composite({"place": point, "clock": number}),
            "image": Bounded(0, 255, (1, 6, 6), dtype=torch.uint8),
            "masked": Composite(
                {"place": point, "action_mask": Bounded(0, 1, (4,), dtype=torch.bool)}
            ),
        }
        self.kind, self.observation_spec = kind, specs[kind]
        self.continuous = continuous
        if continuous:
            self.action_spec = Unbounded(2, dtype=torch.float64)

    def push(self, action: Any) -> torch.Tensor:
        return action.clamp(-1, 1) if self.continuous else super().push(action)

    def seen(self, place: torch.Tensor) -> Any:
        if self.kind == "point":
            return place
        if self.kind == "image":
            line = torch.linspace(-2, 2, 6, dtype=torch.float64)
            x, y = ((line - place[:, i : i + 1]).square() for i in (0, 1))
            light = 255 * torch.exp(-(x.unsqueeze(1) + y.unsqueeze(2)))
            return light.to(torch.uint8).unsqueeze(1)
        clock = self.clock.double()
        mask = torch.cat([place < 1, place > -1], -1)  # not outwards on both sides
        other = {"clock": clock} if self.kind == "parts" else {"action_mask": mask}
        return TensorDict({"place": place.clone(), **other}, [self.num_envs])


class Gated(RecurrentModel):
    """A GRU for policy and values."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.state_spec = Composite({"hidden": Unbounded(8, dtype=torch.float64)})
        self.gru = nn.GRU(2, 8, batch_first=True)
        self.policy, self.vf_model = nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, batch: Any, states: Any, /) -> Any:
        latents, hidden = self.gru(batch["obs"], states["hidden"][:, 0].unsqueeze(0).contiguous())
        latents = latents.flatten(0, 1)
        self.values = self.vf_model(latents)
        return {"logits": self.policy(latents).unsqueeze(1)}, {"hidden": hidden[0]}

    def value_function(self) -> torch.Tensor:
        return self.values


def squared_values(minibatch: Any, distribution: Any, values: torch.Tensor) -> torch.Tensor:
    """A term of one's own."""
    return 1e-3 * (values.square() * minibatch.weight).sum()


squared_values.sums_rows = True  # type: ignore[attr-defined]
squared_values.name = "squares"  # type: ignore[attr-defined]

RND = {"rnd": {"pre_normalization_steps": 1, "pre_normalization_length": 4}}
SMALL: dict[str, Any] = {
    **{"num_envs": 8, "horizon": 8, "num_sgd_iters": 2, "sgd_minibatch_size": 16, "lr": 0.01},
    **{"model_config": {"hiddens": (8,)}, "seed": 0, "device": "cpu", "preserve_outputs": False},
}
LSTM: dict[str, Any] = {"model_config": {"hidden_size": 8}, "sgd_minibatch_size": 4, "seq_len": 4}
MOVING = partial(Game, continuous=True)

#: Environment and options of each training.
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "feedforward": (Game, {}),
    "continuous": (MOVING, {"entropy_coeff": 0.01}),
    "windows": (Game, {"model_cls": Seeing, "model_config": None}),
    "lstm": (Game, LSTM),
    "gru": (Game, {**LSTM, "model_cls": Gated, "model_config": None, "seqs_per_state_reset": 3}),
    "a2c": (MOVING, {"objective": "a2c"}),
    "rnd": (Game, {"bonuses": [RND]}),
    "kl stop": (Game, {"target_kl_div": 2e-4}),
    "adaptive rate": (MOVING, {"target_kl_div": 1e-3, "lr_schedule_kind": "adaptive"}),
    "accumulated": (Game, {"accumulate_grads": True, "shuffle_minibatches": False}),
    "chunks": (MOVING, {"chunk": 5}),
    "chunks of sequences": (Game, {**LSTM, "chunk": 3}),
    "amp": (Game, {"enable_amp": True, "amp_dtype": "bfloat16"}),
    "preserved": (Game, {"preserve_outputs": None}),
    "normalized": (
        MOVING,
        {
            "normalize_observations": True,
            "normalize_values": True,
            "normalize_rewards": "running",
            "normalize_advantages": "minibatch",
        },
    ),
    "asymmetric": (
        partial(Game, kind="parts"),
        {"model_config": {"hiddens": (8,), "actor_obs": ["place"], "critic_obs": ["clock"]}},
    ),
    "images": (
        partial(Game, kind="image"),
        {"model_config": {"hiddens": (8,), "image_layout": "channels_first"}},
    ),
    "masks": (partial(Game, kind="masked"), {}),
    "autograd": (
        MOVING,
        {
            "policy_loss_addons": [squared_values],
            "optimizer_cls": torch.optim.SGD,
            "lr": None,
            "optimizer_config": {"lr_pi": 0.01, "lr_v": 0.02, "momentum": 0.9},
        },
    ),
    "schedules": (
        Game,
        {
            "lr": None,
            "lr_schedule": [(0, 1e-2), (64, 1e-4)],
            "entropy_coeff_schedule": [(0, 0.1), (64, 0.0)],
            "clip_param_schedule": [(0, 0.3), (64, 0.1)],
            "reward_scale": 0.5,
            "horizons_per_env_reset": 2,
        },
    ),
}

#: Trainings whose work is not recorded: their parts keep data outside of a graph.
EAGER = {"rnd"}

#: Trainings of two processes.
RANKS = ("feedforward", "normalized", "lstm")


def built(name: str, *, recorded: bool) -> Any:
    """The algorithm of a training; `recorded` on a tape, which is what a graph is on a GPU."""
    env, options = RUNS[name]
    options = {**SMALL, **options}
    if env is MOVING:
        options["model_config"] = {**options["model_config"], "log_std_init": 0.0}
    chunk = options.pop("chunk", None)
    config = RecurrentAlgorithmConfig if "seq_len" in options else AlgorithmConfig
    algorithm: Any = config(**options).build(env)
    if chunk is not None:
        algorithm.chunk_size = chunk
    if recorded:
        algorithm.recorder = Recorder(Tape)
    return algorithm


def train(name: str, recorded: bool, *, natively: bool = False) -> dict[str, Any]:
    """Statistics of the last update, sums of all that was trained, and a digest of everything."""
    with float64(natively=natively):
        algorithm = built(name, recorded=recorded)
        digests = {"statistics": hashlib.sha256(), "state": hashlib.sha256()}
        for i in range(UPDATES):
            torch.manual_seed(i)
            stats: dict[str, Any] = {**algorithm.collect(), **algorithm.step()}
            stats = {k: x for k, x in stats.items() if not k.startswith("profiling/")}
            for key, x in stats.items():
                digests["statistics"].update(key.encode() + struct.pack("<d", x))
        state = algorithm.state_dict()
        numbers = [x for _, x in sorted(_tensors(state, ""), key=lambda pair: pair[0])]
        for x in numbers:
            digests["state"].update(x.numpy().tobytes())
        weights = torch.cat([x.flatten() for x in algorithm.get_weights().values()])
    index = torch.arange(1.0, len(weights) + 1, dtype=torch.float64)
    sums = [
        weights.sum(),
        weights.square().sum(),
        weights @ index.cos(),
        weights @ (2 * index).cos(),
    ]
    return {
        "digest": {name: x.hexdigest()[:24] for name, x in digests.items()},
        "statistics": {key: rounded(x) for key, x in stats.items()},
        "weights": [rounded(float(x)) for x in sums],
    }


def train_on_ranks() -> dict[str, Any]:
    """The trainings of this rank of several, by name and by how they are done."""
    return {name: {way: train(name, way == "tape") for way in WAYS} for name in RANKS}


def train_on_ranks_natively() -> dict[str, Any]:
    """The trainings of this rank whose gradients are native, by name."""
    return {"feedforward": train("feedforward", False, natively=True)}


def draws() -> list[float]:
    """Random numbers of every kind that the trainings draw."""
    with float64():
        torch.manual_seed(0)
        x = torch.zeros(20)
        drawn = [x.normal_().sum(), x.uniform_().sum(), x.exponential_().sum()]
        drawn.append((torch.randperm(64) * torch.arange(64)).sum())
        drawn.append((nn.init.orthogonal_(torch.empty(8, 5)) * torch.arange(5)).sum())
        return [rounded(float(x)) for x in drawn]


def differences(kept: Any, found: Any, path: str = "", rel: float = 1e-9) -> Iterator[str]:
    """Where numbers differ by more than `rel`, or anything else differs; digests are left out."""
    if isinstance(kept, dict) and isinstance(found, dict):
        for key in [*kept, *(key for key in found if key not in kept)]:
            if key != "digest":
                yield from differences(kept.get(key), found.get(key), f"{path}/{key}", rel)
    elif isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        for i, (one, other) in enumerate(zip(kept, found, strict=True)):
            yield from differences(one, other, f"{path}[{i}]", rel)
    elif not _is_close(kept, found, rel):
        yield f"{path}: {found!r}, not {kept!r}"


def _is_close(kept: Any, found: Any, rel: float) -> bool:
    if isinstance(kept, int | float) and isinstance(found, int | float):
        return math.isclose(kept, found, rel_tol=rel, abs_tol=rel)
    return bool(kept == found)


def rounded(x: float) -> float:
    return float(f"{x:.13g}")


def _tensors(state: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(state, torch.Tensor):
        yield path, state.detach()
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from _tensors(value, f"{path}/{key}")
    elif isinstance(state, list | tuple):
        for i, value in enumerate(state):
            yield from _tensors(value, f"{path}/{i}")


@contextmanager
def float64(*, natively: bool = False) -> Iterator[None]:
    """Numbers in the block are in float64, and computed in the general way."""
    before, switch = torch.get_default_dtype(), os.environ.get(SWITCH)
    torch.set_default_dtype(torch.float64)
    if not natively:
        os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        os.environ.pop(SWITCH, None)
        if switch is not None:
            os.environ[SWITCH] = switch


def run_all(directory: Path, run_ranks: Callable[..., list[Any]]) -> dict[str, Any]:
    """The numbers of every training, by name and by how it is done."""
    found: dict[str, Any] = {}
    for name in RUNS:
        ways = WAYS[: 1 if name in EAGER else None]
        found[name] = {way: train(name, way == "tape") for way in ways}
    first, _ = run_ranks(2, train_on_ranks, directory)
    return found | {f"{name} on two ranks": ways for name, ways in first.items()}
