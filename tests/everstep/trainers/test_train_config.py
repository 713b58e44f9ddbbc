"""Training configurations: every mistake at once with its line, and files that make trainers."""

import copy
import functools
import json
import pickle
import sys
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import everstep
from everstep.algorithms import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.conditions import HitsUpperBound, Or, Plateaus
from everstep.config import dump
from everstep.env import ContinuousDummyEnv, DiscreteDummyEnv
from everstep.errors import ConfigError
from everstep.trainers import TrainConfig, Trainer
from everstep.trainers.config import HYPERPARAMETERS
from tests.toys import Episode, scripted_vector_env

CARTPOLE = "gymnasium:CartPole-v1"
DUMMY = "everstep.env.DiscreteDummyEnv"


class ConfigurableEnv(DiscreteDummyEnv):
    max_num_envs = 64
    default_num_envs = 4

    def __init__(self, num_envs, /, horizon=None, *, device="cpu", size=1, colour="red"):
        super().__init__(num_envs, horizon, device=device)
        self.size, self.colour = size, colour


class DemandingEnv(DiscreteDummyEnv):
    def __init__(self, num_envs, /, horizon=None, *, device="cpu", size):
        super().__init__(num_envs, horizon, device=device)


def make_env(num_envs, /, horizon=None, *, device="cpu"):
    return DiscreteDummyEnv(num_envs, horizon, device=device)


def without_device(num_envs, horizon=None):
    return DiscreteDummyEnv(num_envs, horizon)


CONFIGURABLE = f"{__name__}.ConfigurableEnv"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file in an empty current directory; returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(content, name="train.yaml"):
        (tmp_path / name).write_text(content if isinstance(content, str) else dump(content))
        return name

    return write


@pytest.fixture
def nothing_else_written(tmp_path):
    yield
    assert sorted(path.name for path in tmp_path.iterdir()) in ([], ["train.yaml"])


def problems_of(call):
    with pytest.raises(ConfigError) as caught:
        call()
    return list(caught.value.problems)


def problems_in(write, content, overrides=()):
    return problems_of(lambda: TrainConfig.from_file(write(content), overrides))


# ---- what a file can get wrong ----------------------------------------------------------------

