"""The check of bootstrapping: advantages of training against the oracle's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import TensorSpec

from ..algorithms import Algorithm, AlgorithmConfig
from ..data import DataKeys
from ..distributions import Distribution
from ..env.specs import Structure
from ..errors import EverstepError
from ..models import Model
from ._oracle import known_values, oracle_advantages, transitions_of
from ._player import Player, Row, copies
from ._results import Violation
from ._structure import attempt, episode_keys
from ._subject import Subject

_GAMMA, _LAMBDA, _ROLLOUTS = 0.9, 0.8, 4
_TOLERANCE = 1e-12


_attempt = partial(
    attempt,
    "training",
    kind=Violation,
    rule="An algorithm can be built on the environment, and can collect.",
    fix="Fix what the error names.",
    error_type=EverstepError,
)


def check_bootstrap(subject: Subject) -> None:
    """Advantages that training computes equal those of the definition, to 1e-12."""
    with Player(subject, seed=subject.seed) as player:
        player.reset()
        env = _Recorded(player, torch.get_default_dtype())
        with _default_dtype(torch.float64):
            algorithm = _attempt(lambda: _algorithm(env, player, subject.horizon))
            for _ in range(_ROLLOUTS):
                env.rows.clear()
                _attempt(algorithm.collect)
                with torch.no_grad():
                    algorithm.estimate()
                _compare(algorithm, env.rows)


def _algorithm(env: Any, player: Player, horizon: int) -> Algorithm:
    specs = (env.observation_spec, env.action_spec)
    return AlgorithmConfig(
        model=_KnownValues(*specs, player=player),
        distribution_cls=_Chosen,
        horizon=horizon,
        horizons_per_env_reset=2,
        gamma=_GAMMA,
        gae_lambda=_LAMBDA,
        normalize_advantages=False,
        normalize_rewards=False,
    ).build(env)


def _compare(algorithm: Algorithm, rows: list[Row]) -> None:
    """Raise if a rollout's advantages are not those of its rows."""
    for env in range(algorithm.rollout.num_envs):
        transitions = transitions_of(rows, env, known_values)
        expected = torch.tensor(
            oracle_advantages(transitions, gamma=_GAMMA, gae_lambda=_LAMBDA), dtype=torch.float64
        )
        computed = algorithm.rollout.advantages[:-1, env, 0].cpu()
        scale = expected.nan_to_num().abs().max().clamp(min=1.0)
        error = ((computed - expected).abs() / scale).nan_to_num()
        valid = torch.tensor([transition is not None for transition in transitions])
        if error.max() > _TOLERANCE or not torch.equal(
            algorithm.rollout.valid[:, env, 0].cpu(), valid
        ):
            t = int(error.argmax())
            raise Violation(
                "advantages",
                "They are sums of temporal differences to the end of each episode.",
                f"{computed[t].item()} for {expected[t].item()} in environment {env}, row {t}",
                "Return the reward and flags that each row's own action caused.",
            )


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


_OBSERVED = (DataKeys.OBS, DataKeys.FINAL_OBS)


class _Recorded:
    """A player's environment that records its rows and runs in its own default dtype.

    The check trains in float64; the environment was made with another default dtype. What training
    does not read is left out: a warning would name this class.
    """

    #: One model acts for all agents, with the player's actions.
    agent_specs = None

    def __init__(self, player: Player, dtype: torch.dtype) -> None:
        self._player, self._dtype = player, dtype
        self.rows: list[Row] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._player.env, name)

    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        with _default_dtype(self._dtype):
            self._player.reset(config=config)
        return self._seen(self._player.acted_on)

    def step(self, action: Any) -> Any:
        player = self._player
        obs = copies(player.observation.flatten(player.acted_on))
        with _default_dtype(self._dtype):
            outcome = player.step_as_is(action)
        self.rows.append(player.copy_row(obs, outcome))
        row = {key: outcome[key] for key in (DataKeys.REWARDS, *episode_keys(player.env))}
        row[DataKeys.OBS] = outcome[DataKeys.OBS]
        row |= {key: self._seen(x) for key, x in row.items() if key in _OBSERVED}
        return TensorDict(row, [player.env.num_envs])

    def _seen(self, obs: Any) -> Any:
        structure = self._player.observation
        return structure.unflatten(structure.flatten(obs), [self._player.env.num_envs])


class _KnownValues(Model):
    """Model whose values are a fixed function of the observation."""

    def __init__(
        self, observation_spec: TensorSpec, action_spec: TensorSpec, /, *, player: Player
    ) -> None:
        super().__init__(observation_spec, action_spec)
        self.player = player
        self.weight = nn.Parameter(torch.zeros(1))
        self._structure = Structure.of(observation_spec)

    def forward(self, batch: TensorDict, /) -> Mapping[str, torch.Tensor]:
        values = known_values(self._structure.flatten(batch[DataKeys.OBS]))
        self._values = values.unsqueeze(-1) + 0 * self.weight
        return {"values": self._values}

    def value_function(self) -> torch.Tensor:
        return self._values


class _Chosen(Distribution):
    """Distribution whose samples are the suite's actions."""

    def sample(self) -> torch.Tensor | TensorDict:
        return cast(torch.Tensor | TensorDict, self.model.player.choose())

    def deterministic_sample(self) -> torch.Tensor | TensorDict:
        return self.sample()

    def entropy(self) -> torch.Tensor:
        return torch.zeros_like(self.features["values"])

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        return self.entropy()
