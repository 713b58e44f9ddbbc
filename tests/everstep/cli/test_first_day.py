"""Mistakes of a first day: each is refused with the thing, the rule, the value and a way out.

A row of `COMMANDS` is a command line and the words of its one error; a row of `CALLS` is a call in
Python. They are those of somebody who knows stable-baselines3, CleanRL, rsl_rl or skrl.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Categorical, Composite, Unbounded

import everstep
from everstep import (
    AlgorithmConfig,
    DiscreteDummyEnv,
    Policy,
    RecurrentTrainer,
    TrainConfig,
    Trainer,
)
from everstep.__main__ import main
from everstep.callbacks import Callback
from everstep.conditions import HitsUpperBound
from everstep.env import Env
from everstep.errors import AdapterError, CheckpointError, ConfigError, EnvError, NonFiniteError

#: What no user should read: Python's and PyTorch's words for our mistakes.
NEVER = re.compile(
    r"Traceback|NoneType|object is not|object has no attribute '(keys|memory|num_envs)'|KeyError"
    r"|mat1|positional argument|Errno"
)

OK = "env_cls: gymnasium:CartPole-v1\nnum_envs: 2\nhorizon: 8\ndevice: cpu\nseed: 0\n"

FILES = {
    "ok.yaml": f"{OK}total_env_steps: 16\n",
    "tabs.yaml": "env_cls: gymnasium:CartPole-v1\nenv_kwargs:\n\tmax_episode_steps: 5\n",
    "colon.yaml": "env_cls:gymnasium:CartPole-v1\nseed: 0\n",
    "equals.yaml": "env_cls = gymnasium:CartPole-v1\nseed = 0\n",
    "quote.yaml": 'env_cls: "gymnasium:CartPole-v1\n',
    "twice.yaml": f"{OK}seed: 1\n",
    "nested.yaml": "env: CartPole-v1\nppo: {gamma: 0.9}\n",
    "empty.yaml": "",
    "list.yaml": "- env_cls: gymnasium:CartPole-v1\n",
    "nan.yaml": f"{OK}gamma: .nan\n",
    "python.yaml": f"{OK}model_config: !!python/object:os.system {{}}\n",
    "tuple.yaml": f"{OK}model_config: {{hiddens: (64, 64)}}\n",
    "comment.json": '{"env_cls": "gymnasium:CartPole-v1"  // the pole\n}',
    "train.py": "print('hello')\n",
    "utf16.yaml": OK.encode("utf-16"),
    "latin1.yaml": f"# für\n{OK}".encode("latin-1"),
    "return.yaml": f"{OK}stop: [{{HitsUpperBound: {{key: return, bound: 475}}}}]\n",
    "rollout.yaml": f"{OK}stop: [{{HitsUpperBound: {{key: rollout/ep_rew_mean, bound: 475}}}}]\n",
    "stop.yaml": f"{OK}stop: [{{HitUpperBound: {{key: env/steps, bound: 475}}}}]\n",
    "mapping.yaml": f"{OK}stop: {{episodes/return_mean_100: 475}}\n",
    "lr_twice.yaml": f"{OK}lr: 1e-3\noptimizer_config: {{lr: 3e-4}}\n",
    "zoo.yaml": "CartPole-v1:\n  n_envs: 8\n  n_timesteps: 100000.0\n  policy: MlpPolicy\n",
    "warmup.yaml": f"{OK}lr_schedule: [[100, 1e-3]]\n",
}


def with_file(name: str) -> str:
    return f"train -f {name} --no-mlflow"


def with_key(*assignments: str) -> str:
    return " ".join([with_file("ok.yaml"), *assignments])


#: A command line, and the words of its error, in this order.
COMMANDS: dict[str, tuple[str, ...]] = {
    # ---- names of other libraries
    with_key("learning_rate=1e-3"): ("command line: learning_rate", "unknown key", "lr"),
    with_key("n_steps=8"): ("n_steps", "unknown key", "horizon"),
    with_key("batch_size=8"): ("batch_size", "unknown key", "sgd_minibatch_size"),
    with_key("n_epochs=4"): ("n_epochs", "unknown key", "num_sgd_iters"),
    with_key("ent_coef=0.1"): ("ent_coef", "unknown key", "entropy_coeff"),
    with_key("vf_coef=0.5"): ("vf_coef", "unknown key", "vf_coeff"),
    with_key("clip_range=0.1"): ("clip_range", "unknown key", "clip_param"),
    with_key("gae-lambda=0.9"): ("gae-lambda", "unknown key", "gae_lambda"),
    with_key("total_timesteps=100"): ("total_timesteps", "unknown key", "total_env_steps"),
    with_key("policy_kwargs=null"): ("policy_kwargs", "unknown key", "model_config"),
    with_key("net_arch=[64,64]"): ("net_arch", "unknown key", "model_config.hiddens"),
    with_key("num_minibatches=4"): ("unknown key", "sgd_minibatch_size: num_envs * horizon /"),
    with_key("update_epochs=4"): ("update_epochs", "unknown key", "num_sgd_iters"),
    with_key("clip_coef=0.1"): ("clip_coef", "unknown key", "clip_param"),
    with_key("anneal_lr=true"): ("anneal_lr", "unknown key", "lr_schedule"),
    with_key("num_mini_batches=4"): ("num_mini_batches", "unknown key", "sgd_minibatch_size"),
    with_key("num_learning_epochs=4"): ("num_learning_epochs", "num_sgd_iters"),
    with_key("learning_epochs=4"): ("learning_epochs", "unknown key", "num_sgd_iters"),
    with_key("desired_kl=0.01"): ("desired_kl", "unknown key", "target_kl_div"),
    with_key("use_clipped_value_loss=true"): ("unknown key", "vf_clip_param", "null"),
    with_key("actor_hidden_dims=[64]"): ("actor_hidden_dims", "model_config.hiddens"),
    with_key("mini_batches=4"): ("mini_batches", "unknown key", "sgd_minibatch_size"),
    with_key("optimizer_config.learning_rate=1"): ("learning_rate=1: unknown option", "lr", "Adam"),
    with_key("model_config.net_arch=[64]"): ("model_config.net_arch", "unknown option", "hiddens"),
    with_key("gama=0.9"): ("gama", "unknown key", "did you mean gamma?"),
    with_key("learnin_rate=1"): ("learnin_rate", "unknown key", "did you mean lr?"),
    with_key("verbose=1"): ("verbose", "unknown key", "progress is always shown"),
    with_key("use_lstm=true"): ("use_lstm", "unknown key", "`recurrent: true`"),
    with_key("train_batch_size=4"): ("unknown key", "horizon: train_batch_size / num_envs"),
    with_key("vf_loss_coeff=1"): ("vf_loss_coeff", "unknown key", "vf_coeff"),
    with_key("max_steps=5"): ("max_steps", "unknown key", "env_kwargs.max_episode_steps"),
    with_key("env_kwargs.max_steps=5"): ("env_kwargs.max_steps", "max_episode_steps: env steps"),
    with_key("num_envs=1e9"): ("rows of a rollout", "1,000,000,000", "num_envs=1e9", "at most"),
    with_key("horizon=1e11"): ("horizon=1e11", "at most 10,000,000", "rows of a rollout", "Lower"),
    with_key("lr=lin_3e-4"): ("lr", "float >= 0", "got 'lin_3e-4'", "`lr_schedule`", "'linear'"),
    with_key("run_dir=C:\\runs\\x"): ("run_dir", "C:\\runs\\x", "a path of Windows", "with /"),
    "train --run-dir C:/runs CartPole-v1": ("run_dir", "C:/runs", "a path of Windows"),
    "train CartPole-v1 --steps 64 total_env_steps=32": ("total_env_steps", "--steps", "Drop one"),
    "train CartPole-v1 seed=1 --seed 2": ("seed", "--seed", "Drop one"),
    "train": ("no environment", "everstep train CartPole-v1", "-f train.yaml"),
    "train gamma=0.9": ("no environment", "everstep train CartPole-v1"),
    with_file("zoo.yaml"): (
        "zoo.yaml:1: CartPole-v1",
        "a file of rl-zoo",
        "`env_cls: CartPole-v1`",
    ),
    "train pong": ("ALE cannot make 'pong': ale-py", "needed", "-m pip install"),
    "check breakout": ("ALE cannot make 'breakout': ale-py", "needed", "-m pip install"),
    "train Pong-v5": ("Pong-v5", "Did you mean 'ale:pong'?"),
    "train MsPacmanNoFrameskip-v4": ("Did you mean 'ale:ms_pacman'?",),
    # ---- values
    with_key("gamma=1.5"): ("command line: gamma", "float in (0, 1]", "got 1.5"),
    with_key("gamma=.99x"): ("gamma", "float in (0, 1]", "got '.99x'"),
    with_key("num_envs=0"): ("num_envs", "int > 0", "got 0"),
    with_key("num_envs=2.5"): ("num_envs", "int > 0", "got 2.5"),
    with_key("total_env_steps=-5"): ("total_env_steps", "> 0", "got -5"),
    with_key("seed=-1"): ("seed", "int >= 0", "got -1"),
    with_key("lr=-1"): ("lr", ">= 0", "got -1"),
    with_key("lr_schedule=cosine"): ("lr_schedule", "a list of [", "got 'cosine'"),
    with_key("clip_param=9"): ("clip_param", "float in (0, 1)", "got 9"),
    with_key("recurrent=yes"): ("recurrent", "bool", "got 'yes'"),
    with_key("objective=sac"): ("objective", "a2c, ppo", "got 'sac'"),
    with_key("optimizer_cls=Adam"): ("optimizer_cls", "'Adam'", "torch.optim.Adam"),
    with_key("optimizer_config=1e-3"): ("optimizer_config", "a mapping", "got 0.001"),
    with_key("bonuses=rnd"): ("bonuses", "mappings such as {'rnd'", "got 'rnd'"),
    with_key("model_config.hiddens=64"): ("hiddens", "list of int > 0", "got 64", "[64, 64]"),
    with_key("model_config.hiddens=[0]"): ("hiddens", "list of int > 0", "got [0]"),
    with_key("model_config.activation_fn=Relu"): ("activation", "'Relu'", "'relu'"),
    with_key("distribution_cls=everstep.distributions.Normal"): ("Normal needs 'mean'", "Set"),
    with_key("sgd_minibatch_size=5"): ("must divide the 16 transitions", "got 5", "4 or 8"),
    with_key("recurrent=true", "seq_len=4", "sgd_minibatch_size=3"): (
        "4 sequences",
        "/ seq_len",
        "got 3",
    ),
    with_key("recurrent=true", "seq_len=4", "sgd_minibatch_size=64"): (
        "4 sequences",
        "got 64",
        "Try 4\n",
    ),
    with_key("recurrent=true", "seq_len=3"): ("seq_len", "must divide `horizon` (8)", "2 or 4"),
    with_key("seq_len=8"): ("seq_len", "recurrent policies", "set `recurrent`"),
    with_key("device=cuda:7"): ("device", "cuda:7 is not available", "CUDA devices"),
    with_key("device=gpu"): ("device", "'cpu' or 'cuda:0'", "got 'gpu'"),
    with_key("device=mps"): ("device", "mps cannot be used", "'cpu' or 'auto'"),
    with_key("lr=1e-3", "optimizer_config.lr=1e-4"): ("0.001 and 0.0001", "Drop one"),
    with_key("env_kwargs.nope=1"): ("command line: env_kwargs.nope", "CartPole-v1"),
    with_key("gamma"): ("gamma", "expected key=value", "gamma=0.99"),
    with_key("gamma="): ("gamma", "no value given", "gamma=null"),
    with_key("--gamma=0.9"): ("--gamma=0.9", "without dashes: gamma=0.9"),
    with_key("--n-steps 5"): ("--n-steps", "without dashes: n_steps=5"),
    # ---- files
    with_file("missing.yaml"): ("missing.yaml", "cannot be read", "No such file"),
    with_file("train.py"): ("train.py", "expected a .yaml, .yml or .json file"),
    with_file("tabs.yaml"): ("tabs.yaml:3", "not valid YAML", "spaces, not tabs"),
    with_file("colon.yaml"): ("colon.yaml:2", "not valid YAML", "a colon and a space"),
    with_file("equals.yaml"): ("equals.yaml:1", "one `key: value` a line", "a single value"),
    with_file("quote.yaml"): ("quote.yaml:2", "not valid YAML", "close the quote"),
    with_file("twice.yaml"): ("twice.yaml:6", "seed: duplicate key", "twice.yaml:5"),
    with_file("nested.yaml"): ("env_cls: required, and missing", "env: unknown key", "env_cls"),
    with_file("empty.yaml"): ("empty.yaml:1", "one `key: value` a line", "nothing"),
    with_file("list.yaml"): ("list.yaml:1", "one `key: value` a line", "a list"),
    with_file("nan.yaml"): ("nan.yaml:6: gamma", "float in (0, 1]", "got nan"),
    with_file("python.yaml"): ("python.yaml:6: model_config", "tag", "drop it"),
    with_file("tuple.yaml"): ("tuple.yaml:6: model_config.64)", "unknown option", "hiddens"),
    with_file("comment.json"): ("comment.json:1", "not valid JSON"),
    with_file("utf16.yaml"): ("utf16.yaml:1", "not UTF-8", "save the file as UTF-8"),
    with_file("latin1.yaml"): ("latin1.yaml:1", "not UTF-8", "save the file as UTF-8"),
    with_file("return.yaml"): ("stop.0: return", "unknown", "episodes/return_mean_100"),
    with_file("rollout.yaml"): ("rollout/ep_rew_mean", "unknown", "episodes/return_mean_100"),
    with_file("stop.yaml"): ("HitUpperBound", "unknown condition", "HitsUpperBound?"),
    with_file("mapping.yaml"): ("mapping.yaml:6: stop", "a list", "got {"),
    with_file("lr_twice.yaml"): ("lr_twice.yaml:6: lr", "0.001 and 0.0003", "Drop one"),
    with_file("warmup.yaml"): ("lr_schedule", "must start at 0", "got [(100"),
    # ---- environments
    with_key("env_cls=gymnasium:CartPole-v7"): ("env_cls", "`v7`", "`v1`"),
    with_key("env_cls=gymnasium:Cartpole-v1"): ("env_cls", "'Cartpole-v1'", "`CartPole`"),
    with_key("env_cls=gymnasium:ALE/Pong-v5"): ("env_cls", "'ALE/Pong-v5'", "ale:pong"),
    with_key("env_cls=ALE/MsPacman-v5"): ("env_cls", "'ALE/MsPacman-v5'", "ale:ms_pacman"),
    with_key("env_cls=gym:CartPole-v1"): ("env_cls", "prefix 'gym'", "gymnasium"),
    with_key("env_cls=my_env.MyEnv"): ("env_cls", "no module named 'my_env'"),
    with_key("env_cls=os.path.join"): ("env_cls", "join"),
    with_key("env_cls=torch.nn.Linear"): ("an environment class", "`reset` and `step`", "torch"),
    with_key("env_cls=isaacgym:Cartpole"): ("IsaacGymEnvs", "Install"),
    # ---- directories and commands
    with_key("run_dir=run"): ("run_dir", "run holds a run already", "another directory"),
    with_key("--run-dir ok.yaml/x"): (
        "ok.yaml/x cannot be written",
        "ok.yaml is not a dir",
        "name",
    ),
    with_key("--run-dir ok.yaml"): ("run_dir", "ok.yaml is not a directory"),
    with_key("--max-steps 0"): ("--max-steps", "at least 1", "got 0"),
    "trian -f ok.yaml": ("COMMAND", "'trian'", "train"),
    "eval nowhere": ("nowhere: not the directory of a run", "`everstep train` prints"),
    "eval .": ("not the directory of a run", "such as"),
    "eval run env_cls=gymnasium:Acrobot-v1": ("float32 [4]", "float32 [6]", "as in training"),
    "eval run env_cls=gymnasium:FrozenLake-v1": ("float32 [4]", "of 16 options", "of 4 options"),
    "eval run gamma=0.9": ("gamma: unknown key", "env_kwargs"),
    "eval run --episodes 0": ("--episodes", "at least 1", "got 0"),
    "eval damaged": ("damaged/policy", "is damaged or not a saved state"),
    "eval early": ("early: no policy in it", "before its first one was saved"),
    "export nowhere model": ("nowhere: not the directory of a run",),
    "export run run": ("run exists already", "another place"),
    "export run --format onxx": ("--format", "onnx", "torch-export"),
    "export run model gamma=0.9": ("gamma=0.9: unknown key", "model_cls"),
    "export scripted model --trust": ("model_cls", "'MyModel'", "my_script.MyModel", "__name__"),
    "check gymnasium:Nope-v1": ("'Nope-v1'", "doesn't exist"),
    "check gymnasium:CartPole-v1 --device cuda:7": ("--device cuda:7", "cannot be used"),
    "check gymnasium:CartPole-v1 --env-kwargs x": ("env_kwargs.x", "expected key=value"),
    "bench cartpole": ("cartpole", "unknown benchmark", "everstep bench --list"),
    "bench cpu-cartpole --compare sb3": ("not compared with sb3", "stable-baselines3"),
}


@pytest.fixture(scope="module")
def first_day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files, a run, a run with a damaged policy, and one that ended before its first update."""
    here = tmp_path_factory.mktemp("first_day")
    for name, text in FILES.items():
        (here / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    config = TrainConfig.from_file(here / "ok.yaml", ["total_env_steps=16"])
    with config.build(run_dir=here / "run", track=False) as trainer:
        trainer.run()
    text = (here / "run" / "config.yaml").read_text(encoding="utf-8")
    for name in ("damaged", "early", "scripted"):
        (here / name).mkdir()
        (here / name / "config.yaml").write_text(text, encoding="utf-8")
    (here / "damaged" / "policy").write_bytes(b"half of a pol")
    (here / "scripted" / "policy").write_bytes((here / "run" / "policy").read_bytes())
    named = text.replace("model_cls: null", "model_cls: __main__.MyModel")
    (here / "scripted" / "config.yaml").write_text(named, encoding="utf-8")
    return here


@pytest.fixture
def here(first_day: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, in which a refused command leaves nothing."""
    monkeypatch.chdir(first_day)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    before = sorted(first_day.rglob("*"))
    yield first_day
    assert sorted(first_day.rglob("*")) == before


def check_words(text: str, words: tuple[str, ...]) -> None:
    """The words are in the text, in this order, and those of Python's own errors are not."""
    assert not NEVER.search(text), text
    at = 0
    for word in words:
        at = text.find(word, at)
        assert at >= 0, f"{word!r} is not in {text!r}, or not in this order"
        at += len(word)


# Gymnasium before 1.2 closes, when it is collected, an environment that was never built.
@pytest.mark.filterwarnings("ignore:Exception ignored in.*VectorEnv.__del__")
@pytest.mark.usefixtures("without_ale")
@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command_line_is_explained(
    line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(line.split())
    except SystemExit as exit:  # argparse's
        code = exit.code  # type: ignore[assignment]
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    check_words(captured.err, COMMANDS[line])


@pytest.mark.parametrize("line_end", ["\r\n", "\n"])
def test_files_of_windows_are_read(tmp_path: Path, line_end: str) -> None:
    text = "\ufeff" + OK.replace("\n", line_end)
    (tmp_path / "windows.yaml").write_bytes(text.encode())
    assert TrainConfig.from_file(tmp_path / "windows.yaml").horizon == 8


# ---- Python -----------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"num_envs": 2, "horizon": 4, "run_dir": None}


class Wrong(Env):
    """An environment with one mistake."""

    def __init__(
        self,
        num_envs: int = 2,
        /,
        horizon: None | int = 4,
        *,
        device: Any = "cpu",
        reset: Callable[[torch.Tensor], Any] = lambda obs: obs,
        action_spec: Any = None,
        **step: Any,
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(3)
        self.action_spec = action_spec or Categorical(2, shape=torch.Size([1]))
        self._reset, self._step = reset, step

    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        return self._reset(torch.zeros(self.num_envs, 3))

    def step(self, action: Any) -> Any:
        if "outcome" in self._step:
            return self._step["outcome"]
        n = self.num_envs
        row = {"obs": torch.zeros(n, 3), "rewards": torch.zeros(n, 1), **self._step}
        return TensorDict({k: v for k, v in row.items() if v is not None}, batch_size=[n])


class GymnasiumsReset(Wrong):
    def reset(self, seed: Any = None, options: Any = None) -> Any:  # type: ignore[override]
        return torch.zeros(self.num_envs, 3), {}


class NoSuper(Wrong):
    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        self.observation_spec = Unbounded(3)
        self.action_spec = Categorical(2, shape=torch.Size([1]))


class GymnasiumsSpaces(DiscreteDummyEnv):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.action_spec = gym.spaces.Discrete(2)  # type: ignore[assignment]


class Network(nn.Module):
    """A network as CleanRL has it."""

    def __init__(self, observation_spec: Any, action_spec: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Gym:
    """An environment of gym 0.21, which inherits from nothing that Gymnasium has."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)

    def reset(self) -> Any:
        return np.zeros(3, np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 0.0, False, {}


class Seedless(Gym, gym.Env[Any, Any]):  # type: ignore[misc]
    def reset(self) -> Any:
        return np.zeros(3, np.float32), {}


class GymsReset(Gym, gym.Env[Any, Any]):  # type: ignore[misc]
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32)


class Sized(GymsReset):
    def __init__(self, size: int) -> None:
        self.size = size

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), float(self.size), False, False, {}


class NoActions(gym.Env[Any, Any]):  # type: ignore[misc]
    def __init__(self) -> None:
        self.observation_space = Gym.observation_space


class Unwrapped(gym.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    def __init__(self, env: Any) -> None:
        self.env = env


class NoArgument(Callback):
    def on_train_step(self) -> None:  # type: ignore[override]
        raise AssertionError


class TwoArguments(Callback):
    def on_end(self, status: str, trainer: Any) -> None:  # type: ignore[override]
        raise AssertionError


def changed(**members: Any) -> Any:
    """A class of an environment with other members."""
    return type("Changed", (Sized,), {"__init__": lambda self: None, "size": 1, **members})


def trained(env: Any, **options: Any) -> Any:
    return Trainer(env, run_dir=None, **options).step()


def trainer() -> Trainer:
    return Trainer(DiscreteDummyEnv, **SMALL)


def untyped(value: Any) -> Any:
    """The value, for calls that type checkers refuse."""
    return value


def cartpoles() -> Env:
    return everstep.make("gymnasium:CartPole-v1", 2)


def policy() -> Any:
    return Policy.load("run/policy")


#: Names and values of a trainer's own arguments, and words of their errors.
OWN_ARGUMENTS: list[tuple[Any, ...]] = [
    ("run_dir", 3, "str or a path", "got 3"),
    ("run_dir", "", "non-empty str", "got ''"),
    ("run_dir", ["a"], "str or a path", "got ['a']"),
    ("run_dir", "~/run", "~/run", "for shells only"),
    ("run_name", 3, "str", "got 3"),
    ("experiment_name", 3, "str", "got 3"),
    ("track", "no", "bool", "got 'no'"),
    ("progress", "bar", "bool", "got 'bar'"),
    ("resume", "runs/x", "bool", "got 'runs/x'"),
    ("keep_last", 0, "int from 1", "got 0"),
    ("keep_last", None, "int from 1", "got None"),
    ("best", True, "str", "got True"),
    ("eval_episodes", "5", "int from 1", "got '5'"),
    ("record", [1], "a mapping", "got [1]"),
    ("env_kwargs", ["a"], "a mapping", "got ['a']"),
    ("checkpoint_every", 0, "'30s'", "got 0"),
    ("checkpoint_every", "5min", "'30s'", "got '5min'"),
    ("checkpoint_every", False, "'30s'", "got False"),
]

#: The same of `run`.
RUN_ARGUMENTS: list[tuple[Any, ...]] = [
    ("steps_per_eval", "1", "`run`", "`steps_per_eval`", "int > 0", "got '1'"),
    ("steps_per_eval", 1.5, "`steps_per_eval`", "int > 0", "got 1.5"),
    ("env_config", "x", "`env_config`", "a mapping", "got 'x'"),
    ("eval_env_config", [1], "`eval_env_config`", "a mapping", "got [1]"),
]

NAN = torch.tensor([[0.0, 0.0, 0.0], [float("nan")] * 3])

#: What is called, its error, and the words of it, in this order.
CALLS: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    "every mistake at once": (
        lambda: Trainer(DiscreteDummyEnv, gama=0.9, lr="x", clip_param=9, horizon=0),
        ConfigError,
        ("`gama`", "gamma?", "`horizon`", "got 0", "`lr`", "got 'x'", "`clip_param`", "got 9"),
    ),
    "names of stable-baselines3": (
        lambda: Trainer(DiscreteDummyEnv, n_steps=8, batch_size=4, n_epochs=3),
        ConfigError,
        ("n_steps", "horizon", "batch_size", "sgd_minibatch_size", "n_epochs", "num_sgd_iters"),
    ),
    "a config's names": (
        lambda: AlgorithmConfig(learning_rate=1e-3),
        ConfigError,
        ("`learning_rate`", "unknown", "lr"),
    ),
    "TrainConfig's names": (
        lambda: TrainConfig(DiscreteDummyEnv, ent_coef=0.1),
        ConfigError,
        ("`ent_coef`", "unknown", "entropy_coeff"),
    ),
    "lr twice": (
        lambda: Trainer(DiscreteDummyEnv, lr=1e-3, optimizer_config={"lr": 1e-4}, **SMALL),
        ConfigError,
        ("`lr` and `optimizer_config.lr`", "0.001 and 0.0001", "Drop one"),
    ),
    "gamma as a function": (
        lambda: Trainer(DiscreteDummyEnv, gamma=lambda left: left, **SMALL),
        ConfigError,
        ("`gamma`", "float in (0, 1]", "got <function"),
    ),
    "lr as a function of nothing": (
        lambda: Trainer(DiscreteDummyEnv, lr=lambda: 1e-3, **SMALL),
        ConfigError,
        ("`lr`", "a function of one number", "test_first_day.py:", "lambda left"),
    ),
    "hiddens as a number": (
        lambda: Trainer(DiscreteDummyEnv, model_config={"hiddens": 64}, **SMALL),
        ConfigError,
        ("`model_config.hiddens`", "list of int > 0", "got 64", "[64, 64]"),
    ),
    "an activation as a class": (
        lambda: Trainer(DiscreteDummyEnv, model_config={"activation_fn": nn.ReLU}, **SMALL),
        ConfigError,
        ("activation", "ReLU", "Did you mean 'relu'?"),
    ),
    "an optimizer's name": (
        lambda: Trainer(DiscreteDummyEnv, optimizer_cls="adam", **SMALL),
        ConfigError,
        ("`optimizer_cls`", "a subclass of Optimizer", "got 'adam'", "torch.optim.Adam"),
    ),
    "clip_param as a function": (
        lambda: Trainer(DiscreteDummyEnv, clip_param=lambda left: left * 20, **SMALL),
        ConfigError,
        ("`clip_param_schedule`", "`clip_param`", "returned 20.0 with 1", "from 0 to 1"),
    ),
    "a distribution's name": (
        lambda: Trainer(DiscreteDummyEnv, distribution_cls="Normal", **SMALL),
        ConfigError,
        ("`distribution_cls`", "got 'Normal'", "everstep.distributions.Normal"),
    ),
    "another library's class as a model": (
        lambda: Trainer(DiscreteDummyEnv, model_cls=nn.Linear, **SMALL),
        ConfigError,
        ("`model_cls`", "everstep.models.Model", "torch.nn.modules.linear.Linear", "hiddens"),
    ),
    "verbose of a run": (
        lambda: untyped(trainer()).run(total_env_steps=8, verbose=1),
        ConfigError,
        ("`run`", "`verbose`", "unknown argument", "`progress=False`"),
    ),
    "verbose of a config": (
        lambda: AlgorithmConfig(verbose=1),
        ConfigError,
        ("`verbose`", "unknown field", "`progress=False`"),
    ),
    "lr as a function of two numbers": (
        lambda: Trainer(DiscreteDummyEnv, lr=lambda step, left: 1e-3, **SMALL),
        ConfigError,
        ("`lr`", "a function of one number", "test_first_day.py:", "lambda left"),
    ),
    "lr as a function that returns text": (
        lambda: Trainer(DiscreteDummyEnv, lr=lambda left: "high", **SMALL),
        ConfigError,
        ("`lr`", "test_first_day.py:", "returned 'high' with 1", "from 0 to 1000"),
    ),
    "an optimizer of another kind": (
        lambda: Trainer(DiscreteDummyEnv, optimizer_cls="RMSprop", **SMALL),
        ConfigError,
        ("`optimizer_cls`", "a subclass of Optimizer", "got 'RMSprop'", "torch.optim.Adam"),
    ),
    "a network's class as a model": (
        lambda: Trainer(DiscreteDummyEnv, model_cls=nn.LSTM, **SMALL),
        ConfigError,
        ("`model_cls`", "everstep.models.Model", "torch.nn.modules.rnn.LSTM", "hiddens"),
    ),
    "verbose": (
        lambda: Trainer(DiscreteDummyEnv, verbose=1, **SMALL),
        ConfigError,
        ("`verbose`", "unknown argument", "`progress=False`"),
    ),
    "the budget as an argument": (
        lambda: Trainer(DiscreteDummyEnv, total_timesteps=100, **SMALL),
        ConfigError,
        ("`total_timesteps`", "an argument of `run`", "trainer.run(total_env_steps=…)"),
    ),
    "a callback without a list": (
        lambda: Trainer(DiscreteDummyEnv, callbacks=Callback(), **SMALL),
        ConfigError,
        ("`callbacks`", "a list", "got Callback", "`callbacks=[…]`"),
    ),
    "loggers without a list": (
        lambda: Trainer(DiscreteDummyEnv, loggers="tensorboard", **SMALL),
        ConfigError,
        ("`loggers`", "a list", "got 'tensorboard'", "`loggers=['tensorboard']`"),
    ),
    "no loggers": (
        lambda: Trainer(DiscreteDummyEnv, loggers=None, **SMALL),
        ConfigError,
        ("`loggers`", "a list", "got None", "leave it out"),
    ),
    "a callback of a run": (
        lambda: untyped(trainer()).run(total_env_steps=8, callback=Callback()),
        ConfigError,
        ("`run`", "`callback`", "unknown argument", "Trainer(…, callbacks=[…])"),
    ),
    "a callback that is a function": (
        lambda: Trainer(DiscreteDummyEnv, callbacks=print, **SMALL),
        ConfigError,
        ("`callbacks`", "a list", "everstep.callbacks.Callback"),
    ),
    "save with a name": (
        lambda: trainer().save("x.zip"),  # type: ignore[call-arg]
        ConfigError,
        ("`save`", "no argument", "got 'x.zip'", "`run_dir`", "policy.save('x.zip')"),
    ),
    "a policy's save without a name": (
        lambda: trainer().algorithm.policy.save(),  # type: ignore[call-arg]
        ConfigError,
        ("`save`", "'path'", "Write `save('my_policy')`"),
    ),
    "a policy's path of Windows": (
        lambda: policy().save("C:\\policies\\x"),
        ConfigError,
        ("`path`", "C:\\policies\\x", "a path of Windows", "with /"),
    ),
    "an export's path of Windows": (
        lambda: policy().export("C:/policies/x", format="torch-export"),
        ConfigError,
        ("`path`", "C:/policies/x", "a path of Windows", "with /"),
    ),
    "a run's path of Windows": (
        lambda: TrainConfig(DiscreteDummyEnv, run_dir="C:\\runs\\x").build(),
        ConfigError,
        ("`run_dir`", "C:\\runs\\x", "a path of Windows", "with /"),
    ),
    "loading a name of stable-baselines3": (
        lambda: Trainer.load("x.zip"),
        ConfigError,
        ("x.zip", "not the directory of a run", "`everstep train` prints"),
    ),
    "n_eval_episodes of a trainer": (
        lambda: trainer().eval(n_eval_episodes=2),  # type: ignore[call-arg]
        ConfigError,
        ("`eval`", "`n_eval_episodes`", "Everstep's name is episodes"),
    ),
    "n_eval_episodes": (
        lambda: everstep.evaluate(policy(), cartpoles(), n_eval_episodes=2),  # type: ignore[call-arg]
        ConfigError,
        ("`evaluate`", "`n_eval_episodes`", "Everstep's name is episodes"),
    ),
    "eval of a number": (
        lambda: trainer().eval(2),  # type: ignore[call-arg]
        ConfigError,
        ("`eval`", "keyword arguments only", "got 2", "`eval(episodes=2)`"),
    ),
    "an evaluation environment by name": (
        lambda: Trainer(DiscreteDummyEnv, eval_env="CartPole-v1", **SMALL),
        ConfigError,
        ("`eval_env`", "got 'CartPole-v1'", "everstep.make('CartPole-v1', 8)"),
    ),
    "an evaluation environment as a class": (
        lambda: Trainer(DiscreteDummyEnv, eval_env=DiscreteDummyEnv, **SMALL),
        ConfigError,
        ("`eval_env`", "got <class", "everstep.make(DiscreteDummyEnv, 8)"),
    ),
    "evaluation environments in a list": (
        lambda: Trainer(DiscreteDummyEnv, eval_env=[DiscreteDummyEnv(2)], **SMALL),
        EnvError,
        ("list is not an environment", "got [DiscreteDummyEnv"),
    ),
    "an evaluation environment that is single": (
        lambda: Trainer(DiscreteDummyEnv, eval_env=gym.make("CartPole-v1"), **SMALL),
        EnvError,
        ("one of Gymnasium", "everstep.wrap"),
    ),
    "an evaluation environment of other specs": (
        lambda: Trainer("CartPole-v1", eval_env=everstep.make("Acrobot-v1", 2), **SMALL),
        ConfigError,
        ("trained with", "float32 [4]", "float32 [6]"),
    ),
    "a model as a class": (
        lambda: Trainer(DiscreteDummyEnv, model_cls=nn.Linear(1, 2), **SMALL),
        ConfigError,
        ("`model_cls`", "a class or a function", "Linear", "pass it as `model`"),
    ),
    "a plain network": (
        lambda: Trainer(DiscreteDummyEnv, model_cls=Network, **SMALL),
        ConfigError,
        ("Network", "cannot act on an observation of zeros", "Set `model_cls`"),
    ),
    "a feedforward model in a recurrent policy": (
        lambda: RecurrentTrainer(
            DiscreteDummyEnv, model_cls=everstep.models.DefaultDiscreteModel, **SMALL
        ),
        ConfigError,
        ("DefaultDiscreteModel", "feedforward", "use Trainer"),
    ),
    "minibatches that do not fit": (
        lambda: Trainer(DiscreteDummyEnv, sgd_minibatch_size=5, **SMALL),
        ConfigError,
        ("`sgd_minibatch_size`", "8 transitions", "got 5", "Try 4 or 8"),
    ),
    "another number of environments": (
        lambda: Trainer(DiscreteDummyEnv(4), num_envs=2, run_dir=None),
        ConfigError,
        ("`num_envs` is 2", "has 4", "leave it out"),
    ),
    "learn": (lambda: trainer().learn(1000), AttributeError, ("'learn'", "run(total_env_steps=")),
    "train": (lambda: trainer().train(), AttributeError, ("'train'", "run(total_env_steps=")),
    "fit": (lambda: trainer().fit(), AttributeError, ("'fit'", "run(total_env_steps=")),
    "a trainer's policy": (lambda: trainer().policy, AttributeError, ("algorithm.policy",)),
    "a trainer's environment": (
        lambda: trainer().get_env(),
        AttributeError,
        ("'get_env'", "algorithm.env"),
    ),
    "a trainer's config": (lambda: trainer().config, AttributeError, ("algorithm.config",)),
    "a config beside the environment": (
        lambda: Trainer(DiscreteDummyEnv, config=AlgorithmConfig(), **SMALL),
        ConfigError,
        ("`config`", "its fields are arguments", "config.build(env)"),
    ),
    "a class of vector environments": (
        lambda: Trainer("CartPole-v1", vec_env_cls=gym.vector.AsyncVectorEnv, **SMALL),
        ConfigError,
        ("`vec_env_cls`", "env_kwargs", "'vectorization_mode': 'async'"),
    ),
    "a trainer's predict": (
        lambda: trainer().predict(0),
        AttributeError,
        ("'predict'", "algorithm.policy.predict"),
    ),
    "run(total_timesteps=…)": (
        lambda: trainer().run(total_timesteps=100),
        ConfigError,
        ("run`", "`total_timesteps`", "unknown", "total_env_steps"),
    ),
    "run(100)": (
        lambda: untyped(trainer()).run(100),
        ConfigError,
        ("`run`", "keyword arguments only", "got 100", "`run(total_env_steps=100)`"),
    ),
    "a policy's name before the environment": (
        lambda: untyped(Trainer)("MlpPolicy", DiscreteDummyEnv(2), run_dir=None),
        ConfigError,
        ("`Trainer`", "one value", "'MlpPolicy', DiscreteDummyEnv", "`Trainer(env, …)`", "model"),
    ),
    "a budget behind the environment": (
        lambda: untyped(RecurrentTrainer)(DiscreteDummyEnv, 100),
        ConfigError,
        ("`RecurrentTrainer`", "one value", "got 2", "`RecurrentTrainer(env, …)`"),
    ),
    "the environment by name": (
        lambda: untyped(Trainer)(env="CartPole-v1"),
        ConfigError,
        ("`Trainer` needs an environment", "without a name", "Trainer('CartPole-v1')"),
    ),
    "run without a budget": (lambda: trainer().run(), ConfigError, ("total_env_steps",)),
    "a budget in words": (
        lambda: trainer().run(total_env_steps="1M"),
        ConfigError,
        ("`total_env_steps`", "a number > 0", "got '1M'"),
    ),
    "a negative budget": (
        lambda: trainer().run(total_env_steps=-1),
        ConfigError,
        ("`total_env_steps`", "a number > 0", "got -1"),
    ),
    "a condition without a list": (
        lambda: trainer().run(stop_conditions=HitsUpperBound("env/steps", 9)),
        ConfigError,
        ("`stop_conditions`", "a list", "HitsUpperBound("),
    ),
    "a condition as in a file": (
        lambda: trainer().run(stop_conditions=[{"HitsUpperBound": {}}]),
        ConfigError,
        ("`stop_conditions`", "conditions", "got {"),
    ),
    "hyperparameters beside an algorithm": (
        lambda: Trainer(AlgorithmConfig(num_envs=2, horizon=4).build(DiscreteDummyEnv), gamma=0.9),
        ConfigError,
        ("has a config already", "drop gamma"),
    ),
    # ---- environments
    "no environment": (lambda: Trainer(None), AdapterError, ("environment", "got None")),
    "no environments": (
        lambda: everstep.make("gymnasium:CartPole-v1", 0),
        ValueError,
        ("`num_envs`", "at least 1", "got 0"),
    ),
    "a number of environments as text": (
        lambda: everstep.make("CartPole-v1", "8"),  # type: ignore[call-overload]
        ValueError,
        ("`num_envs`", "an integer of at least 1", "got '8'"),
    ),
    "half an environment": (
        lambda: everstep.make("CartPole-v1", 2.5),  # type: ignore[call-overload]
        ValueError,
        ("`num_envs`", "an integer of at least 1", "got 2.5"),
    ),
    "no horizon": (
        lambda: everstep.make("gymnasium:CartPole-v1", 2, horizon=0),
        ValueError,
        ("`horizon`", "at least 1", "got 0"),
    ),
    "no number of environments": (
        lambda: everstep.make("CartPole-v1"),  # type: ignore[call-overload]
        ConfigError,
        ("`make`", "'num_envs'", "make('CartPole-v1', num_envs)"),
    ),
    "n_envs": (
        lambda: everstep.make("CartPole-v1", n_envs=2),  # type: ignore[call-overload]
        ConfigError,
        ("`make`", "`n_envs`", "Everstep's name is num_envs"),
    ),
    "max_steps of an environment": (
        lambda: everstep.make("CartPole-v1", 2, max_steps=5),  # type: ignore[call-arg]
        AdapterError,
        ("CartPole-v1", "`max_steps`", "max_episode_steps"),
    ),
    "more environments than memory": (
        lambda: everstep.make("CartPole-v1", 10**12),
        ConfigError,
        ("`num_envs` 1,000,000,000,000", "GiB", "this machine has", "Lower"),
    ),
    "more rows than memory": (
        lambda: Trainer("CartPole-v1", num_envs=8, horizon=10**9, run_dir=None),
        ConfigError,
        ("`horizon`", "at most 10,000,000", "got 1000000000", "Lower one"),
    ),
    "a list of names": (
        lambda: Trainer(["CartPole-v1"] * 2, run_dir=None),
        AdapterError,
        ("got ['CartPole-v1'", "one of them by its id", "`num_envs`"),
    ),
    "a list of environments": (
        lambda: everstep.make([gym.make("CartPole-v1")] * 2, 2),  # type: ignore[call-overload]
        AdapterError,
        ("got [<TimeLimit", "one of them by its id", "`num_envs`"),
    ),
    "max_steps of a trainer": (
        lambda: Trainer("CartPole-v1", max_steps=5, **SMALL),
        ConfigError,
        ("`max_steps`", "unknown argument", "env_kwargs.max_episode_steps"),
    ),
    "a list of functions": (
        lambda: Trainer([lambda: gym.make("CartPole-v1")] * 2, run_dir=None),
        AdapterError,
        ("got [<function", "One function", "`num_envs=2`", "SyncVectorEnv"),
    ),
    "arguments of a constructor": (
        lambda: everstep.make(Sized, 2),
        AdapterError,
        ("'Sized'", "missing", "`env_kwargs={'size': …}`"),
    ),
    "arguments of a trainer's environment": (
        lambda: trained(Sized, num_envs=2, horizon=4),
        AdapterError,
        ("'Sized'", "missing", "`env_kwargs={'size': …}`"),
    ),
    "arguments of an environment that exists": (
        lambda: Trainer(DiscreteDummyEnv(2), env_kwargs={"size": 2}, run_dir=None),
        ConfigError,
        ("`env_kwargs`", "exists already", "{'size': 2}", "its constructor"),
    ),
    "a reset without a seed": (
        lambda: trained(Seedless, num_envs=2, horizon=4),
        EnvError,
        ("Seedless.reset", "'seed'", "seed=None, options=None", "Shimmy"),
    ),
    "gym's reset": (
        lambda: trained(GymsReset, num_envs=2, horizon=4),
        EnvError,
        ("`reset`", "returns an observation and a dict", "Shimmy"),
    ),
    "an environment of gym": (
        lambda: trained(Gym, num_envs=2, horizon=4),
        AdapterError,
        ("Gym", "inherit from `gymnasium.Env`", "Shimmy"),
    ),
    "wrap of a single environment": (
        lambda: everstep.wrap(gym.make("CartPole-v1")),
        AdapterError,
        ("single Gymnasium environment", "make_vec"),
    ),
    "wrap of a name": (
        lambda: everstep.wrap("CartPole-v1"),
        AdapterError,
        ("`wrap` takes an environment", "everstep.make('CartPole-v1'"),
    ),
    "reset as Gymnasium has it": (
        lambda: trained(GymnasiumsReset()),
        EnvError,
        ("GymnasiumsReset.reset", "`config`", "def reset(self, *, config=None)", "got", "options"),
    ),
    "no super().__init__": (
        lambda: trained(NoSuper(2)),
        EnvError,
        ("NoSuper has no `num_envs`", "super().__init__"),
    ),
    "spaces for specs": (
        lambda: trained(GymnasiumsSpaces, num_envs=2, horizon=4),
        EnvError,
        ("action_spec", "torchrl.data", "got Discrete(2)"),
    ),
    "an array of observations": (
        lambda: trained(Wrong(reset=lambda obs: obs.numpy())),
        EnvError,
        ("`obs`", "expected a tensor", "Fix"),
    ),
    "observations and infos": (
        lambda: trained(Wrong(reset=lambda obs: (obs, {}))),
        EnvError,
        ("`obs`", "type tuple", "expected a tensor"),
    ),
    "observations of another shape": (
        lambda: trained(Wrong(obs=torch.zeros(2, 4))),
        EnvError,
        ("`obs`", "[2, 4]", "expected [2, 3]", "Fix"),
    ),
    "float64": (
        lambda: trained(Wrong(obs=torch.zeros(2, 3, dtype=torch.float64))),
        EnvError,
        ("`obs`", "float64", "expected torch.float32", "Fix"),
    ),
    "rewards without a column": (
        lambda: trained(Wrong(rewards=torch.zeros(2))),
        EnvError,
        ("`rewards`", "[2]", "expected [2, 1]", "Fix"),
    ),
    "integer rewards": (
        lambda: trained(Wrong(rewards=torch.ones(2, 1, dtype=torch.int64))),
        EnvError,
        ("`rewards`", "int64", "floating point", "Fix"),
    ),
    "five results": (
        lambda: trained(Wrong(outcome=(0, 0, False, False, {}))),
        EnvError,
        ("`Env.step`", "TensorDict", "got tuple"),
    ),
    "reward for rewards": (
        lambda: trained(Wrong(rewards=None, reward=torch.zeros(2, 1))),
        EnvError,
        ("`Env.step`", "'rewards' is missing", "'reward'"),
    ),
    "ends that are not declared": (
        lambda: trained(Wrong(terminated=torch.zeros(2, 1, dtype=torch.bool))),
        EnvError,
        ("`terminated`", "`episode_keys`", "are empty", "Set `episode_keys = ", "leave them out"),
    ),
    "NaN in observations": (
        lambda: trained(Wrong(obs=NAN)),
        NonFiniteError,
        ("`obs` of environment 1", "nan", "fix the environment"),
    ),
    "infinite rewards": (
        lambda: trained(Wrong(rewards=torch.full((2, 1), float("inf")))),
        NonFiniteError,
        ("`rewards` of environment 0", "inf", "fix the environment"),
    ),
    "actions without a shape": (
        lambda: trained(Wrong(action_spec=Categorical(2))),
        EnvError,
        ("`action_spec`", "empty shape", "[1]"),
    ),
    "a mapping of actions": (
        lambda: trained(Wrong(action_spec=Composite(a=Unbounded(1)))),
        ConfigError,
        ("no default model for actions of Composite", "set `model_cls`"),
    ),
    "unbounded integers as actions": (
        lambda: trained(Wrong(action_spec=Unbounded((1,), dtype=torch.int64))),
        ConfigError,
        ("no default model for actions", "int64", "set `model_cls`"),
    ),
    # ---- policies
    "no file": (lambda: Policy.load("nope"), CheckpointError, ("nope", "no such file")),
    "a file that is no policy": (
        lambda: Policy.load("ok.yaml"),
        CheckpointError,
        ("ok.yaml", "not a saved state"),
    ),
    "a feedforward policy as a recurrent one": (
        lambda: everstep.RecurrentPolicy.load("run/policy"),
        CheckpointError,
        ("run/policy holds a Policy", "RecurrentPolicy"),
    ),
    "evaluation of a trainer": (
        lambda: everstep.evaluate(trainer(), cartpoles()),
        ConfigError,
        ("`policy`", "trainer.algorithm.policy", "got Trainer"),
    ),
    "evaluation in a name": (
        lambda: everstep.evaluate(policy(), "CartPole-v1"),
        EnvError,
        ("str is not an environment", "'CartPole-v1'"),
    ),
    "evaluation in a single environment": (
        lambda: everstep.evaluate(policy(), gym.make("CartPole-v1")),
        EnvError,
        ("is not an Everstep environment", "Gymnasium", "everstep.make"),
    ),
    "evaluation in another environment": (
        lambda: everstep.evaluate(policy(), everstep.make("gymnasium:Acrobot-v1", 2)),
        ConfigError,
        ("trained with", "float32 [4]", "float32 [6]"),
    ),
    # ---- arguments of another type
    **{
        f"{name}={value!r} of a trainer": (
            lambda arguments=arguments: Trainer(DiscreteDummyEnv, **{**SMALL, **arguments}),
            ConfigError,
            (f"`{name}`", *words),
        )
        for name, value, *words in OWN_ARGUMENTS
        for arguments in [{name: value}]
    },
    **{
        f"{name}={value!r} of `run`": (
            lambda arguments=arguments: trainer().run(**{"total_env_steps": 8, **arguments}),
            ConfigError,
            (*words,),
        )
        for name, value, *words in RUN_ARGUMENTS
        for arguments in [{name: value}]
    },
    "episodes in words": (
        lambda: trainer().eval(episodes=untyped("3")),
        ConfigError,
        ("`eval`", "`episodes`", "int from 1 to 1,000,000", "got '3'"),
    ),
    "half an episode": (
        lambda: everstep.evaluate(policy(), cartpoles(), episodes=untyped(2.5)),
        ConfigError,
        ("`evaluate`", "`episodes`", "int from 1", "got 2.5"),
    ),
    "evaluation with a word for a flag": (
        lambda: everstep.evaluate(policy(), cartpoles(), deterministic=untyped("no")),
        ConfigError,
        ("`evaluate`", "`deterministic`", "bool", "got 'no'"),
    ),
    "a step with a number": (
        lambda: untyped(trainer()).step(5),
        ConfigError,
        ("`step`", "got 5", "run(total_env_steps=5)"),
    ),
    "options that are a list": (
        lambda: everstep.make("CartPole-v1", 2, env_kwargs=untyped([1])),
        ConfigError,
        ("`make`", "`env_kwargs`", "a mapping", "got [1]"),
    ),
    "a device that PyTorch does not know": (
        lambda: everstep.make("CartPole-v1", 2, device="gpu"),
        ConfigError,
        ("`device`", "'cpu' or 'cuda:0'", "got 'gpu'"),
    ),
    "another CPU": (
        lambda: trained(DiscreteDummyEnv, num_envs=2, horizon=4, device="cpu:1"),
        ConfigError,
        ("`device` cpu:1", "a CPU is one device", "'cpu'"),
    ),
    "another CPU of an environment": (
        lambda: everstep.make("CartPole-v1", 2, device="cpu:3"),
        ConfigError,
        ("`device` cpu:3", "a CPU is one device", "'cpu'"),
    ),
    "True environments": (
        lambda: everstep.make("CartPole-v1", True),
        ValueError,
        ("`num_envs`", "an integer of at least 1", "got True"),
    ),
    "a policy's name that is a number": (
        lambda: policy().save(3),
        ConfigError,
        ("`save`", "`path`", "str or a path", "got 3"),
    ),
    "a policy's name that is empty": (
        lambda: policy().save(""),
        ConfigError,
        ("`save`", "`path`", "non-empty str", "got ''"),
    ),
    "a policy's name that is a directory": (
        lambda: policy().save("run"),
        ConfigError,
        ("`path`", "run is a directory", "name a file"),
    ),
    "a home of a shell": (
        lambda: policy().save("~/x"),
        ConfigError,
        ("`path`", "~/x", "for shells only", "os.path.expanduser"),
    ),
    "a policy without a name": (
        lambda: untyped(Policy).load(),
        ConfigError,
        ("`load`", "'path'", "load('my_policy')"),
    ),
    "a policy of an environment": (
        lambda: untyped(Policy).load("x", env=3),
        ConfigError,
        ("`load`", "`env`", "unknown argument"),
    ),
    "a run that is a number": (
        lambda: Trainer.load(untyped(3)),
        ConfigError,
        ("`load`", "`run_dir`", "str or a path", "got 3"),
    ),
    "a file that is a mapping": (
        lambda: TrainConfig.from_file(untyped({"env_cls": "x"})),
        ConfigError,
        ("`from_file`", "`path`", "str or a path", "got {"),
    ),
    "overrides that are a text": (
        lambda: TrainConfig.from_file("ok.yaml", "gamma=0.9"),
        ConfigError,
        ("`from_file`", "`overrides`", "a list", "got 'gamma=0.9'", "['gamma=0.99']"),
    ),
    "overrides that are a mapping": (
        lambda: TrainConfig.from_file("ok.yaml", untyped({"gamma": 0.9})),
        ConfigError,
        ("`from_file`", "`overrides`", "a list", "got {", "['gamma=0.99']"),
    ),
    # ---- callbacks and conditions
    "a hook without an argument": (
        lambda: Trainer(DiscreteDummyEnv, callbacks=[NoArgument()], **SMALL),
        ConfigError,
        ("`callbacks`", "NoArgument.on_train_step()", "one argument", "(self, stats)"),
    ),
    "a hook with another argument": (
        lambda: Trainer(DiscreteDummyEnv, callbacks=[TwoArguments()], **SMALL),
        ConfigError,
        ("`callbacks`", "TwoArguments.on_end(", "one argument", "(self, status)"),
    ),
    "a condition's class": (
        lambda: trainer().run(stop_conditions=[untyped(HitsUpperBound)]),
        ConfigError,
        ("`stop_conditions`", "HitsUpperBound('episodes/return_mean_100', 475)", "got <class"),
    ),
    "a condition without an argument": (
        lambda: trainer().run(stop_conditions=[untyped(lambda: True)]),
        ConfigError,
        ("`stop_conditions`", "one argument", "lambda stats", "got <function"),
    ),
    "the best of what there is not": (
        lambda: Trainer(DiscreteDummyEnv, best="return", **SMALL),
        ConfigError,
        ("`best`", "return", "unknown statistic", "episodes/return_mean_100"),
    ),
    # ---- environments of Gymnasium
    "a step without a return": (
        lambda: trained(changed(step=lambda self, action: None), num_envs=2, horizon=4),
        EnvError,
        ("`step`", "returned None", "five values", "missing `return`"),
    ),
    "a reset without a return": (
        lambda: trained(
            changed(reset=lambda self, seed=None, options=None: None), num_envs=2, horizon=4
        ),
        EnvError,
        ("`reset`", "returned None", "an observation and a dict", "missing `return`"),
    ),
    "a step without a return in another process": (
        lambda: trained(
            everstep.make(changed(step=lambda self, action: None), 2, vectorization_mode="async"),
            horizon=4,
        ),
        EnvError,
        ("`step`", "returned None", "five values", "missing `return`"),
    ),
    "no infos": (
        lambda: trained(
            changed(step=lambda self, action: (np.zeros(3, np.float32), 0.0, False, False, None)),
            num_envs=2,
            horizon=4,
        ),
        EnvError,
        ("`info`", "a dict", "got None", "Return `{}`"),
    ),
    "no action space": (
        lambda: everstep.make(NoActions, 2),
        AdapterError,
        ("`action_space` of NoActions", "a space of Gymnasium", "self.action_space"),
    ),
    "a shape for a space": (
        lambda: everstep.make(changed(observation_space=(3,)), 2),
        AdapterError,
        ("`observation_space`", "a space of Gymnasium", "got (3,)", "Box("),
    ),
    "a number for a space": (
        lambda: everstep.make(changed(action_space=2), 2),
        AdapterError,
        ("`action_space`", "a space of Gymnasium", "got 2", "Discrete(2)"),
    ),
    "a wrapper without super().__init__": (
        lambda: everstep.make(lambda: Unwrapped(GymsReset()), 2),
        AdapterError,
        ("`observation_space` of Unwrapped", "super().__init__(env)"),
    ),
    "a function that returns a class": (
        lambda: everstep.make(lambda: GymsReset, 2),
        AdapterError,
        ("must return an environment", "got <class", "Give GymsReset itself"),
    ),
    "no episodes": (
        lambda: everstep.evaluate(policy(), cartpoles(), episodes=0),
        ValueError,
        ("`evaluate`", "`episodes`", "int from 1", "got 0"),
    ),
}


@pytest.mark.parametrize("mistake", CALLS)
def test_a_wrong_call_is_explained(mistake: str, here: Path) -> None:
    call, kind, words = CALLS[mistake]
    with pytest.raises(kind) as raised:
        call()
    check_words(str(raised.value), words)


@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_error_of_an_environments_own_is_not_explained_by_its_observations(method: str) -> None:
    def fails(self: Any, *arguments: Any, **options: Any) -> Any:
        raise RuntimeError("boom")

    with pytest.raises(EnvError) as raised:
        trained(changed(**{method: fails}), num_envs=2, horizon=4)
    assert str(raised.value).endswith(f" failed in `{method}`: RuntimeError: boom")


def test_other_libraries_words_that_mean_the_same_are_taken() -> None:
    with everstep.make("CartPole-v1", num_envs=2) as env:
        assert env.num_envs == 2
    with everstep.make(Sized, 2, env_kwargs={"size": 3}) as env:
        env.reset()
        assert env.step(torch.zeros(2, 1, dtype=torch.long))["rewards"].tolist() == [[3.0]] * 2
    stats = trained(Sized, env_kwargs={"size": 3}, num_envs=2, horizon=4)
    assert stats["rewards/mean"] == 3.0


def test_modules_are_attributes_without_an_import() -> None:
    code = "import everstep; print(everstep.adapters.GymnasiumEnv.family, everstep.config.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["Gymnasium", "everstep.config"]


def test_names_of_other_libraries_classes_are_answered() -> None:
    with pytest.raises(AttributeError, match=r"'PPO': here everstep.Trainer\('CartPole-v1'"):
        everstep.PPO  # noqa: B018
    with pytest.raises(AttributeError, match=r"'SAC': here .*trains PPO and A2C"):
        everstep.SAC  # noqa: B018
    with pytest.raises(ImportError, match=r"VecNormalize.*normalize_observations"):
        from everstep import VecNormalize  # noqa: F401
    assert not hasattr(everstep, "PPO")
    assert not hasattr(everstep, "nothing_of_the_kind")


SCRIPT = """
from everstep import DiscreteDummyEnv, Trainer
from everstep.models import DefaultDiscreteModel


class MyModel(DefaultDiscreteModel):
    pass


if __name__ == "__main__":
    small = {"num_envs": 2, "horizon": 4, "track": False}
    with Trainer(DiscreteDummyEnv, model_cls=MyModel, run_dir="mine", **small) as trainer:
        trainer.run(total_env_steps=8)
"""


@pytest.mark.slow
def test_a_model_of_a_script_is_exported_by_the_scripts_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_script.py").write_text(SCRIPT, encoding="utf-8")
    subprocess.run([sys.executable, "my_script.py"], check=True, capture_output=True)
    assert main(["export", "mine", "model"]) == 2
    check_words(capsys.readouterr().err, ("model_cls", "'MyModel'", "my_script.MyModel"))
    assert main(["export", "mine", "model", "model_cls=my_script.MyModel"]) == 0
    assert (tmp_path / "model").is_dir()
    assert main(["eval", "mine", "model_cls=my_script.MyModel", "--episodes", "2"]) == 0


def test_there_are_fifty_mistakes() -> None:
    assert len(COMMANDS) >= 50
    assert len(CALLS) >= 50