#: The second line of a file whose first is good, and how its one problem begins.
BAD_LINES = [
    # unknown keys
    ("gama: 0.9", "gama: unknown key (did you mean gamma?)"),
    ("Gamma: 0.9", "Gamma: unknown key (did you mean gamma?)"),
    ("num_env: 8", "num_env: unknown key (did you mean num_envs?)"),
    ("qqqqqq: 1", "qqqqqq: unknown key"),
    ("total_steps: 1e6", "total_steps: unknown key (did you mean total_env_steps?)"),
    ("critic_cls: no.Net", "critic_cls: unknown key"),
    ("source: x", "source: unknown key"),
    ("_source: x", "_source: unknown key"),
    ("algorithm_config: {gama: 1}", "algorithm_config.gama: unknown key (did you mean gamma?)"),
    ("algorithm_config: {stop: []}", "algorithm_config.stop: unknown key"),
    ("algorithm_config: 3", "algorithm_config: expected a mapping of hyperparameters; got 3"),
    # keys that are wrong in any file
    ("gamma: 0.9\ngamma: 0.9", None),
    ("1: 2", "1: a key must be a name"),
    # numbers
    ("gamma: 1.5", "gamma: expected float in (0, 1] or 'auto'; got 1.5"),
    ("gamma: 0", "gamma: expected float in (0, 1] or 'auto'; got 0"),
    ("gamma: true", "gamma: expected float in (0, 1] or 'auto'; got True"),
    ("gamma: '0.9'", "gamma: expected float in (0, 1] or 'auto'; got '0.9'"),
    ("gamma: 0,9", "gamma: expected float in (0, 1] or 'auto'; got '0,9'"),
    ("gamma: [0.9]", "gamma: expected float in (0, 1] or 'auto'; got [0.9]"),
    ("gamma: .nan", "gamma: expected float in (0, 1] or 'auto'; got nan"),
    ("gae_lambda: 1.01", "gae_lambda: expected float in [0, 1]; got 1.01"),
    ("clip_param: 1", "clip_param: expected float in (0, 1); got 1"),
    ("vf_clip_param: 0", "vf_clip_param: expected float > 0 or 'auto' or null; got 0"),
    ("dual_clip_param: 1", "dual_clip_param: expected float > 1 or null; got 1"),
    ("vf_coeff: 0", "vf_coeff: expected float > 0; got 0"),
    ("entropy_coeff: -0.1", "entropy_coeff: expected float >= 0; got -0.1"),
    ("entropy_coeff: .nan", "entropy_coeff: expected float >= 0; got nan"),
    ("max_grad_norm: .inf", "max_grad_norm: expected float > 0 or 'auto' or null; got inf"),
    ("target_kl_div: -1", "target_kl_div: expected float > 0 or null; got -1"),
    ("num_envs: 0", "num_envs: expected int > 0 or 'auto'; got 0"),
    ("num_envs: 1.5", "num_envs: expected int > 0 or 'auto'; got 1.5"),
    ("num_envs: Auto", "num_envs: expected int > 0 or 'auto'; got 'Auto'"),
    ("horizon: -1", "horizon: expected int > 0 or 'auto'; got -1"),
    (
        "horizons_per_env_reset: 0.5",
        "horizons_per_env_reset: expected int or 'restarts' or 'auto'; got 0.5",
    ),
    ("num_sgd_iters: 0", "num_sgd_iters: expected int > 0"),
    ("sgd_minibatch_size: 0", "sgd_minibatch_size: expected int > 0 or 'auto' or null; got 0"),
    ("seed: -1", "seed: expected int >= 0 or null; got -1"),
    ("seed: 0.5", "seed: expected int >= 0 or null; got 0.5"),
    ("total_env_steps: 0", "total_env_steps: expected int > 0 or null; got 0"),
    ("total_env_steps: 1.5", "total_env_steps: expected int > 0 or null; got 1.5"),
    ("steps_per_eval: 0", "steps_per_eval: expected int > 0 or null; got 0"),
    ("eval_episodes: many", "eval_episodes: expected int from 1 to 1,000,000 or null; got 'many'"),
    # words
    ("shuffle_minibatches: 'false'", "shuffle_minibatches: expected bool; got 'false'"),
    ("shuffle_minibatches: no", "shuffle_minibatches: expected bool; got 'no'"),
    ("enable_amp: 1", "enable_amp: expected bool; got 1"),
    (
        "lr_schedule_kind: linear",
        "lr_schedule_kind: expected 'interp' or 'step' or 'adaptive'; got 'linear'",
    ),
    ("lr_schedule_kind: adaptive", "lr_schedule_kind: 'adaptive' needs `target_kl_div`"),
    ("vf_loss: huber", "vf_loss: expected 'smooth_l1' or 'mse' or 'auto'; got 'huber'"),
    ("device: 0", "device: expected device or str; got 0"),
    ("device: gpu", "device: expected 'auto' or a device such as 'cpu' or 'cuda:0'; got 'gpu'"),
    ("device: cuda:99", "device: cuda:99 is not available: PyTorch sees "),
    ("experiment_name: ''", "experiment_name: expected non-empty str or null; got ''"),
    ("experiment_name: 7", "experiment_name: expected non-empty str or null; got 7"),
    ("run_dir: ''", "run_dir: expected non-empty str or Path or null; got ''"),
    ("run_dir: train.yaml", "run_dir: train.yaml is not a directory"),
    ('run_dir: "a\\0b"', "run_dir: 'a\\x00b' cannot be a directory: embedded null byte"),
    (f"run_dir: {'x' * 300}", f"run_dir: '{'x' * 99}' cannot be a directory: File name too long"),
    (
        f"run_dir: {'d/' * 3000}",
        f"run_dir: '{'d/' * 49}d' cannot be a directory: File name too long",
    ),
    ("seq_len: 8", "seq_len: is for recurrent policies: set `recurrent`, or leave it out"),
    ("recurrent: 1", "recurrent: expected bool; got 1"),
    # mappings and lists
    ("env_config: 3", "env_config: expected a mapping or null; got 3"),
    ("env_kwargs: [1]", "env_kwargs: expected a mapping or null; got [1]"),
    ("env_config: {x: .nan}", "env_config.x: expected a finite number; got .nan"),
    ("optimizer_config: {lr: .inf}", "optimizer_config.lr: expected a finite number; got .inf"),
    ("optimizer_config: {rl: 1}", "optimizer_config.rl: unknown option (did you mean lr?) of Adam"),
    (
        "optimizer_config: {lr: -1}",
        "optimizer_config: invalid option for Adam: Invalid learning rate: -1",
    ),
    (
        "optimizer_config: {lr: fast}",
        "optimizer_config: lr must be a number; got 'fast'. Try 0.001",
    ),
    ("optimizer_config: {lr: null}", "optimizer_config: lr must be a number; got None"),
    ("optimizer_config: {lr: true}", "optimizer_config: lr must be a number; got True"),
    ("optimizer_config: {lr_v: abc}", "optimizer_config: lr_v must be a number; got 'abc'"),
    ("optimizer_config: {eps: '1'}", "optimizer_config: eps must be a number; got '1'. Try 1e-08"),
    (
        "optimizer_config: {betas: 0.9}",
        "optimizer_config: betas must be a list of 2 numbers; got 0.9. Try [0.9, 0.999]",
    ),
    ("optimizer_config: {betas: [a, 1]}", "optimizer_config: betas must be a list of 2 numbers"),
    ("optimizer_config: 3e-4", "optimizer_config: expected a mapping or null; got 0.0003"),
    (
        "lr_schedule: 3",
        "lr_schedule: expected a list of [int >= 0, float] or 'linear' or 'constant_then_linear' "
        "or 'auto' or null; got 3",
    ),
    ("lr_schedule: []", "lr_schedule: must start at 0 env steps; got []"),
    ("lr_schedule: [[1, 1]]", "lr_schedule: must start at 0 env steps; got [(1, 1.0)]"),
    ("lr_schedule: [[0, 1], [0, 2]]", "lr_schedule: must count env steps upwards"),
    ("entropy_coeff_schedule: [[0, -1]]", "entropy_coeff_schedule: must not be negative"),
    # names
    ("optimizer_cls: AdamW", "optimizer_cls: expected a dotted path such as my_package.envs.MyEnv"),
    ("optimizer_cls: torch.optim.AdamX", "optimizer_cls: the module 'torch.optim' has no 'AdamX'"),
    (
        "optimizer_cls: torch.nn.Linear",
        "optimizer_cls: expected a subclass of torch.optim.Optimizer",
    ),
    ("optimizer_cls: 3", "optimizer_cls: expected a dotted path"),
    (
        "distribution_cls: torch.nn.Linear",
        "distribution_cls: expected a subclass of everstep.distributions.",
    ),
    ("model_cls: no_such_module.Net", "model_cls: no module named 'no_such_module'"),
    ("model_cls: sys.maxsize", "model_cls: a file cannot name what is in Python's standard"),
    ("model: my.Net", "model: a file cannot hold a model; name its class in model_cls"),
    # rules between fields
    ("horizons_per_env_reset: 0", "horizons_per_env_reset: must not be 0"),
    ("target_kl_div: 0.01\naccumulate_grads: true", "target_kl_div: stops between minibatches"),
    # stop conditions
    ("stop: soon", "stop: expected a list or null; got 'soon'"),
    ("stop: {HitsUpperBound: {}}", "stop: expected a list or null"),
    ("stop: [3]", "stop.0: condition: expected one condition"),
    ("stop: [HitsUpperBound]", "stop.0: condition: expected one condition"),
    ("stop: [{HitUpperBound: {key: a, bound: 1}}]", "stop.0: HitUpperBound: unknown condition"),
    ("stop: [{HitsUpperBound: {key: a}}]", "stop.0: HitsUpperBound.bound: missing"),
    ("stop: [{HitsUpperBound: {key: a, bound: x}}]", "stop.0: HitsUpperBound.bound: "),
    ("stop: [{And: []}]", "stop.0: And: expected a list of at least one condition"),
]


