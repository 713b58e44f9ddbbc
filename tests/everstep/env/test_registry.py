"""Finding adapters: spec strings, wrapping, plug-ins of others, plug-ins that are broken."""

import importlib
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import everstep
from everstep import TrainConfig
from everstep.env import DiscreteDummyEnv, Env, EnvFactory, plugins, registry
from everstep.errors import AdapterError, ConfigError

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution of one module, with entry points for adapters."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "_warned", set())
    installed = []

    def write(name: str, source: str, **adapters: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{prefix} = {name}:{attribute}" for prefix, attribute in adapters.items()]
        (info / "entry_points.txt").write_text("\n".join(["[everstep.adapters]", *lines, ""]))
        installed.append(name)
        importlib.invalidate_caches()

    yield write
    for name in installed:
        sys.modules.pop(name, None)


LINE_WORLD = """
    from everstep.env import DiscreteDummyEnv

    class World:
        '''Somebody else's environment.'''

    class LineEnv(DiscreteDummyEnv):
        default_num_envs = 3
        max_horizon = 99

        @classmethod
        def matches(cls, env, /):
            return isinstance(env, World)

        @classmethod
        def make(cls, name, num_envs, /, *, horizon=None, device="cpu", bounds=100.0):
            env = cls(num_envs, horizon, device=device)
            env.bounds = bounds
            env.name = name
            return env

        @classmethod
        def suggest(cls, env, /):
            return "Make a World of it." if env == "nearly" else ""

        def __init__(self, env_or_num, /, horizon=None, *, device="cpu"):
            wrapped = isinstance(env_or_num, World)
            super().__init__(1 if wrapped else env_or_num, horizon, device=device)
"""


# Making.


def test_a_spec_string_makes_an_environment() -> None:
    env = registry.make("gymnasium:CartPole-v1", 3, horizon=16, sutton_barto_reward=True)
    assert isinstance(env, Env)
    assert (env.num_envs, env.horizon, env.device) == (3, 16, "cpu")
    assert env.reset().shape == (3, 4)
    assert env.step(torch.zeros(3, 1, dtype=torch.int64))["rewards"].sum() == 0


@pytest.mark.parametrize("key", ["num_envs", "horizon", "device"])
def test_arguments_of_a_factorys_call_are_no_options(key: str) -> None:
    with pytest.raises(AdapterError, match=f"given {key} when it is called"):
        registry.factory(DiscreteDummyEnv, **{key: 1})
    with pytest.raises(ConfigError, match=f"given {key} when it is called"):
        TrainConfig(DiscreteDummyEnv, env_kwargs={key: 1})


def test_arguments_of_the_environment_can_be_given_as_one_dictionary() -> None:
    """As in files, and as type checkers accept them."""
    factory = registry.factory(
        "gymnasium:CartPole-v1", max_episode_steps=7, env_kwargs={"sutton_barto_reward": True}
    )
    assert factory.kwargs == {"sutton_barto_reward": True, "max_episode_steps": 7}  # type: ignore[attr-defined]
    env = factory(2)
    env.reset()
    assert env.step(torch.zeros(2, 1, dtype=torch.int64))["rewards"].sum() == 0


def test_everything_after_the_first_colon_is_the_name() -> None:
    env = registry.make("gymnasium:gymnasium.envs.classic_control:CartPole-v1", 2)
    assert env.num_envs == 2


def test_a_factory_makes_environments_and_knows_its_defaults() -> None:
    factory = registry.factory("gymnasium:CartPole-v1", max_episode_steps=7)
    assert isinstance(factory, EnvFactory)
    assert (factory.default_num_envs, factory.default_horizon) == (8, (256, 128))
    assert not hasattr(factory, "max_num_envs")
    assert not hasattr(factory, "max_horizon")
    assert factory.spec == "gymnasium:CartPole-v1"
    assert repr(factory) == "everstep.factory('gymnasium:CartPole-v1', max_episode_steps=7)"
    for env in (factory(2, 5), pickle.loads(pickle.dumps(factory))(2, horizon=5)):
        assert (env.num_envs, env.horizon) == (2, 5)
        assert "final_obs" in env.episode_keys


def test_a_factory_is_not_made_with_what_it_is_called_with() -> None:
    with pytest.raises(AdapterError, match="given device, horizon when it is called"):
        registry.factory("gymnasium:CartPole-v1", horizon=5, device="cpu")


@pytest.mark.usefixtures("without_ale")
@pytest.mark.parametrize("make", [lambda spec: registry.make(spec, 2), registry.factory])
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gymnasum:CartPole-v1", r"prefix 'gymnasum'.*Known prefixes: .*Did you mean 'gymnasium'"),
        ("zzz:CartPole-v1", r"prefix 'zzz'.*Known prefixes: [^?]*gymnasium.*instead: 'zzz.name'"),
        ("mine:Walk", r"a dot instead: 'mine\.Walk'"),
        ("CartPol-v1", r"'prefix:name'.*got 'CartPol-v1'. Did you mean 'gymnasium:CartPole-v1'\?"),
        ("my_envs.Walk", r"got 'my_envs.Walk'. A class or function of your own is given itself"),
        ("cartpole", r"got 'cartpole'. Did you mean 'gymnasium:CartPole-v1'\?"),
        ("ALE/MsPacman-v5", r"Did you mean 'ale:ms_pacman'"),
        ("my_envs:My-v0", r"'gymnasium:my_envs:Name-v0'"),
        ("my_envs:make", r"a dot instead: 'my_envs\.make'"),
        ("gymnasum", r"got 'gymnasum'.*Did you mean 'gymnasium'"),
        ("gymnasium:", r"got 'gymnasium:'"),
        (":CartPole-v1", r"got ':CartPole-v1'"),
    ],
)
def test_a_wrong_spec_says_what_there_is(
    make: Callable[[str], object], spec: str, message: str
) -> None:
    with pytest.raises(AdapterError, match=message):
        make(spec)


