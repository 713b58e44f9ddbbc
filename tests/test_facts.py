"""No figure and no capability stands in two documents with different values.

A fact has one source: a table of measurements, or the code. Other places are compared with it.
`README` has no figure without a source: changing any of them fails a test.
"""

import importlib
import inspect
import itertools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

from everstep import DiscreteDummyEnv
from everstep.__main__ import command_parsers
from everstep.algorithms.build import CHUNK_ROWS
from everstep.algorithms.recording import MAX_HORIZON
from everstep.algorithms.resolve import (
    CLIP_REWARDS,
    DEFAULT_HORIZON,
    DEFAULT_LR,
    DEFAULT_MODEL_CONFIG,
    DEFAULT_NUM_ENVS,
    DEFAULT_SEQ_LEN,
    DEFAULTS,
    EPISODIC_NUM_ENVS,
    IMAGE_BUDGET,
    IMAGE_EPOCHS,
    IMAGE_MINIBATCHES,
    MAX_MINIBATCHES,
    MAX_SEQ_LEN,
    MIN_ROWS,
    MORE_EPOCHS,
    SMALL_BUDGET,
    SMALL_ROLLOUT,
)
from everstep.bonuses import RandomNetworkDistillation
from everstep.cli import _watch, commands
from everstep.cli._arguments import DEFAULT_ENV_STEPS
from everstep.config import MAX_DEPTH, MAX_VALUES
from everstep.core.files import MAX_LINE
from everstep.core.hyperparameters import Hyperparameters
from everstep.core.plain_files import MAX_TEXT
from everstep.distillation import Distillation
from everstep.env.images import SMALLEST_IMAGE
from everstep.loggers import MlflowLogger, mlflow_logger, queued
from everstep.models import DefaultDiscreteModel, DefaultDiscreteRecurrentModel, _encoders
from everstep.objectives import OBJECTIVES
from everstep.schedulers import ADAPTIVE_FACTOR, ADAPTIVE_MAX, ADAPTIVE_MIN
from everstep.symmetry import Symmetry
from everstep.trainers import _signals, _threads
from everstep.trainers._base import GenericTrainerBase
from everstep.trainers._evaluations import EVAL_EPISODES
from everstep.trainers._resuming import CHANGEABLE
from everstep_adapters.bridge import server, specs
from everstep_adapters.bridge.env import BridgeEnv
from everstep_lab.studies import page_faults
from tests.test_docs import DOCS, ROOT, names, tables

#: The text of a page, by its path in the repository.
Read = Callable[[str], str]

tomllib = pytest.importorskip("tomllib")  # of Python 3.11 and newer
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
ADAPTERS = PROJECT["project"]["entry-points"]["everstep.adapters"]