@pytest.mark.usefixtures("nothing_else_written")
@pytest.mark.parametrize(("line", "problem"), BAD_LINES, ids=[line for line, _ in BAD_LINES])
def test_a_bad_line_is_told_with_file_line_and_key(write, line, problem):
    [found] = problems_in(write, f"env_cls: {DUMMY}\n{line}\n")
    if problem is None:
        assert found == "train.yaml:3: gamma: duplicate key; first given at train.yaml:2"
    else:
        assert found.startswith(f"train.yaml:2: {problem}")


@pytest.mark.usefixtures("nothing_else_written")
@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ("", "env_cls: required, and missing; expected an environment, a class, a function"),
        (
            "env_cls:",
            "env_cls: required, and missing; expected an environment, a class, a function",
        ),
        (
            "env_cls: CartPol-v1",
            "env_cls: An environment is written 'prefix:name', such as 'gymnasium:CartPole-v1', or "
            "as the id of a registered Gymnasium environment; got 'CartPol-v1'. Did you mean "
            "'gymnasium:CartPole-v1'?",
        ),
        ("env_cls: 3", "env_cls: expected a dotted path such as my_package.envs.MyEnv; got 3"),
        ("env_cls: 'gymnasium:'", "env_cls: An environment is written 'prefix:name'"),
        ("env_cls: gymnasum:CartPole-v1", "env_cls: No adapter has the prefix 'gymnasum'"),
        ("env_cls: nowhere.envs.MyEnv", "env_cls: no module named 'nowhere'"),
        ("env_cls: everstep.env.DiscretDummyEnv", "env_cls: the module 'everstep.env' has no"),
        ("env_cls: sys.maxsize", "env_cls: a file cannot name what is in Python's standard"),
        (
            f"env_cls: {__name__}.without_device",
            "env_cls: without_device(num_envs, horizon=None) cannot make environments: its",
        ),
        (
            f"env_cls: {__name__}.DemandingEnv",
            "env_cls: DemandingEnv(num_envs, /, horizon=None, *, device='cpu', size) cannot make",
        ),
        ("env_cls: DiscreteDummyEnv", "env_cls: expected a dotted path such as"),
        (
            f"env_kwargs: {{siz: 1}}\nenv_cls: {CONFIGURABLE}",
            "env_kwargs.siz: unknown option (did you mean size?) of ConfigurableEnv",
        ),
        (
            f"env_cls: {CARTPOLE}\nenv_kwargs: {{device: cpu}}",
            f"env_cls: A factory of '{CARTPOLE}' is given device",
        ),
    ],
)
def test_a_bad_environment_is_told(write, env, problem):
    [found] = problems_in(write, env + "\ngamma: 0.9\n")
    place = "train.yaml" if env == "" else "train.yaml:1"
    assert found.startswith(f"{place}: {problem}")


