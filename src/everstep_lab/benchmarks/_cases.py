"""Benchmarks as data: environments, sizes, settings and peers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from everstep.algorithms import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.config import Document, apply_overrides, load
from everstep.core.validation import (
    STRICT,
    Integer,
    InvalidError,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Problem,
    check_fields,
    unknown_name,
    validate,
)
from everstep.errors import ConfigError

from ._peers import PEERS, family

_DIRECTORY = Path(__file__).with_name("cases")

Precision = Literal["fp32", "bf16", "tf32"]
Metric = Literal["return", "reward"]
Device = Literal["cpu", "cuda"]


@dataclass(kw_only=True)
class Work:
    """Settings of every side. All other settings are the defaults of a library."""

    __pydantic_config__: ClassVar[Any] = STRICT

    env: str
    """`rl8-discrete`, `rl8-continuous`, `rl8-cartpole`, `drift`, `frames`, or a spec string such as
    `gymnasium:CartPole-v1`. Without peers also a dotted path."""

    num_envs: PositiveInt
    """Parallel environments."""

    horizon: PositiveInt
    """Vector steps a rollout: env steps in each environment."""

    horizons_per_env_reset: Integer = 1
    """Rollouts between resets of all environments; -1 resets once."""

    num_sgd_iters: PositiveInt = 4
    """Epochs an update."""

    num_minibatches: PositiveInt = 1
    """Minibatches an epoch."""

    hiddens: list[PositiveInt] = field(default_factory=lambda: [256, 256])
    """Widths of the hidden layers of the policy's network and of the value's."""

    activation: Literal["relu", "tanh", "elu"] = "relu"
    """Activation of the hidden layers."""

    recurrent: bool = False
    """Whether the policy is the recurrent default; `hiddens` is then ignored."""

    lr: PositiveFloat = 1e-3
    """Learning rate."""

    gamma: PositiveFloat = 0.95
    """Discount."""

    gae_lambda: NonNegativeFloat = 0.95
    """λ of generalised advantage estimation."""

    clip_param: PositiveFloat = 0.2
    """ε of the clipped surrogate."""

    vf_coeff: PositiveFloat = 1.0
    """Weight of the value loss, which is half the squared error if the library has a choice."""

    entropy_coeff: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""

    max_grad_norm: PositiveFloat = 5.0
    """Norm that gradients are clipped to."""

    target_kl_div: None | PositiveFloat = None
    """KL divergence that the learning rate is adapted to, with `adaptive_lr`."""

    adaptive_lr: bool = False
    """Whether the learning rate follows the KL divergence."""

    only_collect: bool = False
    """Whether rollouts are collected without updates."""


@dataclass(kw_only=True)
class Learning:
    """The learning check of a benchmark of speed."""

    __pydantic_config__: ClassVar[Any] = STRICT

    metric: Metric
    """`return`: mean of the last 100 episodes; `reward`: mean of an env step of the last
    rollout."""

    env_steps: PositiveInt
    """Env steps to learn from, the same on every side."""

    seeds: PositiveInt = 3
    """Trainings, each with its own seed."""


@dataclass(kw_only=True)
class Solving:
    """A threshold to be reached, and the limit of env steps."""

    __pydantic_config__: ClassVar[Any] = STRICT

    metric: Metric
    """See the learning check."""

    threshold: float
    """Value at which the clock stops."""

    max_env_steps: PositiveInt
    """Env steps after which a training is given up."""

    seeds: PositiveInt = 5
    """Trainings, each with its own seed and processes."""


@dataclass(kw_only=True)
class Measure:
    """Durations of a measurement."""

    __pydantic_config__: ClassVar[Any] = STRICT

    block_s: PositiveFloat = 2.0
    """Approximate seconds of a block, in whole iterations."""

    warm_up: NonNegativeInt = 3
    """Iterations before the first block: compilation, graph capture, caches."""

    timeout_s: PositiveFloat = 1800.0
    """Seconds after which a side that does not answer has failed."""


@dataclass(kw_only=True)
class _Settings:
    """Fields of a benchmark that a row can override."""

    __pydantic_config__: ClassVar[Any] = STRICT

    work: dict[str, Any] = field(default_factory=dict)
    """Fields of `Work`."""

    everstep: dict[str, Any] = field(default_factory=dict)
    """Fields of `AlgorithmConfig`, for Everstep's side only."""

    peers: dict[str, Any] = field(default_factory=dict)
    """Peers to compare with; by name, their own `work` and `options`."""

    learn: dict[str, Any] = field(default_factory=dict)
    """Fields of `Learning`; empty for no learning check."""

    solve: dict[str, Any] = field(default_factory=dict)
    """Fields of `Solving`, to measure time to a threshold instead of speed."""


@dataclass(kw_only=True)
class Row(_Settings):
    """One size of a benchmark; its fields override those of the benchmark."""

    name: str
    """Name in the table."""


@dataclass(kw_only=True)
class Case(_Settings):
    """A benchmark, as described by a file."""

    title: str
    """One line on what it measures."""

    rows: list[dict[str, Any]]
    """Its sizes."""

    device: Device = "cpu"
    """Device of its published numbers."""

    threads: PositiveInt = 1
    """PyTorch's threads on every side."""

    precisions: list[Precision] = field(default_factory=lambda: ["fp32"])
    """Precisions of each row; peers as shipped always use float32."""

    measure: dict[str, Any] = field(default_factory=dict)
    """Fields of `Measure`."""

    small: dict[str, Any] = field(default_factory=dict)
    """Overrides of any of these fields when a GPU benchmark is tried on a CPU."""