#: What pages call the library of each adapter.
LIBRARIES = {
    **{"gymnasium": "Gymnasium", "envpool": "EnvPool", "ale": "ALE", "pettingzoo": "PettingZoo"},
    **{"dm_control": "dm_control", "torchrl": "TorchRL", "isaacgym": "IsaacGym-style"},
    **{"bridge": ""},  # another Python's, of any of them
    **dict.fromkeys(("gymnax", "brax", "craftax", "jumanji", "playground"), "JAX"),
}


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def joined(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def under(text: str, title: str) -> str:
    """Text under a heading, up to the next one of any level."""
    return re.split(r"^#+ ", text.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def number(text: str) -> float:
    """The first number of a cell."""
    found = re.search(r"[−-]?[\d,]*\.?\d+", text.replace("*", ""))
    assert found, text
    return float(found[0].replace(",", "").replace("−", "-"))


def claims(read: Read) -> Iterator[tuple[str, str]]:
    """Pages, and texts that they must have, made from the facts' sources."""
    yield from trainings(read)
    yield from comparisons(read)
    yield from scaling(read)
    yield from performance(read)
    yield from exploration(read)
    yield from gpu(read)
    yield from of_code(read)
    yield from of_docstrings()
    yield from limits()
    yield from costs(read)


COUNTS = {
    **{0: "none", 1: "one", 2: "two", 3: "three", 4: "four"},
    **{5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten"},
    **{11: "eleven", 12: "twelve", 13: "thirteen", 14: "fourteen"},
}

#: Sections of the sets of tasks to judge by, and what their count of rows stands behind.
HELD_OUT = {
    "The held-out set": "mean is below stable-baselines3's in",
    "The second held-out set": "mean is below in",
    "The third held-out set": "mean is below in",
    "The fourth held-out set": "mean is below in",
    "The fifth held-out set": "mean is below in",
    "The sixth held-out set": "mean is below in",
}

#: Examples of the README's table, and the page with each seed's numbers.
TRAINED = {"CartPole-v1": "cartpole", "Acrobot-v1": "acrobot", "Pendulum-v1": "pendulum"}


def gpu(read: Read) -> Iterator[tuple[str, str]]:
    page = read("docs/gpu.md")
    [card] = re.findall(r"a second on (an NVIDIA \w+),", page)
    yield "README.md", f"Of GPUs one has been tried, {card}."
    yield "docs/evidence/performance.md", f"Measured on {card} "
    yield "docs/evidence/adapters.md", f"on {card} with"
    [rows, *_] = tables(under(page, "Measured"))
    ours = [number(row[1]) for row in rows if row[1]]
    rates = [number(row[2].split(": ")[1]) for row in rows]
    of_isaac = [ours[0] / rate for rate in rates[:3]]
    yield "docs/gpu.md", " ".join(f"| {x:.1f} |" for x in of_isaac[:1])
    yield (
        "docs/performance.md",
        f"skrl and rl_games {min(of_isaac):.1f} to {max(of_isaac):.1f} times as fast, and beside "
        f"rl8 {ours[1] / rates[3]:.1f} times",
    )


def trainings(read: Read) -> Iterator[tuple[str, str]]:
    for name, folder in TRAINED.items():
        [rows, *_] = tables(under(read("examples/README.md"), name))
        [condition] = yaml.safe_load(read(f"examples/gymnasium_{folder}/train.yaml"))["stop"]
        bound = condition["HitsUpperBound"]["bound"]
        steps = "; ".join(row[1] for row in rows)
        scores = ", ".join(row[3].replace("-", "−") for row in rows)
        bound_text = f"{bound}".replace("-", "−")
        yield "README.md", f"| {name} | {bound_text} | {steps} | {scores} |"
        if folder == "cartpole":
            [score] = {row[3] for row in rows}
            least, *_, most = sorted((row[1] for row in rows), key=number)
            yield (
                "docs/index.md",
                f"after {least} to {most} env steps, and each had a mean return of {score} in 100",
            )
    learned = (ROOT / "tests" / "test_learning.py").read_text(encoding="utf-8")
    bounds = [
        float(x) for x in re.findall(r'"(?:cartpole|acrobot|pendulum)", \d+, \d+, (\S+)\)', learned)
    ]
    first, *others = (f"{bound:g}".replace("-", "−") for bound in bounds)
    thresholds = f"thresholds: {first}, {others[0]} and {others[1]}."
    yield "examples/README.md", thresholds
    yield "docs/results.md", thresholds
    for recipe, words in (
        ("tuned/Pendulum-v1-before", "evaluation is {}"),
        ("tuned/Pendulum-v1", "to {}"),
    ):
        [row] = re.findall(rf"^\| `{recipe}` .*$", read("docs/results.md"), re.M)
        mean = re.search(r"\*\*(.*?)\*\*", row)
        assert mean
        yield "docs/reproducing.md", words.format(mean[1])


def comparisons(read: Read) -> Iterator[tuple[str, str]]:
    [rows] = tables(under(read("docs/guides/defaults.md"), "Beside stable-baselines3"))
    ahead = sum(number(row[1]) >= number(row[2]) for row in rows)
    of = f"of {len(rows)}"
    yield (
        "README.md",
        f"the interquartile mean of the returns is higher or equal on {ahead} {of} tasks",
    )
    yield "docs/guides/defaults.md", f"the larger one or equal in {ahead} {of} rows"
    evidence = read("docs/evidence/defaults.md")
    held_out: list[bool] = []
    for name, words in HELD_OUT.items():
        seeds, means = tables(under(evidence, name))
        assert min(len(row[k].split(", ")) for row in seeds for k in (1, 2)) >= 5, name
        below = [number(row[1]) < number(row[2]) for row in means]
        yield "docs/evidence/defaults.md", f"{words} {COUNTS[sum(below)]} of {len(below)} rows"
        held_out += below
    of = f"of {len(held_out)}"
    yield "README.md", f"and on {len(held_out) - sum(held_out)} {of} small ones that"
    yield "docs/guides/defaults.md", f"On {len(held_out)} small tasks that nothing was chosen by"
    yield "docs/guides/defaults.md", f"is below stable-baselines3's in {COUNTS[sum(held_out)]}, by"
    yield "docs/evidence/defaults.md", f"mean is below in {COUNTS[sum(held_out)]} {of} rows"
    [each] = tables(under(evidence, "Beside stable-baselines3"))
    ours, theirs = ({len(row[k].split(", ")) for row in each} for k in (1, 2))
    least, most, other = (COUNTS[count] for count in (min(ours), max(ours), *theirs))
    yield "README.md", f"{least} to {most} seeds ({other} of theirs), the interquartile"
    yield (
        "docs/guides/defaults.md",
        f"mean over {least} to {most} seeds, of stable-baselines3 {other},",
    )


def scaling(read: Read) -> Iterator[tuple[str, str]]:
    [gains, *_] = tables(under(read("docs/scaling.md"), "Measured"))
    row = gains[0]
    assert "two ranks of one thread / one process of one thread" in row[0]
    yield (
        "README.md",
        f"On the 2 cores where it was measured, two of them train {number(row[1]):.2f} times as "
        f"fast as one in CartPole and {number(row[2]):.2f} times in HalfCheetah.",
    )
    for _, *cells in gains:
        yield "docs/evidence/scaling.md", f"| {' | '.join(cells)} |"
    yield "docs/scaling.md", "On 2 cores of an AMD EPYC"
    yield "docs/scaling.md", "More than four ranks were not tried."
    yield (
        "README.md",
        "More than four were not tried, and of more machines than one only two namespaces of one "
        "machine.",
    )
    yield (
        "docs/scaling.md",
        "Of more machines than one, two were tried, as two namespaces of one machine",
    )


def performance(read: Read) -> Iterator[tuple[str, str]]:
    [rows, *_] = tables(under(read("docs/performance.md"), "Beside other libraries"))
    ratios: dict[str, list[float]] = {}
    benchmark = ""
    for first, _, against, _, _, ratio in rows:
        benchmark = re.split("[`,]", first.strip("`"))[0] or benchmark
        ratios.setdefault(f"{benchmark} {against}", []).append(number(ratio))

    def span(name: str) -> str:
        return f"{min(ratios[name]):.1f} to {max(ratios[name]):.1f} times"

    tuned, shipped = (f"cpu-cartpole stable-baselines3{x}" for x in (", tuned", ""))
    yield (
        "README.md",
        f"Env steps per second on vectorised CartPole-v1, on one thread of a CPU: {span(tuned)} "
        f"those of stable-baselines3 as tuned for the comparison ({span(shipped)} as shipped), and "
        f"{span('cpu-rl8-default rl8 1.0.0')} those of rl8 with its defaults.",
    )
    view = re.search(
        r"view takes ([\d.]+) %, ([\d.]+) % and ([\d.]+) %",
        joined(read("docs/evidence/benchmarks.md")),
    )
    assert view
    share = median(float(text) for text in view.groups())
    yield "docs/start/look_at_it.md", f"The view takes {share:.1f} % of the processor time"
    [cost, *_] = tables(under(read("docs/evidence/adapters.md"), "JAX"))
    most = max(number(row[6]) for row in cost)
    yield "docs/adapters/jax.md", f"[at most {most:.2f} times]"
    yield (
        "docs/evidence/adapters.md",
        f"of a vector step is at most {most:.2f} times that of the library's",
    )
    budget = (ROOT / "tests/everstep/algorithms/test_host_budget.py").read_text(encoding="utf-8")

    def budgets(pattern: str) -> str:
        found = re.findall(pattern, budget)
        assert found, pattern
        return ", ".join(found)

    own = r"\((?:Discrete|Continuous)DummyEnv, AlgorithmConfig, {}, (\d+)\)"
    for words, pattern in {
        "a vector step, environment and policy included: discrete, continuous actions | {}": (
            r"\(dummy\((?:Discrete|Continuous)DummyEnv\), (\d+)\)"
        ),
        "included: discrete, continuous actions | 9, 7 | {} |": (
            r"DummyEnv\), AlgorithmConfig, (\d+)\)"
        ),
        "whose observations are normalised | {}": r"operations <= (\d+)  # natively",
        "whose observations are normalised | 2 | {} |": r"operations <= (\d+)  # three",
        "| with a recurrent policy | – | {} |": r"DummyEnv\), RecurrentAlgorithmConfig, (\d+)\)",
        "step included: discrete, continuous actions | {}": r"each <= (\d+)  # natively",
        "step included: discrete, continuous actions | 1 | {} |": own,
        "| with an entropy bonus | 1 | {} |": r'"entropy_coeff": 0.01}, (\d+)',
        "| of A2C | 1 | {} |": r'"objective": "a2c"}, (\d+)',
        " | with a recurrent policy | – | {} | ": r"RecurrentAlgorithmConfig, {}, (\d+)",
    }.items():
        yield "docs/evidence/performance.md", words.format(budgets(pattern))
    recurrent, feedforward = re.findall(r"rest <= \((\d+) if .* else (\d+)\)", budget)[0]
    natively = budgets(r"rest <= (\d+)  # natively")
    yield (
        "docs/evidence/performance.md",
        f"minibatches; with a recurrent policy | {natively} | {feedforward}, {recurrent} |",
    )


def exploration(read: Read) -> Iterator[tuple[str, str]]:
    page = "docs/guides/exploration.md"
    [dives, *_] = tables(read("examples/deep_sea/README.md"))[-1:]
    last = max(number(row[1]) for row in dives)
    yield (
        page,
        f"five seeds of {COUNTS[len(dives)]} find it within "
        f"{-(-last // 10_000) * 10_000:,.0f} env steps",
    )
    yield (
        page,
        f"without it none within {min(number(row[4]) for row in dives) // 10_000 * 10_000:,.0f};",
    )
    [rooms] = [t for t in tables(read("examples/doorkey/README.md")) if t[0][1] == "rnd"]
    found = {kind: [row[4] for row in rooms if row[1] == kind] for kind in ("rnd", "ppo")}
    with_bonus, without = sorted(found["rnd"]), found["ppo"]
    yield (
        page,
        f"return {with_bonus[0]} to {with_bonus[-1]}, and without it {without[0]}, "
        f"{without[1]} and {without[2]}.",
    )
    for seed, pair in enumerate(zip(found["rnd"], found["ppo"], strict=True)):
        yield "examples/README.md", f"| {seed} | {pair[0]} | {pair[1]} |"
    styles = re.search(
        r"(\d+) of \d+ right at 1 environment, (\d+) of \d+ at 2, (\d+) of \d+ at 256 and at",
        joined(read("docs/evidence/adapters.md")),
    )
    assert styles
    one, two, many = map(int, styles.groups())
    yield "docs/evidence/adapters.md", f"the reset style detected {one + two + 2 * many:,} times"
    rows = re.search(r"([\d.]+ million) rows with", read("docs/evidence/adapters.md"))
    assert rows
    yield "docs/evidence/adapters.md", f"{rows[1]} rows beside rows written by hand"


def of_code(read: Read) -> Iterator[tuple[str, str]]:
    """Defaults and limits in sentences, from the code."""
    episodic = DEFAULT_MODEL_CONFIG
    model = "docs/guides/models.md"
    env = DiscreteDummyEnv(1)
    mlp, lstm = (
        model_cls(env.observation_spec, env.action_spec).config
        for model_cls in (DefaultDiscreteModel, DefaultDiscreteRecurrentModel)
    )
    yield model, f"| `{mlp['hiddens']}`; `{episodic['hiddens']}` for vectors [where episodes end]"
    yield model, f"| `{mlp['activation_fn']}`; `{episodic['activation_fn']}` for vectors where"
    for name in ("hidden_size", "num_layers"):
        yield model, f"| `{name}` | {lstm[name]} |"
    ppo: Any = OBJECTIVES["ppo"]
    a2c: Any = OBJECTIVES["a2c"]
    more = MORE_EPOCHS * ppo.episodic_num_sgd_iters
    yield (
        "docs/guides/defaults.md",
        f"| {more} with budgets of `run` below {SMALL_BUDGET:,} env steps (images: "
        f"{ppo.episodic_num_sgd_iters} below {IMAGE_BUDGET:,}), else {ppo.episodic_num_sgd_iters} "
        f"(images: {IMAGE_EPOCHS}), and so always if a rollout has more than {SMALL_ROLLOUT:,} |",
    )
    yield (
        "docs/guides/objectives.md",
        (
            f"| {ppo.default_num_sgd_iters}; where episodes end {ppo.episodic_num_sgd_iters}, "
            f"{IMAGE_EPOCHS} with images; [with small budgets](defaults.md) {more}, "
            f"{ppo.episodic_num_sgd_iters} with images |"
        ),
    )
    assert a2c.default_num_sgd_iters == a2c.episodic_num_sgd_iters
    yield "docs/guides/objectives.md", f"(arXiv 1602.01783) | {a2c.default_num_sgd_iters} |"
    yield "docs/guides/objectives.md", f"in chunks of {CHUNK_ROWS:,} rows"
    yield "docs/performance.md", f"of {CHUNK_ROWS:,} rows"
    yield "docs/gpu.md", f"up to a `horizon` of {MAX_HORIZON}"
    pytorchrl = "docs/coming_from/pytorchrl.md"
    lr = [f"{value:.0e}".replace("e-0", "e-") for value in DEFAULT_LR]
    yield pytorchrl, f"| `lr` | {lr[0]}; {lr[1]} |"
    yield pytorchrl, f"| `gamma` | {DEFAULTS['gamma'][0]}; {DEFAULTS['gamma'][1]} |"
    yield (
        pytorchrl,
        f"| `max_grad_norm` | {DEFAULTS['max_grad_norm'][0]:g}; {DEFAULTS['max_grad_norm'][1]} |",
    )
    yield pytorchrl, f"| {DEFAULTS['vf_clip_param'][0]:g}; {DEFAULTS['vf_clip_param'][1]} |"
    yield (
        pytorchrl,
        f"`num_sgd_iters` | {ppo.default_num_sgd_iters}; {more} with small "
        f"budgets, else {ppo.episodic_num_sgd_iters}; "
        f"{a2c.default_num_sgd_iters} for A2C |",
    )
    rewards = DEFAULTS["normalize_rewards"]
    assert rewards == (True, "running")
    normalisation = "docs/guides/normalisation.md"
    yield normalisation, "| `normalize_rewards` | `true`, `running`, `false` | `running` | `true` |"
    yield "docs/evidence/rl8.md", "so is the default without episode keys;"
    recurrent = "docs/guides/recurrent.md"
    yield (
        recurrent,
        f"the largest divisor up to {MAX_SEQ_LEN} where episodes end, else {DEFAULT_SEQ_LEN}",
    )
    yield "docs/guides/defaults.md", f"the largest divisor of `horizon` up to {MAX_SEQ_LEN}"
    yield "docs/guides/defaults.md", f"a {MAX_MINIBATCHES}nd of it"
    variables = " or ".join(f"`{name}`" for name in _threads._VARIABLES)
    yield "docs/performance.md", f"unless the program or {variables} has chosen PyTorch's number."
    steps = f"{DEFAULT_ENV_STEPS:,}"
    yield "docs/reference/configuration.md", f"trains for {steps} env steps"
    yield "docs/coming_from/rl8.md", f"trains for {steps} env steps"
    seconds, first = _watch._SECONDS, _watch._SECONDS * _watch._FIRST
    yield (
        "docs/scaling.md",
        f"does not return for {seconds:.0f} seconds ({first:.0f} the first time",
    )
    yield "docs/guides/trackers.md", f"beyond {queued.QUEUE_SIZE:,} of them"
    yield "docs/coming_from/stable_baselines3.md", "every minute by default"
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    for page in ("README.md", "CONTRIBUTING.md", "docs/start/install.md", "docs/tutorial.md"):
        yield page, f"Python {oldest} or newer"
    [floor] = [x for x in PROJECT["project"]["dependencies"] if x.startswith("gymnasium>=")]
    yield "docs/adapters/gymnasium.md", f"of Gymnasium {floor.partition('>=')[2]} or newer"


def of_docstrings() -> Iterator[tuple[str, str]]:
    """Values of `"auto"` as the fields' own texts have them, from which a reference is made."""
    page, ppo, a2c = "src/everstep/core/hyperparameters.py", OBJECTIVES["ppo"], OBJECTIVES["a2c"]
    own: Any = (ppo, a2c)
    epochs, of_a2c = own[0].episodic_num_sgd_iters, own[1].default_num_sgd_iters
    yield (
        page,
        f"{of_a2c} for A2C; otherwise {epochs} if episodes end ({IMAGE_EPOCHS} with images), else "
        f"{own[0].default_num_sgd_iters}. If episodes end, rollouts of at most {SMALL_ROLLOUT:,} "
        f"env steps have {MORE_EPOCHS * epochs} with budgets below {SMALL_BUDGET:,} ({epochs} with "
        f"images below {IMAGE_BUDGET:,}).",
    )
    assert (MAX_MINIBATCHES, IMAGE_MINIBATCHES) == (32, 8)
    yield (
        page,
        f"a 32nd of the rollout (an 8th with images), but at least {MIN_ROWS} transitions; the "
        "whole rollout for A2C and if episodes do not end.",
    )
    yield (
        page,
        f"largest divisor of `horizon` up to {MAX_SEQ_LEN} if episodes end, else {DEFAULT_SEQ_LEN}",
    )
    hiddens, activation = DEFAULT_MODEL_CONFIG["hiddens"], DEFAULT_MODEL_CONFIG["activation_fn"]
    yield (
        page,
        f"default feedforward models of vectors have `hiddens` {hiddens} and `activation_fn` "
        f'"{activation}" unless',
    )
    few, many = EPISODIC_NUM_ENVS
    yield page, f"else {DEFAULT_NUM_ENVS}; if episodes end, {few} on a CPU and {many} on other"
    yield page, f"the default of its type, else {DEFAULT_HORIZON}."
    for name in ("gamma", "max_grad_norm"):
        other, episodic = (f"{x:g}" for x in DEFAULTS[name])
        yield page, f'`"auto"`: {episodic} if episodes end, else {other}.'
    rates = [f"{value:.0e}".replace("e-0", "e-") for value in DEFAULT_LR]
    yield page, f"without one, {rates[1]} if episodes end, else {rates[0]}."
    yield page, f'`"auto"`: None if episodes end, else {DEFAULTS["vf_clip_param"][0]:g}.'
    yield page, f'`"auto"`: {CLIP_REWARDS:g} (times `reward_scale`) if rewards are'
    factor, least, most = ADAPTIVE_FACTOR, ADAPTIVE_MIN, ADAPTIVE_MAX
    yield page, f"the learning rate is multiplied by {factor}"
    bounds = " and ".join(f"{x:.0e}".replace("e-0", "e-") for x in (least, most))
    yield "docs/guides/models.md", f"the learning rate is divided by {factor} if"
    yield "docs/guides/models.md", f"within {bounds}."
    options = "src/everstep/trainers/_options.py"
    yield options, f"None: {EVAL_EPISODES} if `env_cls` is a spec"
    yield "docs/guides/runs.md", f"`eval_episodes` complete episodes, {EVAL_EPISODES} by default"
    trainer = {k: x.default for k, x in inspect.signature(GenericTrainerBase).parameters.items()}
    yield options, f'None: `"{trainer["checkpoint_every"]}"`.'
    yield options, f"Number of checkpoints to keep. None: {trainer['keep_last']}."
    assert trainer["checkpoint_every"] == "1m"  # "every minute"


def limits() -> Iterator[tuple[str, str]]:
    """Limits of files, time and sizes in sentences, from the code."""
    yield (
        "docs/reference/security.md",
        f"at most {MAX_TEXT / 1e6:.0f} MB, {MAX_VALUES:,} values and {MAX_DEPTH} levels, a line of "
        f"`metrics.jsonl` {MAX_LINE / 2**20:.0f} MiB.",
    )
    seconds = f"{_signals.PATIENCE:.0f} seconds is interrupted"
    yield "docs/guides/resume.md", f"A train step that takes longer than {seconds}"
    yield "docs/scaling.md", f"step of more than {seconds}"
    signature = inspect.signature(MlflowLogger).parameters
    yield (
        "docs/guides/trackers.md",
        f"gives up after {signature['patience'].default:g} s without an answer, and after "
        f"{signature['limit'].default:g} s in any case",
    )
    yield (
        "docs/guides/trackers.md",
        f"returns after {mlflow_logger._REMOTE_WAIT:g} s ({mlflow_logger._LOCAL_WAIT:g} s for a "
        "local store)",
    )
    models = "docs/guides/models.md"
    yield models, f"with more than {_encoders.MAX_ONE_HOT:,} options, an embedding of"
    yield models, f"for images smaller than {_encoders.UNPADDED}x{_encoders.UNPADDED}, or three"
    yield models, f"for those smaller than {SMALLEST_IMAGE}x{SMALLEST_IMAGE}, and"
    yield models, f"and {_encoders.IMAGE} units"
    bridge = inspect.signature(BridgeEnv).parameters
    assert server.LARGEST == specs.LARGEST
    yield "docs/adapters/bridge.md", f"a message can have {server.LARGEST // 2**20} MiB"
    yield (
        "docs/adapters/bridge.md",
        f"within `step_timeout` seconds ({bridge['step_timeout'].default:.0f})",
    )
    rnd = {k: x.default for k, x in inspect.signature(RandomNetworkDistillation).parameters.items()}
    words = {
        name: ", ".join(f"{rnd[key]:g}" for key in name.split(", "))
        for name in (
            "gamma_intrinsic, ext_adv_coeff, int_adv_coeff",
            "predictor_proportion, pre_normalization_steps, pre_normalization_length",
        )
    }
    for name, values in words.items():
        quoted = ", ".join(f"`{key}`" for key in name.split(", "))
        yield "docs/coming_from/pytorchrl.md", f"| {quoted} | {values} | the same, options of `rnd`"
    yield (
        "docs/guides/exploration.md",
        f"{{gamma_intrinsic: {rnd['gamma_intrinsic']}, int_adv_coeff: {rnd['int_adv_coeff']}, "
        f"ext_adv_coeff: {rnd['ext_adv_coeff']}}}",
    )
    tests = Hyperparameters.num_test_episodes
    yield "docs/coming_from/pytorchrl.md", f"| {Hyperparameters.clip_param}, {tests}, none |"
    defaults = {
        name: {x.dest: x.default for x in parser._actions}
        for name, parser in command_parsers().items()
    }
    assert defaults["video"]["episodes"] == defaults["play"]["episodes"] == 3
    yield "docs/guides/videos.md", "`everstep video` plays three episodes"
    yield (
        "docs/start/look_at_it.md",
        f"On the command line, {defaults['eval']['episodes']} episodes",
    )


def costs(read: Read) -> Iterator[tuple[str, str]]:
    """Figures of "What things cost", from the tables of the evidence."""
    evidence, page = read("docs/evidence/performance.md"), "docs/performance.md"
    [added] = tables(under(evidence, "What wrapping adds"))
    *usual, many, _, _ = ((number(row[2]), number(row[4])) for row in added)
    least, most = (f(cost for _, cost in usual) for f in (min, max))
    yield page, f"[{least:.0f} to {most:.0f} µs a vector step]"
    yield page, f"{many[1]:.0f} µs where it steps 64 environments one after the other, "
    yield page, f"one after the other, {100 * many[1] / many[0]:.0f} % of their own time"
    [bonuses] = tables(under(evidence, "What a bonus costs"))
    factors = [number(cell) for row in bonuses for cell in row[2:4]]
    yield page, f"updates take [{min(factors):.1f} to {max(factors):.1f} times]"
    [recurrent, *_] = tables(under(evidence, "Recurrent policies natively"))
    ratios = [number(row[6]) for row in recurrent]
    yield page, f"updates take [{1 / min(ratios):.2f} to {1 / max(ratios):.2f} of the time]"
    [grown] = re.findall(
        r"costs (\d+) times less to collect with ([\d,]+) .* than with (\d+)", evidence
    )
    yield page, f"[{grown[0]} times cheaper](evidence/performance.md#how-time-and-memory-grow)"
    yield page, f"with {grown[1]} environments than with {grown[2]}"
    [imports] = tables(under(evidence, "What importing costs"))
    yield page, f"[{imports[0][1]}](evidence/performance.md#what-importing-costs)"
    yield page, f"with a first trainer {imports[3][1].split(' in all')[0]}"
    [kept] = re.findall(r"`export (MALLOC_[^`]*)`", read(page))
    yield "docs/evidence/performance.md", f"export {kept}"
    assert dict(x.split("=") for x in kept.split()) == page_faults.KEEPING


def broken(read: Read) -> list[str]:
    """Claims that a page does not make as its source says."""
    return missing(claims(read), read)


def missing(facts: Iterable[tuple[str, str]], read: Read) -> list[str]:
    return [f"{page}: {text}" for page, text in facts if text not in joined(read(page))]


def test_figures_are_those_of_their_sources() -> None:
    assert broken(read) == []


#: Numbers in the README's prose that are names, versions or sizes of its own examples.
NAMES = r"CartPole-v1|Acrobot-v1|Pendulum-v1|stable-baselines3|rl8|Apache-2\.0|100 episodes|5 seeds"


def figures(text: str) -> list[re.Match[str]]:
    """Numbers of a page outside of code, links, comments and names."""
    hidden = re.sub(
        rf"```.*?```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|{NAMES}",
        lambda match: re.sub(r"\d", "x", match[0]),
        text,
        flags=re.S,
    )
    return list(re.finditer(r"\d+(?:[.,]\d+)*", hidden))


def test_no_figure_of_the_readme_can_be_changed_alone() -> None:
    """Each is changed in turn; the comparison with its source notices it."""
    text = read("README.md")
    found, facts = figures(text), [fact for fact in claims(read) if fact[0] == "README.md"]
    assert len(found) > 40
    unnoticed = []
    for figure in found:
        digit = figure.end() - 1
        other = text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :]
        if not missing(facts, {"README.md": other}.__getitem__):
            unnoticed.append(text[figure.start() - 40 : figure.end() + 20])
    assert unnoticed == []


@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        ("docs/scaling.md", "1.85 (1.83 to 1.93)", "1.62 (1.60 to 1.70)"),
        ("docs/guides/models.md", "`[64, 64]` for vectors", "`[128, 128]` for vectors"),
        ("docs/guides/objectives.md", "episodes end 10,", "episodes end 4,"),
        ("docs/performance.md", "| 3.94 (3.61", "| 3.30 (3.61"),
        ("docs/guides/defaults.md", "**−80.2**", "**−90.0**"),
        ("examples/README.md", "| 0 | 61,153 |", "| 0 | 65,235 |"),
        ("examples/deep_sea/README.md", "266,240", "276,240"),
        ("docs/evidence/adapters.md", "| 1.08 | 1.09 |", "| 1.08 | 1.19 |"),
        ("docs/results.md", "**−146.2 ± 7.3**", "**−147.2 ± 7.3**"),
        ("docs/guides/trackers.md", "after 60 s in any case", "after 30 s in any case"),
        ("docs/reference/security.md", "100,000 values", "10,000 values"),
        ("docs/performance.md", "[8 to 10 µs", "[8 to 11 µs"),
        ("docs/evidence/performance.md", "=17179869184", "=4294967296"),
        ("docs/coming_from/pytorchrl.md", "2, 50, 128", "2, 50, 64"),
        ("src/everstep/core/hyperparameters.py", "(4 with images)", "(5 with images)"),
    ],
)
def test_a_source_or_a_copy_that_is_changed_alone_is_noticed(page: str, old: str, new: str) -> None:
    assert old in read(page)
    assert broken(lambda other: read(other).replace(old, new) if other == page else read(other))