def test_a_class_without_its_module_is_recognised(write):
    content = f"env_cls: {CARTPOLE}\noptimizer_cls: AdamW\n"
    [problem] = problems_in(write, content)
    assert problem.endswith("got 'AdamW' (did you mean torch.optim.AdamW?)")


@pytest.mark.usefixtures("nothing_else_written")
def test_all_problems_come_at_once_in_the_order_of_the_file(write):
    content = f"""\
env_cls: {CARTPOLE}
gama: 0.9
optimizer_cls: torch.optim.Adamm
optimizer_config: {{lr: 3e-4, learning: 3}}
horizon: 0.5
gamma: .nan
gamma: 3
algorithm_config:
  lr_schedule:
    - [0, -1]
  horizonn: 3
  num_envs: yes
  horizon: 3
stop:
  - HitsUpperBound: {{key: a, bond: 3}}
  - Foo: 3
seq_len: 3
"""
    found = problems_in(write, content, ["gaama=3", "clip_param=2", "x", "num_sgd_iters=.nan"])
    assert [":".join(problem.split(":")[:3]) for problem in found] == [
        "train.yaml:2: gama",
        "train.yaml:3: optimizer_cls",
        "train.yaml:4: optimizer_config.learning",
        "train.yaml:5: horizon",
        "train.yaml:6: gamma",
        "train.yaml:7: gamma",
        "train.yaml:9: lr_schedule",
        "train.yaml:11: algorithm_config.horizonn",
        "train.yaml:12: num_envs",
        "train.yaml:13: algorithm_config.horizon",
        "train.yaml:15: stop.0",
        "train.yaml:15: stop.0",
        "train.yaml:16: stop.1",
        "train.yaml:17: seq_len",
        *["command line: gaama=3: unknown key (did you mean gamma?)"],
        "command line: clip_param=2: expected float in (0, 1); got 2",
        "command line: x: expected key=value, such as gamma=0.99; got 'x'",
        "command line: num_sgd_iters=.nan: expected a finite number; got .nan",
    ]


# Gymnasium before 1.3 cannot delete a vector environment that refused its arguments.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function VectorEnv:pytest.PytestUnraisableExceptionWarning"
)
def test_problems_found_when_building_have_a_line_too(write, tmp_path):
    name = write(f"env_cls: {DUMMY}\nnum_envs: 4\nhorizon: 8\nsgd_minibatch_size: 5\n")
    [problem] = problems_of(TrainConfig.from_file(name).build)
    assert problem.startswith("train.yaml:4: sgd_minibatch_size: must divide the 32 transitions")
    name = write("gamma: 0.9\nenv_cls: gymnasium:CartPol-v1\n")
    [problem] = problems_of(TrainConfig.from_file(name).build)
    assert problem.startswith("train.yaml:2: env_cls: Gymnasium cannot make 'CartPol-v1'")
    name = write(f"env_cls: {CARTPOLE}\nenv_kwargs:\n  sutton_barto_rewards: true\n")
    [problem] = problems_of(TrainConfig.from_file(name).build)
    assert problem.startswith("train.yaml:3: env_kwargs.sutton_barto_rewards: ")
    name = write(f"env_cls: {DUMMY}\nnum_envs: 2\nmodel_config: {{hidden: [64]}}\n")
    [problem] = problems_of(TrainConfig.from_file(name).build)
    assert problem.startswith("train.yaml:3: model_config.hidden: unknown option ")
    assert [path.name for path in tmp_path.iterdir()] == ["train.yaml"]


def test_a_directory_that_holds_a_run_is_not_used_again(write, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "metrics.jsonl").touch()
    [problem] = problems_in(write, f"env_cls: {DUMMY}\nrun_dir: old\n")
    assert problem == "train.yaml:2: run_dir: old holds a run already; name another directory"


