"""Functions that make algorithms, later and elsewhere."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

from torch import nn

from ..bonuses import make_bonuses
from ..data import Device
from ..env import Env, EnvFactory
from ..errors import ConfigError
from ..policies import GenericPolicyBase
from ..validation import unknown_name
from ._algorithm import OnPolicyAlgorithm
from ._building import build_env, closed_on_error
from ._vocabulary import DEFAULTS, NAMES, as_fields, renamed, size_of_one_in

A = TypeVar("A", bound=OnPolicyAlgorithm[Any, Any, Any])

#: What is to be trained; None for a default model.
Actor = None | nn.Module | GenericPolicyBase[Any]


def create_factory(
    cls: type[A], hyperparameters: dict[str, Any]
) -> tuple[Callable[[Device, Actor, EnvFactory | Env], A], str]:
    """See `WorkerOperations.create_factory`."""
    known = [*(field.name for field in fields(cls.config_cls)), *NAMES]
    unknown = [name for name in hyperparameters if name not in known]
    if unknown:
        raise ConfigError([f"`{x}`: {unknown_name('hyperparameter', x, known)}." for x in unknown])
    name = _algorithm_name(hyperparameters)
    given = as_fields(_with_defaults(name, hyperparameters), cls.config_cls())
    num_mini_batch = given.pop("num_mini_batch", None)

    def create_algo_instance(device: Device, actor: Actor, envs: EnvFactory | Env) -> A:
        config = cls.config_cls(**{**given, "device": device, **_trained(actor)}).validate()
        env, config = build_env(envs, config)
        with closed_on_error(env, unless=envs):
            if num_mini_batch is not None:
                size = size_of_one_in(num_mini_batch, config)
                config = replace(config, sgd_minibatch_size=size)
            algorithm = cls(env, config)
            algorithm.validate()
        _know_observations(algorithm, actor)
        return algorithm

    return create_algo_instance, name


def _algorithm_name(hyperparameters: dict[str, Any]) -> str:
    """`"PPO"`, `"A2C"`, `"RND_PPO"`."""
    objective = hyperparameters.get("objective", "ppo")
    bonuses = make_bonuses(hyperparameters.get("bonuses") or ())
    names = [*(bonus.name for bonus in bonuses), getattr(objective, "__name__", objective)]
    return "_".join(names).upper()


def _with_defaults(name: str, hyperparameters: dict[str, Any]) -> dict[str, Any]:
    defaults = dict(DEFAULTS.get(name) or DEFAULTS.get(name.split("_")[-1], {}))
    if {"lr", "lr_schedule"} & hyperparameters.keys():  # one learning rate, not two
        defaults.pop("optimizer_config", None)
    return {**defaults, **renamed(hyperparameters)}


def _trained(actor: Actor) -> dict[str, Any]:
    """The fields that make an algorithm train `actor`."""
    if not isinstance(actor, GenericPolicyBase):
        return {} if actor is None else {"model": actor}
    found: dict[str, Any] = {"model": actor.model, "distribution_cls": actor.distribution_cls}
    if actor.normalizer is not None:
        found |= {"normalize_observations": True, "clip_observations": actor.normalizer.clip}
    return found


def _know_observations(algorithm: OnPolicyAlgorithm[Any, Any, Any], actor: Actor) -> None:
    """Take over what a policy knows of observations."""
    if isinstance(actor, GenericPolicyBase) and actor.normalizer is not None:
        normalizer = algorithm.policy.normalizer
        assert normalizer is not None
        normalizer.load_state_dict(actor.normalizer.state_dict())