# Tables: whatever they are about, rows and columns of one name have one value.

#: Pages on another library each, whose defaults have the names of ours.
_OF_OTHERS = "docs/coming_from/"

Cells = dict[tuple[str, str, str], dict[str, set[str]]]


def cells(read: Read) -> Cells:
    """Cells with a number, by the row's name, its peer and the column's, and by page."""
    found: Cells = {}
    for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")):
        page = str(path.relative_to(ROOT))
        for table in re.findall(r"(?:^\|.*\|\n)+", read(page), re.MULTILINE):
            head, _, *rows = (
                [cell.replace("*", "").strip(" `") for cell in line.strip("|").split("|")]
                for line in table.splitlines()
            )
            columns = [c for c in head[1:] if c not in ("", "default", "meaning", "peer")]
            for row in rows if not page.startswith(_OF_OTHERS) else ():
                named = dict(zip(head, row, strict=False))
                if not re.search("[A-Za-z]{3}", row[0]):
                    continue  # a seed, a size
                for column in columns:
                    if re.search(r"\d", named[column]):
                        key = (row[0], named.get("peer", ""), column)
                        found.setdefault(key, {}).setdefault(page, set()).add(named[column])
    return found


def agree(one: str, other: str) -> bool:
    """Whether cells are the same, or one has several numbers and the other their mean.

    That is the interquartile mean, with fewer than four numbers the median; both are rounded.
    """
    if one == other:
        return True
    several, single = sorted((one, other), key=len, reverse=True)
    texts = several.split(", ")
    if len(texts) < 3 or not all(re.fullmatch(r"[−-]?[\d,.]+", x) for x in (*texts, single)):
        return False
    values, cut = sorted(map(number, texts)), len(texts) // 4
    cut = cut or (len(values) - 1) // 2
    mean = sum(values[cut : len(values) - cut]) / (len(values) - 2 * cut)
    rounding = sum(0.5 * 10.0 ** -len(x.partition(".")[2]) for x in (texts[0], single))
    return abs(mean - number(single)) <= rounding + 1e-9