# ---- what Python can get wrong ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"gama": 1}, "`gama`: unknown key (did you mean gamma?)."),
        ({"gamma": 2}, "`gamma`: expected float in (0, 1] or 'auto'; got 2."),
        ({"algorithm_config": {"gamma": 2}}, "`gamma`: expected float in (0, 1] or 'auto'; got 2."),
        ({"algorithm_config": {"seq": 2}}, "`seq`: unknown key"),
        ({"algorithm_config": {"env_kwargs": {}}}, "`env_kwargs`: unknown key"),
        (
            {"algorithm_config": {"gamma": 0.9}, "gamma": 0.9},
            "`gamma`: given twice, by name and in `algorithm_config`.",
        ),
        ({"total_env_steps": -1}, "`total_env_steps`: expected int > 0 or null; got -1."),
        ({"optimizer_cls": "torch.optim.Adam"}, "`optimizer_cls`: expected a subclass of"),
        ({"optimizer_config": {"lr": 1, "rl": 1}}, "`optimizer_config.rl`: unknown option"),
        ({"env_cls": "everstep.env.Env"}, "`env_cls`: a name in Python code; import the class"),
        ({"env_cls": None}, "`env_cls`: required, and missing"),
        ({"env_cls": 3}, "`env_cls`: expected an environment, a class, a function"),
        ({"env_cls": DiscreteDummyEnv(2), "env_kwargs": {"a": 1}}, "`env_kwargs`: the environment"),
        ({"env_cls": without_device}, "`env_cls`: without_device(num_envs, horizon=None) cannot"),
        ({"env_kwargs": {"bounds": 1}}, "`env_kwargs.bounds`: unknown option"),
        ({"horizons_per_env_reset": 0}, "`horizons_per_env_reset`: must not be 0"),
        ({"stop": [{"Plateaus": {}}]}, "`stop.0`: Plateaus.key: missing."),
        ({"seq_len": 8}, "`seq_len`: is for recurrent policies: set `recurrent`"),
        ({"recurrent": True, "seqs_per_state_reset": 0}, "`seqs_per_state_reset`: must not be 0"),
    ],
)
def test_a_bad_argument_is_told(arguments, problem):
    [found] = problems_of(lambda: TrainConfig(**{"env_cls": DiscreteDummyEnv, **arguments}))
    assert found.startswith(problem)


def test_a_vector_environment_is_wrapped():
    env = scripted_vector_env([[Episode(3, "terminated")]], AutoresetMode.NEXT_STEP)
    assert isinstance(env, SyncVectorEnv)
    for given in (env, everstep.wrap(env)):
        assert TrainConfig(given).build(run_dir=None).algorithm.env.num_envs == 1
    env.close()


def test_attributes_are_checked_again_when_building():
    config = TrainConfig(DiscreteDummyEnv, num_envs=4, horizon=8)
    config.gamma = 3
    config.total_env_steps = 0
    assert problems_of(config.build) == [
        "`total_env_steps`: expected int > 0 or null; got 0.",
        "`gamma`: expected float in (0, 1] or 'auto'; got 3.",
    ]
    config.gamma, config.total_env_steps = 0.9, 64.0
    assert config.build(run_dir=None).algorithm.hparams.gamma == 0.9
    with pytest.raises(AttributeError, match=r"did you mean gamma\?"):
        config.gama = 0.9
    with pytest.raises(AttributeError, match=r"did you mean gamma\?"):
        _ = config.gama


# ---- what is read ----------------------------------------------------------------------------

FLAT = {
    "env_cls": CONFIGURABLE,
    "env_config": {"bounds": 10.0},
    "env_kwargs": {"size": 3},
    "total_env_steps": 1e3,
    "stop": [
        {"HitsUpperBound": {"key": "returns/mean", "bound": 475}},
        {"Or": [{"Plateaus": {"key": "losses/vf", "patience": 3, "rtol": 0.1}}]},
    ],
    "steps_per_eval": 2,
    "eval_env_config": {"bounds": 1.0},
    "eval_episodes": 4,
    "run_dir": "my_run",
    "experiment_name": "mine",
    "optimizer_cls": "torch.optim.AdamW",
    "optimizer_config": {"lr": 3e-4},
    "lr_schedule": [[0, 1e-3], [1e6, 1e-5]],
    "gamma": 1,
    "horizon": 8,
    "vf_clip_param": None,
    "shuffle_minibatches": False,
    "seed": 0,
}


def nested(values):
    inner = {key: value for key, value in values.items() if key in HYPERPARAMETERS}
    return {k: v for k, v in values.items() if k not in inner} | {"algorithm_config": inner}


def test_flat_and_nested_files_yaml_and_json_are_the_same(write):
    configs = [
        TrainConfig.from_file(write(content, name))
        for content in (FLAT, nested(FLAT))
        for name in ("a.yaml", "a.yml")
    ]
    configs += [TrainConfig.from_file(write(json.dumps(v), "a.json")) for v in (FLAT, nested(FLAT))]
    given = dict(FLAT, env_cls=ConfigurableEnv, optimizer_cls=torch.optim.AdamW)
    configs += [TrainConfig(**given), TrainConfig(**nested(given))]
    assert all(config == configs[0] for config in configs)
    config = configs[0]
    assert config.env_cls.__name__ == "ConfigurableEnv"
    assert config.total_env_steps == 1000
    assert isinstance(config.total_env_steps, int)
    assert config.gamma == 1.0
    assert config.lr_schedule == [(0, 1e-3), (1_000_000, 1e-5)]
    assert config.horizon == 8
    assert config.num_envs is None
    assert config.algorithm_config["vf_clip_param"] is None
    assert not config.recurrent