# Wrapping.


def test_an_environment_of_a_known_family_is_wrapped() -> None:
    env = registry.wrap(gymnasium.make_vec("CartPole-v1", 4), horizon=9)
    assert type(env).__name__ == "GymnasiumEnv"
    assert (env.num_envs, env.horizon) == (4, 9)


def test_an_everstep_environment_comes_back_as_it_is() -> None:
    env = DiscreteDummyEnv(2)
    assert registry.wrap(env) is env
    with pytest.raises(AdapterError, match=r"DiscreteDummyEnv is an Everstep.*already.*horizon"):
        registry.wrap(env, horizon=3)


def test_what_nothing_can_wrap_is_named_with_what_can_be() -> None:
    with pytest.raises(AdapterError, match=r"`builtins\.object`.*types.*gymnasium"):
        registry.wrap(object())
    with pytest.raises(AdapterError, match=r"everstep\.make\('gymnasium:CartPole-v1', num_envs\)"):
        registry.wrap("gymnasium:CartPole-v1")


def test_a_single_gymnasium_environment_is_told_what_to_do() -> None:
    with pytest.raises(AdapterError, match=r"single Gymnasium.*make_vec\('CartPole-v1'"):
        registry.wrap(gymnasium.make("CartPole-v1"))


# Plug-ins.


def test_a_plug_in_comes_through_the_same_door(install: Install) -> None:
    install("line_world", LINE_WORLD, line="LineEnv")
    assert {"gymnasium", "line"} <= set(plugins.prefixes())
    env = registry.make("line:short", 5, horizon=7, bounds=2.0)
    assert (type(env).__name__, env.num_envs, env.horizon) == ("LineEnv", 5, 7)
    assert (env.name, env.bounds) == ("short", 2.0)
    factory = registry.factory("line:short")
    assert (factory.default_num_envs, factory.max_horizon) == (3, 99)
    assert not hasattr(factory, "default_horizon")
    world = importlib.import_module("line_world").World()
    assert registry.wrap(world, horizon=3).horizon == 3
    with pytest.raises(AdapterError, match=r"wrapped: line, ale, .*envpool, gymnasium"):
        registry.wrap(object())