def contradictions(read: Read) -> list[str]:
    """Rows and columns of one name that have no value in common on two pages."""
    return [
        f"{key}: {pages[one]} in {one}, {pages[other]} in {other}"
        for key, pages in cells(read).items()
        for one, other in itertools.combinations(pages, 2)
        if not any(itertools.starmap(agree, itertools.product(pages[one], pages[other])))
    ]


def test_rows_and_columns_of_one_name_have_one_value() -> None:
    assert contradictions(read) == []
    shared = [key for key, pages in cells(read).items() if len(pages) > 1]
    assert len(shared) > 60


@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        ("docs/guides/defaults.md", "**276**", "**285**"),
        ("docs/evidence/defaults.md", "−79.5, −87.3, −83.2", "−79.5, −87.3, −73.2"),
        ("docs/evidence/results.md", "| −12.7 to 3.602 |", "| −12.7 to 3.603 |"),
        ("docs/evidence/scaling.md", "1.28 (1.20 to 1.30)", "1.29 (1.20 to 1.30)"),
    ],
)
def test_a_cell_that_is_changed_alone_is_noticed(page: str, old: str, new: str) -> None:
    assert old in read(page)
    changed = read(page).replace(old, new)
    assert contradictions(lambda other: changed if other == page else read(other))


# Capabilities.