def test_configs_differ_where_a_value_does():
    config = TrainConfig(DiscreteDummyEnv, gamma=0.9)
    assert config != TrainConfig(DiscreteDummyEnv, gamma=0.8)
    assert config != TrainConfig(ContinuousDummyEnv, gamma=0.9)
    assert config != TrainConfig(DiscreteDummyEnv, gamma=0.9, total_env_steps=1)


def test_every_hyperparameter_is_taken_flat_and_shows_as_attribute():
    defaults = RecurrentAlgorithmConfig()
    for name in HYPERPARAMETERS:
        value = getattr(defaults, name)
        config = TrainConfig(DiscreteDummyEnv, recurrent=True, **{name: value})
        assert getattr(config, name) == value
        assert getattr(TrainConfig(DiscreteDummyEnv), name) is None


def test_null_means_the_default_except_for_what_null_switches_off(write):
    names = [name for name in HYPERPARAMETERS if name != "model"]
    content = {"env_cls": DUMMY, "num_envs": 4} | dict.fromkeys(names)
    content |= {"num_envs": 4, "horizon": 8, "total_env_steps": None, "stop": None}
    trainer = TrainConfig.from_file(write(content)).build(run_dir=None)
    hparams, defaults = trainer.algorithm.hparams, AlgorithmConfig()
    assert hparams.gamma == 0.95
    assert hparams.optimizer_cls is defaults.optimizer_cls
    assert hparams.vf_clip_param is None
    assert hparams.max_grad_norm is None
    assert (
        TrainConfig(DiscreteDummyEnv, num_envs=4)
        .build(run_dir=None)
        .algorithm.hparams["vf_clip_param"]
        == 5.0
    )


def test_overrides_replace_both_forms(write):
    overrides = ["gamma=0.5", "algorithm_config.horizon=4", "optimizer_config.lr=1e-2", "seed=null"]
    for content in (FLAT, nested(FLAT)):
        config = TrainConfig.from_file(write(content), overrides)
        assert config.gamma == 0.5
        assert config.horizon == 4
        assert config.optimizer_config == {"lr": 1e-2}
        assert config.seed is None


def test_a_config_can_be_written_read_copied_and_pickled(write):
    config = TrainConfig.from_file(write(FLAT))
    assert TrainConfig.from_file(write(config.to_dict(), "again.yaml")) == config
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config
    shown = config.to_dict()
    assert shown["env_cls"] == f"{ConfigurableEnv.__module__}.ConfigurableEnv"
    assert shown["vf_clip_param"] is None
    assert "recurrent" not in shown
    assert "num_envs" not in shown


def test_a_spec_factory_is_written_as_its_spec(write):
    config = TrainConfig(everstep.factory(CARTPOLE, max_episode_steps=7), num_envs=2)
    assert config.to_dict() == {
        "env_cls": CARTPOLE,
        "env_kwargs": {"max_episode_steps": 7},
        "num_envs": 2,
    }
    assert TrainConfig.from_file(write(config.to_dict())).build(run_dir=None)


def test_what_no_file_can_hold_is_not_read_back_as_something_else(write):
    model = torch.nn.Linear(1, 1)
    config = TrainConfig(DiscreteDummyEnv(4), model=model)
    problems = problems_in(write, config.to_dict())
    assert [problem.split(": ")[1] for problem in problems] == ["env_cls", "model"]
    local = TrainConfig(lambda n, horizon=None, *, device="cpu": make_env(n, horizon))
    [problem] = problems_in(write, local.to_dict())
    assert "An environment is written 'prefix:name'" in problem


# ---- what is built ----------------------------------------------------------------------------


def test_env_kwargs_reach_the_constructor_and_declarations_survive(write):
    content = {"env_cls": CONFIGURABLE, "env_kwargs": {"size": 3}, "horizon": 8}
    trainer = TrainConfig.from_file(write(content)).build(run_dir=None)
    env = trainer.algorithm.env
    assert (env.size, env.colour, env.num_envs) == (3, "red", 4)
    with pytest.warns(UserWarning, match="at most 64"):
        trainer = TrainConfig.from_file(write(content | {"num_envs": 65})).build(run_dir=None)
    assert trainer.algorithm.env.num_envs == 64


@pytest.mark.parametrize(
    "env_cls",
    [
        make_env,
        functools.partial(ConfigurableEnv, size=2),
        lambda n, horizon=None, **options: DiscreteDummyEnv(n, horizon, **options),
        DiscreteDummyEnv(4),
    ],
)
def test_functions_partials_and_made_environments_are_taken(env_cls):
    config = TrainConfig(env_cls, horizon=8, num_envs=4, env_config={"bounds": 2.0})
    trainer = config.build(run_dir=None)
    arguments = config.run_arguments()
    stats = trainer.run(**arguments | {"total_env_steps": 32})
    assert stats["env/steps"] == 32
    assert trainer.algorithm.env.bounds == 2.0