def test_a_plug_in_may_match_a_special_case_of_ours(install: Install) -> None:
    source = LINE_WORLD.replace("isinstance(env, World)", "hasattr(env, 'single_action_space')")
    install("line_world", source.replace("isinstance(env_or_num, World)", "True"), zzz="LineEnv")
    assert type(registry.wrap(gymnasium.make_vec("CartPole-v1", 2))).__name__ == "LineEnv"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_module_that_is_not_there", "a_module_that_is_not_there"),
        ("raise RuntimeError('no licence')", "no licence"),
        ("OTHER = 1", "Broken"),
        ("class Broken: pass", "no matches and no make"),
    ],
)
def test_a_broken_plug_in_breaks_nothing_but_itself(
    install: Install, source: str, reason: str, recwarn: pytest.WarningsRecorder
) -> None:
    install("broken_plug_in", source, broken="Broken")
    vector = gymnasium.make_vec("CartPole-v1", 2)
    with pytest.warns(RuntimeWarning, match=f"'broken'.*'broken_plug_in:Broken'.*{reason}"):
        assert registry.wrap(vector).num_envs == 2
    assert registry.wrap(vector).num_envs == 2  # and it is said once
    assert registry.make("gymnasium:CartPole-v1", 2).num_envs == 2
    with pytest.raises(AdapterError, match=f"'broken'.*cannot be loaded.*{reason}"):
        registry.make("broken:anything", 2)


def test_a_plug_in_that_fails_to_look_is_left_out(install: Install) -> None:
    install("line_world", LINE_WORLD.replace("isinstance(env, World)", "1 / 0"), line="LineEnv")
    with pytest.warns(RuntimeWarning, match=r"of 'line' failed: ZeroDivisionError"):
        assert registry.wrap(gymnasium.make_vec("CartPole-v1", 2)).num_envs == 2


def test_a_prefix_that_is_registered_twice_is_named(install: Install) -> None:
    install("line_world", LINE_WORLD, line="LineEnv")
    install("mine_world", LINE_WORLD, line="LineEnv")
    with pytest.warns(RuntimeWarning, match=r"'line'.*twice; 'line_world.*'mine_world"):
        assert registry.make("line:short", 2).num_envs == 2


# The names under which adapters are imported.


@pytest.mark.slow
def test_the_facade_imports_adapters_late() -> None:
    code = """
import sys
import everstep.adapters
assert "everstep_adapters" not in sys.modules
assert dir(everstep.adapters) == everstep.adapters.__all__
from everstep.adapters import GymnasiumEnv
import everstep_adapters
assert everstep_adapters.GymnasiumEnv is GymnasiumEnv
assert dir(everstep_adapters) == everstep_adapters.__all__ == everstep.adapters.__all__
from everstep.env.registry import wrap
assert "gymnasium" not in sys.modules
for module in (everstep.adapters, everstep_adapters):
    try:
        module.Gymnasium
    except AttributeError as error:
        assert "'Gymnasium'" in str(error)
    else:
        raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_name_without_a_prefix_imports_the_adapter_that_has_it_alone() -> None:
    program = (
        "import sys, everstep; everstep.factory('CartPole-v1'); "
        "found = {m.split('.')[1] for m in sys.modules if m.startswith('everstep_adapters.')}; "
        "print(*sorted(found))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.split() == ["common", "gymnasium"], result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_episode_steps": "5"}, "`max_episode_steps` of GymnasiumEnv: expected int"),
        ({"max_episode_steps": 2.5}, "`max_episode_steps` of GymnasiumEnv: expected int"),
        ({"random_phase": "yes"}, "`random_phase` of GymnasiumEnv: expected bool"),
        ({"step_timeout": "x"}, "`step_timeout` of GymnasiumEnv: expected float"),
        ({"metrics": 3}, "`metrics` of GymnasiumEnv: expected a list"),
    ],
)
def test_options_of_adapters_have_types(options: Any, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        everstep.make("CartPole-v1", 2, **options)
    with pytest.raises(AdapterError, match=message):
        everstep.wrap(gymnasium.make_vec("CartPole-v1", num_envs=2), **options)


def test_options_that_an_adapter_lacks_are_named() -> None:
    env = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    for options, message in (
        ({"max_steps": 5}, "`max_steps`: unknown option .*max_episode_steps"),
        ({"agents": "a"}, "`agents`: unknown option"),
    ):
        with pytest.raises(AdapterError, match=message):
            everstep.wrap(env, **options)
    for device in ("gpu", "auto", "cpu:1"):
        with pytest.raises(ConfigError, match=f"`device`.*{device}"):
            everstep.wrap(env, device=device)
        with pytest.raises(ConfigError, match=f"`device`.*{device}"):
            everstep.make("CartPole-v1", 2, device=device)
    limited: Any = everstep.wrap(env, max_episode_steps=np.int64(5))
    assert "5" in limited.describe()["limit"]