@pytest.mark.parametrize(
    ("page", "pattern"),
    [
        ("README.md", r"for users of (.*?) environments who"),
        ("docs/index.md", r"Adapters bring (.*?) environments into"),
        ("docs/images/wrap.svg", r">(Gymnasium, [^<]*IsaacGym-style)"),
    ],
)
def test_lists_of_libraries_have_every_adapters(page: str, pattern: str) -> None:
    text = re.sub(r"</text>.*?<text[^>]*>", " ", joined(read(page)))
    found = re.search(pattern, text)
    assert found
    assert set(re.split(r",? (?:and|or) |, ?| (?=IsaacGym)", found[1])) == {
        LIBRARIES[name] for name in ADAPTERS if LIBRARIES[name]
    }


def test_the_page_of_adapters_has_every_prefix() -> None:
    [rows, *_] = tables(under(read("docs/adapters/index.md"), "Environment types"))
    assert sorted(name.strip(":") for name in names([row[2] for row in rows])) == sorted(ADAPTERS)


def test_numbers_of_environments_are_those_of_the_adapters() -> None:
    [rows] = tables(under(read("docs/guides/defaults.md"), "Numbers of environments"))
    shown = {name: row[1:] for row in rows for name in names([row[0]])}
    assert sorted(shown) == sorted(ADAPTERS)
    for name, cells in shown.items():
        module, _, attribute = ADAPTERS[name].partition(":")
        adapter = getattr(importlib.import_module(module), attribute)
        horizon = adapter.default_horizon
        if isinstance(horizon, tuple):
            horizon = "{}, or {} where no limit of episodes is known".format(*horizon)
        assert cells == [str(adapter.default_num_envs), str(horizon)], name
    own = [row[1:] for row in rows if not names([row[0]])]
    numbers = [DEFAULT_NUM_ENVS, *EPISODIC_NUM_ENVS]
    assert own == [[str(count), str(DEFAULT_HORIZON)] for count in numbers]