def test_run_arguments_hold_fresh_conditions():
    own = HitsUpperBound("returns/max", 1)
    stop = [own, {"Or": [{"Plateaus": {"key": "returns/mean"}}]}]
    config = TrainConfig(DiscreteDummyEnv, stop=stop, total_env_steps=7, steps_per_eval=2)
    first, second = config.run_arguments(), config.run_arguments()
    assert first["stop_conditions"][0] is own
    assert isinstance(first["stop_conditions"][1], Or)
    assert isinstance(first["stop_conditions"][1].conditions[0], Plateaus)
    assert first["stop_conditions"][1] is not second["stop_conditions"][1]
    assert first["total_env_steps"] == 7
    assert first["steps_per_eval"] == 2
    assert first["eval_env_config"] is None


@pytest.mark.slow
def test_evaluations_have_an_environment_of_their_own_where_episodes_are_asked_for():
    shared = TrainConfig(DiscreteDummyEnv, num_envs=4, horizon=8, steps_per_eval=1)
    assert shared.build(run_dir=None).eval_env is None
    own = TrainConfig(DiscreteDummyEnv, num_envs=4, horizon=8, eval_episodes=3)
    trainer = own.build(run_dir=None)
    assert trainer.eval_env is not trainer.algorithm.env
    assert trainer.eval_episodes == 3
    options = {"steps_per_eval": 1, "env_kwargs": {"max_episode_steps": 4}}
    spec = TrainConfig(CARTPOLE, num_envs=2, horizon=8, seed=3, **options)
    trainer = spec.build(run_dir=None)
    assert trainer.eval_env.num_envs == 2
    assert trainer.eval(deterministic=False)["eval/episodes/count"] == 100
    made = TrainConfig(DiscreteDummyEnv(4), horizon=8, eval_episodes=3)
    with pytest.raises(ConfigError, match="`eval_episodes` are played in an environment of their"):
        made.build(run_dir=None)


def test_the_run_directory_holds_a_config_that_makes_the_same_training(write, tmp_path):
    content = {k: v for k, v in FLAT.items() if k != "run_dir"}
    config = TrainConfig.from_file(write(content))
    trainer = config.build(track=False)
    trainer.close()
    assert trainer.run_dir.parent.name == "runs"
    assert trainer.run_dir.name == "ConfigurableEnv-0001"
    again = TrainConfig.from_file(trainer.run_dir / "config.yaml")
    assert again.num_envs == 4  # resolved
    for name in (
        "env_cls",
        "env_kwargs",
        "stop",
        "total_env_steps",
        "vf_clip_param",
        "lr_schedule",
    ):
        assert getattr(again, name) == getattr(config, name)
    rebuilt = again.build(run_dir=None)
    assert dict(rebuilt.algorithm.hparams) == dict(trainer.algorithm.hparams)
    torch.testing.assert_close(
        rebuilt.algorithm.policy.model.state_dict(), trainer.algorithm.policy.model.state_dict()
    )


def test_the_run_directory_is_where_the_file_says(write, tmp_path):
    content = FLAT | {"run_dir": "here/it/is"}
    trainer = TrainConfig.from_file(write(content)).build(track=False)
    trainer.close()
    assert (tmp_path / "here/it/is/config.yaml").exists()
    assert not (tmp_path / "runs").exists()
    assert "run_dir" not in (tmp_path / "here/it/is/config.yaml").read_text()


def test_a_module_beside_the_file_is_found_where_python_finds_it(write, tmp_path, monkeypatch):
    source = "from everstep.env import DiscreteDummyEnv\nclass MyEnv(DiscreteDummyEnv): pass\n"
    write(source, "my_local_env.py")
    content = {"env_cls": "my_local_env.MyEnv", "num_envs": 2}
    [problem] = problems_in(write, content)
    assert "no module named 'my_local_env'" in problem
    monkeypatch.syspath_prepend(tmp_path)
    assert TrainConfig.from_file(write(content)).env_cls.__name__ == "MyEnv"
    del sys.modules["my_local_env"]


def test_evaluations_that_cannot_be_made_are_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = TrainConfig(DiscreteDummyEnv, num_envs=2, horizons_per_env_reset=2, steps_per_eval=3)
    with pytest.raises(ConfigError, match="`steps_per_eval` must be a multiple"):
        config.build()
    assert list(tmp_path.iterdir()) == []


def test_a_condition_on_a_statistic_that_does_not_exist_is_told():
    stop = [{"And": [{"HitsUpperBound": {"key": "algorithm/stepz", "bound": 3}}]}]
    with pytest.raises(ConfigError, match=r"algorithm/stepz: unknown statistic .*algorithm/steps"):
        TrainConfig(DiscreteDummyEnv, stop=stop)


