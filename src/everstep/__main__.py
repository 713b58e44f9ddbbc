"""Command line: `everstep train`, `eval`, `export`, `check`, `bench` and `doctor`.

Exit codes: 0; 1 where training failed, or a check; 2 where the command line, a file or a run is not
as it has to be; 130 and 143 where Ctrl-C or SIGTERM ended the training, which was saved before.
"""

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from . import __version__
from .errors import ConfigError, EverstepError

#: Train steps where neither the file nor the command line sets a budget.
DEFAULT_MAX_STEPS = 100


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command that `argv` holds; the process's arguments where None."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and ("overrides" not in arguments or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # argparse takes positional arguments in one piece; these stood behind an option
        arguments.overrides = [*arguments.overrides, *rest]
    # A command's module imports PyTorch, which takes seconds; `--help` is not to wait for it.
    command = importlib.import_module(f"{__package__}._cli_{arguments.command}")
    try:
        with _current_directory_importable(), _short_warnings():
            return int(command.run(arguments))
    except ConfigError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read our output has stopped, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (EverstepError, OSError) as error:
        print(f"everstep: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interruption:
        return int(getattr(interruption, "exit_code", 130))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="everstep", description="Fast PPO for batched environments."
    )
    parser.add_argument("--version", action="version", version=f"everstep {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    _add_train(commands)
    _add_eval(commands)
    _add_export(commands)
    _add_check(commands)
    _add_bench(commands)
    doctor = commands.add_parser("doctor", help="say what is installed and what works")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        help="train a policy as a configuration file says",
        description="Train a policy as a configuration file says. Modules that the file names are "
        "looked for in the current directory, too.",
    )
    train.set_defaults(default_max_steps=DEFAULT_MAX_STEPS)
    train.add_argument("-f", "--file", required=True, metavar="FILE", help="YAML or JSON file")
    _add_overrides(train, "gamma=0.99 env_kwargs.max_episode_steps=200")
    train.add_argument(
        "--max-steps",
        type=_positive,
        metavar="N",
        help="stop after N train steps of num_envs x horizon env steps (default: "
        f"{DEFAULT_MAX_STEPS} where the file has neither total_env_steps nor stop)",
    )
    train.add_argument(
        "--experiment-name", metavar="NAME", help="MLflow experiment (default: the environment)"
    )
    train.add_argument(
        "--save", metavar="DIR", help="save the policy in DIR, too, and an MLflow model of it"
    )
    train.add_argument(
        "--steps-per-eval", type=_positive, metavar="N", help="evaluate every N train steps"
    )
    train.add_argument("--seed", type=_seed, metavar="N", help="seed of policy and environment")
    train.add_argument("--run-dir", metavar="DIR", help="directory of the run (default: a new one)")
    train.add_argument("--no-mlflow", action="store_true", help="do not track the run with MLflow")


def _add_eval(commands: Any) -> None:
    evaluate = commands.add_parser(
        "eval",
        help="evaluate the policy of a run",
        description="Evaluate the policy of a run in a new environment of the run's kind.",
    )
    evaluate.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run")
    _add_overrides(evaluate, "env_kwargs.max_episode_steps=200")
    evaluate.add_argument(
        "--episodes", type=_positive, default=100, metavar="N", help="(default: %(default)s)"
    )
    evaluate.add_argument(
        "--seed", type=_seed, metavar="N", help="(default: one of its own, made of the run's)"
    )
    evaluate.add_argument("--stochastic", action="store_true", help="sample the actions")
    evaluate.add_argument("--num-envs", type=_positive, metavar="N", help="parallel environments")
    evaluate.add_argument("--json", action="store_true", help="print JSON")


def _add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        help="write the policy of a run as a model that needs PyTorch and MLflow alone",
        description="Write the policy of a run as an MLflow model that is served where Everstep "
        "is not installed.",
    )
    export.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run")
    export.add_argument("model_dir", metavar="MODEL_DIR", help="directory to write")


def _add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="check that an environment keeps the rules of the protocol",
        description="Play an environment with random actions, say what was detected in it, and "
        "check that it keeps the rules of the protocol.",
    )
    check.add_argument(
        "env", metavar="ENV", help="gymnasium:CartPole-v1, or the dotted path of a class or factory"
    )
    check.add_argument(
        "--env-kwargs",
        nargs="+",
        default=[],
        metavar="key=value",
        help="options of the environment, such as max_episode_steps=200",
    )
    check.add_argument(
        "--num-envs", type=_positive, metavar="N", help="parallel environments (default: 1, 2, 5)"
    )
    check.add_argument("--horizon", type=_positive, metavar="N", help="(default: 16 env steps)")
    check.add_argument("--device", default="cpu", metavar="DEVICE", help="(default: %(default)s)")
    check.add_argument(
        "--steps", type=_positive, default=200, metavar="N", help="env steps (default: %(default)s)"
    )
    check.add_argument("--seed", type=_seed, default=0, metavar="N", help="(default: %(default)s)")
    check.add_argument("--json", action="store_true", help="print JSON")


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure speed and learning, against other libraries, too",
        description="Run a named benchmark, or the one in a YAML file. Every side is a process of "
        "its own; their blocks alternate.",
    )
    bench.add_argument("name", nargs="?", metavar="NAME", help="benchmark, or a YAML file of one")
    bench.add_argument("--list", action="store_true", help="print the benchmarks and their peers")
    bench.add_argument("--compare", nargs="+", default=[], metavar="PEER", help="peers to measure")
    bench.add_argument(
        "--peer-python",
        nargs="+",
        action="extend",
        default=[],
        metavar="PEER=PYTHON",
        help="interpreter that has a peer, such as rl8=/path/to/python (default: this one)",
    )
    bench.add_argument("--rows", nargs="+", default=[], metavar="ROW", help="(default: all)")
    bench.add_argument(
        "--pairs", type=_positive, default=5, metavar="N", help="blocks a side (default: 5)"
    )
    bench.add_argument("--threads", type=_positive, metavar="N", help="(default: the benchmark's)")
    bench.add_argument(
        "--precision",
        nargs="+",
        choices=("fp32", "bf16", "tf32"),
        default=[],
        help="(default: the benchmark's)",
    )
    bench.add_argument("--device", choices=("cpu", "cuda"), help="(default: the benchmark's)")
    bench.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="key=value",
        help="what to change in it, such as work.num_envs=64 everstep.enable_amp=true",
    )
    bench.add_argument("--no-learning", action="store_true", help="leave out the learning check")
    bench.add_argument("--json", metavar="FILE", help="write everything that was measured, too")


def _add_overrides(parser: argparse.ArgumentParser, example: str) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help=f"what to change in the file, such as {example}",
    )


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {text}")
    return int(text)


def _seed(text: str) -> int:
    if int(text) < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0; got {text}")
    return int(text)


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    """Let `env_cls: my_env.MyEnv` find `./my_env.py`, as it would under `python -m everstep`."""
    here = os.getcwd()
    if here in sys.path or "" in sys.path or getattr(sys.flags, "safe_path", False):
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Show warnings as one line, without the line of code that raised them."""

    def show(message: Any, category: type[Warning], *place: Any, **options: Any) -> None:
        print(f"{category.__name__}: {message}", file=sys.stderr)

    before, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = before


if __name__ == "__main__":
    sys.exit(main())