def test_every_extra_is_on_the_page_of_the_installation() -> None:
    [rows] = tables(read("docs/start/install.md"))
    assert sorted(names([row[0] for row in rows])) == sorted(EXTRAS)
    for page in ROOT.glob("docs/**/*.md"):
        for found in re.findall(r"(?:\"\.|everstep)\[([\w,]+)\]", page.read_text(encoding="utf-8")):
            assert set(found.split(",")) <= set(EXTRAS), page


def test_the_tutorial_lacks_the_adapters_that_its_installation_lacks() -> None:
    page = read("docs/tutorial.md")
    installed = re.search(r"\"\.\[([\w,]+)\]\"", page)
    assert installed
    needs = " ".join(
        [
            "bridge",  # which needs nothing
            *PROJECT["project"]["dependencies"],
            *(x for e in installed[1].split(",") for x in EXTRAS[e]),
        ]
    )
    unusable = [name for name in sorted(ADAPTERS) if not re.search(rf"\b{name}\b", needs)]
    assert f"These adapters cannot be used: {', '.join(unusable)}." in page


def test_what_is_missing_stands_in_one_place() -> None:
    """The documentation's first page includes the README's list; no page says otherwise."""
    assert 'start-after: "<!-- limits: begin -->"' in read("docs/index.md")
    limits = joined(
        read("README.md").split("<!-- limits: begin -->")[1].split("<!-- limits: end")[0]
    )
    assert ("Training on several GPUs has not." in limits) == (
        "**Several GPUs have not been tried.**" in read("docs/scaling.md")
    )
    assert ("has never been run with IsaacGym itself" in limits) == (
        "**It has never been run with Isaac Gym itself.**" in read("docs/adapters/isaacgym.md")
    )