@pytest.mark.parametrize("model_config", [{"activation_fn": "foo"}, {"hiddens": [-1]}])
def test_a_model_config_that_does_not_suit_the_model_is_told(model_config):
    config = TrainConfig(DiscreteDummyEnv, num_envs=2, model_config=model_config)
    with pytest.raises(ConfigError, match="`model_config"):
        config.build(run_dir=None)


def test_evaluations_may_have_other_options_of_the_environment(tmp_path: Any) -> None:
    """They override those of `env_kwargs`, and are checked with them."""
    file = tmp_path / "train.yaml"
    text = (
        "env_cls: gymnasium:CartPole-v1\nenv_kwargs: {max_episode_steps: 10}\nnum_envs: 2\n"
        "horizon: 8\nsteps_per_eval: 1\neval_episodes: 2\nmodel_config: {ortho_init: false}\n"
    )
    file.write_text(text + "eval_env_kwargs: {max_episode_steps: 30, sutton_barto_reward: true}\n")
    config = TrainConfig.from_file(file)
    trainer: Any = config.build(run_dir=tmp_path / "run", track=False)
    with trainer:
        envs = [trainer.algorithm.env.env, trainer.eval_env.env]
        found = [env.get_attr("_sutton_barto_reward")[0] for env in envs]
    assert found == [False, True]
    again = TrainConfig.from_file(tmp_path / "run" / "config.yaml")
    assert again.eval_env_kwargs == config.eval_env_kwargs
    # `everstep eval` uses them, so a training without evaluations may have them.
    file.write_text(
        text.replace("steps_per_eval: 1\neval_episodes: 2\n", "")
        + "eval_env_kwargs: {sutton_barto_reward: true}\neval_env_config: {low: -0.01}\n"
    )
    alone = TrainConfig.from_file(file)
    env: Any = alone.make_env_source(evaluating=True)(1, 8)  # as `everstep eval` makes it
    assert env.env.get_attr("_sutton_barto_reward")[0] is True
    env.close()
    with alone.build(run_dir=None) as trainer:
        assert trainer.run(total_env_steps=16)["env/steps"] == 16
    file.write_text(text.replace("steps_per_eval: 1\n", ""))
    with pytest.raises(ConfigError, match="eval_episodes: there are no evaluations"):
        TrainConfig.from_file(file)
    file.write_text(f"env_cls: {DUMMY}\neval_env_kwargs: {{colour: red}}\n")
    with pytest.raises(ConfigError, match="eval_env_kwargs"):
        TrainConfig.from_file(file)


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("eval_episodes: 7", ""),
        ("eval_episodes: 7", "algorithm_config: {gamma: 0.9, num_test_episodes: 3}\n"),
    ],
)
def test_options_of_evaluations_without_evaluations_are_refused(tmp_path, line, rest):
    file = tmp_path / "train.yaml"
    file.write_text(f"env_cls: {CARTPOLE}\nhorizon: 8\n{line}\n{rest}")
    key = line.partition(":")[0]
    with pytest.raises(ConfigError) as error:
        TrainConfig.from_file(file)
    (text,) = error.value.problems
    way_out = f"{key}: there are no evaluations; set steps_per_eval or test_every, or leave it out"
    assert text.startswith(f"{file}:3: {way_out}. Got "), text
    for evaluations in ("steps_per_eval: 2", "test_every: 5", "recipe: {score: evaluation}"):
        file.write_text(f"env_cls: {CARTPOLE}\nhorizon: 8\n{line}\n{rest}{evaluations}\n")
        TrainConfig.from_file(file)


def test_the_record_of_a_program_that_evaluates_by_itself_can_be_read(tmp_path):
    config = TrainConfig(CARTPOLE, num_envs=2, horizon=8, eval_episodes=1, total_env_steps=16)
    with config.build(run_dir=tmp_path, track=False) as trainer:
        trainer.run()
        assert trainer.eval()["eval/episodes/count"] == 1
    again = TrainConfig.from_file(tmp_path / "config.yaml")
    assert again.eval_episodes == 1
    with Trainer.load(tmp_path) as trainer:
        assert trainer.eval()["eval/episodes/count"] == 1
    with pytest.raises(ConfigError, match=r"best=.*: there are no evaluations"):
        TrainConfig.from_file(tmp_path / "config.yaml", ["best=eval/returns/mean"])


@pytest.mark.parametrize("path", ["a\0b", "x" * 300])
@pytest.mark.parametrize("resume", [False, True])
def test_directories_that_cannot_be_are_named_in_python_too(path: str, resume: bool) -> None:
    with pytest.raises(ConfigError, match=r"`run_dir`: .* cannot be a directory: .*Name another"):
        everstep.Trainer(everstep.DiscreteDummyEnv, run_dir=path, resume=resume)