@dataclass(frozen=True)
class Cell:
    """One row in one precision, complete."""

    name: str
    precision: Precision
    work: Work
    everstep: dict[str, Any]
    peers: dict[str, dict[str, Any]]
    learn: None | Learning
    solve: None | Solving
    measure: Measure

    def order(self, side: str, device: str, threads: int) -> dict[str, Any]:
        """Settings of the program of a side."""
        own = self.peers.get(side, {})
        work = validate(Work, asdict(self.work) | own.get("work", {}))
        shipped = side in self.peers and not side.endswith("-tuned")
        return {
            **asdict(work),
            "device": device,
            "threads": threads,
            "precision": "fp32" if shipped else self.precision,
            "options": own.get("options", {}),
            "everstep": {} if side in self.peers else self.everstep,
        }


def case_names() -> tuple[str, ...]:
    """The named benchmarks."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.yaml")))


def load_case(name: str, overrides: Sequence[str] = (), *, device: None | Device = None) -> Case:
    """A named benchmark, or the benchmark in a file.

    Args:
        name: One of `case_names()`, or the path of a YAML file.
        overrides: Assignments such as `"work.num_envs=64"`, which override rows, too.
        device: `cpu` or `cuda`; the case's own if None.

    Raises:
        ConfigError: Lists every problem.

    """
    if name in case_names():
        path = _DIRECTORY / f"{name}.yaml"
    elif name.endswith((".yaml", ".yml")):
        path = Path(name)
    else:
        raise ConfigError(
            f"{name}: {unknown_name('benchmark', name, case_names())}. `everstep bench --list` "
            "lists them; the path of a YAML file is valid, too."
        )
    document = load(path)
    case = _checked(document)
    changes = apply_overrides(Document("command line", {}), overrides)
    changes.check()
    if device == "cpu" and case.device == "cuda":
        case = _changed(case, case.small, path.name)
    case = _changed(case, changes.values, "command line")
    return case if device is None else replace(case, device=device)


def _checked(document: Document) -> Case:
    try:
        case = validate(Case, document.values)
    except InvalidError as error:
        document.check(error.problems)
        raise
    document.check(_problems(case))
    return case


def _problems(case: Case) -> list[Problem]:
    """Problems of rows and peers."""
    problems = [] if case.rows else [Problem(("rows",), "a benchmark needs at least one row")]
    for i, row in enumerate(case.rows):
        try:
            validate(Row, row)
        except InvalidError as error:
            problems += [Problem(("rows", i, *p.path), p.message) for p in error.problems]
    for name in case.peers:
        if family(name) not in PEERS:
            problems.append(Problem(("peers", name), unknown_name("peer", name, PEERS)))
    return problems


def _changed(case: Case, changes: Mapping[str, Any], place: str) -> Case:
    """The case with `changes`, also in every row."""
    unknown = [name for name in changes if name not in asdict(case)]
    if unknown:
        raise ConfigError(
            [f"{place}: {unknown_name(f'key {n}', n, asdict(case))}" for n in unknown]
        )
    merged = {
        name: {**getattr(case, name), **value} if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    own = {"work", "everstep", "learn", "solve"} & changes.keys()
    rows = merged.pop("rows", case.rows)
    for name in own:
        rows = [{**row, name: {**row.get(name, {}), **changes[name]}} for row in rows]
    try:
        return validate(Case, {**asdict(case), **merged, "rows": rows})
    except InvalidError as error:
        raise ConfigError([f"{place}: {problem}" for problem in error.problems]) from None


def cells(case: Case, precisions: Sequence[Precision] = ()) -> list[Cell]:
    """Every row in every precision.

    Raises:
        ConfigError: Lists every setting that breaks its rule.

    """
    found, problems = [], []
    for values in case.rows:
        row = validate(Row, values)
        for precision in precisions or case.precisions:
            try:
                found.append(_cell(case, row, precision))
            except InvalidError as error:
                problems += [f"row {row.name}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return found


def _cell(case: Case, row: Row, precision: Precision) -> Cell:
    work = validate(Work, {**case.work, **row.work})
    everstep = {**case.everstep, **row.everstep}
    check_fields(RecurrentAlgorithmConfig if work.recurrent else AlgorithmConfig, everstep)
    learn, solve = {**case.learn, **row.learn}, {**case.solve, **row.solve}
    peers = {name: own or {} for name, own in (row.peers or case.peers).items()}
    unknown = [
        Problem(("peers", name, "options", option), unknown_name("key", option, known))
        for name, own in peers.items()
        for known in [PEERS[family(name)].options if family(name) in PEERS else ()]
        for option in own.get("options", {})
        if option not in known
    ]
    if unknown:
        raise InvalidError(unknown)
    return Cell(
        name=row.name,
        precision=precision,
        work=work,
        everstep=everstep,
        peers=peers,
        learn=validate(Learning, learn) if learn else None,
        solve=validate(Solving, solve) if solve else None,
        measure=validate(Measure, case.measure),
    )