def test_what_pages_call_not_available_is_not() -> None:
    found = {
        (page.name, line.split("|")[1].strip())
        for page in DOCS.glob("coming_from/*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search(r"not available|no equivalent|not supported|there is none in Everstep", line)
    }
    assert found == set()


def test_keys_that_may_change_are_those_of_the_code() -> None:
    [rows, *_] = tables(under(read("docs/guides/resume.md"), "What may change"))
    assert set(names([row[1] for row in rows])) == CHANGEABLE


def test_commands_that_set_up_are_the_same_everywhere() -> None:
    pattern = r"^python3 -m venv \.venv && \.venv/bin/pip install -c constraints\.txt -e .*$"
    found = {
        page: re.findall(pattern, read(page), re.M) for page in ("README.md", "CONTRIBUTING.md")
    }
    assert found["README.md"] == found["CONTRIBUTING.md"] != []
    build = "python -m sphinx"
    assert "sphinx myst-parser furo" in read("README.md")
    assert "sphinx myst-parser furo" in read("CONTRIBUTING.md")
    assert all(build in read(page) for page in ("README.md", "CONTRIBUTING.md"))


def test_a_picture_has_one_caption() -> None:
    captions: dict[Path, set[str]] = {}
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for caption, target in re.findall(
            r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")
        ):
            captions.setdefault((page.parent / target).resolve(), set()).add(caption)
    assert not {path.name: found for path, found in captions.items() if len(found) > 1}


# Commands.


def inline_commands() -> Iterator[tuple[str, str]]:
    """Page and command of each `everstep …` in a sentence or a table, docstrings included."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    pages += [*ROOT.glob("examples/**/*.md"), *(ROOT / "src").rglob("*.py")]
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for command in re.findall(rf"`everstep ((?:{'|'.join(commands())})\b[^`]*)`", text):
            words = " ".join(command.split())
            if not re.search(r"[…{\[|]", words):
                yield str(page.relative_to(ROOT)), words


def test_commands_in_sentences_have_the_flags_that_they_are_given() -> None:
    found = list(inline_commands())
    assert len(found) > 100
    wrong = []
    for page, command in found:
        words = shlex.split(command)
        parser = command_parsers()[words[0]]
        known = {flag for action in parser._actions for flag in action.option_strings}
        wrong += [(page, command, x) for x in words if x.startswith("--") and x not in known]
    assert wrong == []


def test_programs_that_pages_start_are_there() -> None:
    """`python -m` of a module, and `python` of a file, of this repository."""
    missing = []
    for page in (ROOT / "README.md", *DOCS.rglob("*.md"), *ROOT.glob("examples/**/*.md")):
        text = page.read_text(encoding="utf-8")
        modules = re.findall(r"python3? -m ((?:everstep\w*|examples|tests)[\w.]*)", text)
        files = re.findall(r"python ((?:examples|tests|docs)/[\w/]+\.py)", text)
        for name in [*(x.rstrip(".").replace(".", "/") for x in modules), *files]:
            places = [ROOT / x / name for x in ("", "src", "adapters")]
            if not any(x.is_file() or x.is_dir() or x.with_suffix(".py").is_file() for x in places):
                missing.append((page.name, name))
    assert missing == []


#: Tables of options on guides, and the classes that they are of.
OPTIONS: dict[str, Any] = {
    "docs/guides/symmetry.md": Symmetry,
    "docs/guides/distillation.md": Distillation,
}


@pytest.mark.parametrize("page", OPTIONS)
def test_defaults_in_tables_of_options_are_those_of_the_code(page: str) -> None:
    parameters = inspect.signature(OPTIONS[page]).parameters
    [rows] = [t for t in tables(read(page)) if t[0][0].strip("`") in parameters]
    for name, shown, _ in rows:
        default = parameters[name.strip("`")].default
        values = {inspect.Parameter.empty: "", None: "none", 0.0: "0"}
        assert shown.strip("`") == values.get(default, str(default).lower())


def test_defaults_of_normalisation_are_those_of_the_code() -> None:
    [rows, *_] = tables(read("docs/guides/normalisation.md"))
    for name, _, episodic, other in rows:
        key = name.strip("`")
        own = getattr(Hyperparameters, key)
        values = DEFAULTS[key] if own == "auto" else (own, own)
        shown = [re.match(r"`(\w+)`", cell) for cell in (other, episodic)]
        assert [x and x[1] for x in shown] == [str(x).lower() for x in values], key
