"""What an algorithm is made of, put together from its config and its environment."""

from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, cast

import torch
from torch.amp.grad_scaler import GradScaler

from ..bonuses import Bonus, Stream, make_bonuses
from ..data import AlgorithmHparams, AlgorithmState
from ..env import Env, EnvFactory
from ..episodes import EpisodeTracker
from ..graphs import CUDAGraph
from ..hyperparameters import Hyperparameters
from ..normalizers import RunningMoments
from ..objectives import Objective, find_objective
from ..policies import GenericPolicyBase
from ..rollouts import Rollout, episode_keys_of
from ..schedulers import EntropyScheduler, LRScheduler
from ..specs import Leaves, Structure
from ..updates import Updater
from . import _bonuses as bonuses
from . import _bookkeeping as bookkeeping
from ._analytic import AnalyticGradients
from ._base import GenericAlgorithmBase
from ._building import (
    buffer_spec,
    build_env,
    check_history,
    check_kind,
    chunk_size,
    closed_on_error,
    make_policy,
    resolve_epochs,
    resolve_graphs,
    resolve_minibatch,
    resolve_sequences,
)
from ._captured import Graphs
from ._parameters import parameter_groups

_Hparams = TypeVar("_Hparams", bound=AlgorithmHparams)
_State = TypeVar("_State", bound=AlgorithmState)
_Policy = TypeVar("_Policy", bound=GenericPolicyBase[Any])


class Assembled(
    GenericAlgorithmBase[_Hparams, _State, _Policy], Generic[_Hparams, _State, _Policy]
):
    """The parts of an on-policy algorithm."""

    #: Rewards of the agent's own.
    bonuses: tuple[Bonus, ...]

    #: Class of the hyperparameters, where none are given.
    config_cls: type[Hyperparameters] = Hyperparameters

    #: Sequences that an update's models see at once, None for a minibatch at once.
    chunk_size: None | int

    #: Collection and update as they are recorded and replayed.
    graphs: Graphs

    #: Classes of what a kind of algorithm is made of.
    hparams_cls: type[_Hparams]
    policy_cls: type[_Policy]
    state_cls: type[_State]

    #: What an update minimises.
    objective: Objective

    #: Storage of the rollout.
    rollout: Rollout

    #: Columns of rewards, values and advantages: the environment's, and one for each bonus.
    streams: tuple[Stream, ...]

    #: The optimizer's side of an update.
    updater: Updater

    def __init__(self, env_cls: EnvFactory | Env, /, config: None | Hyperparameters = None) -> None:
        config = (config or self.config_cls()).validate()
        check_kind(config, self.config_cls)
        if config.seed is not None:
            torch.manual_seed(config.seed)
        self.env, config = build_env(env_cls, config)
        with closed_on_error(self.env, unless=env_cls):
            self._assemble(config)

    def _assemble(self, config: Hyperparameters) -> None:
        """Everything but the environment, from a config whose environment is resolved."""
        if config.seed is not None and hasattr(self.env, "seed"):
            self.env.seed(config.seed)
        device = torch.device(config.device)
        config = resolve_graphs(config, device)
        config, length = resolve_sequences(config, self.env)
        self._make_policy(config, device)
        self.policy.seq_len = length
        check_history(self.policy, config, self.env)
        num_envs, horizon = cast(int, config.num_envs), cast(int, config.horizon)
        config = self._hold(config)
        self.rollout = Rollout(
            num_envs,
            horizon,
            observation=Structure.of(self.env.observation_spec),
            action=Structure.of(self.env.action_spec),
            memory=self.policy.memory,
            episode_keys=episode_keys_of(self.env),
            seq_len=length,
            history=self.policy.history,
            num_streams=len(self.streams),
            dtype=torch.get_default_dtype(),
            device=device,
        )
        self.buffer = self.rollout.view()
        self.buffer_spec = buffer_spec(self.rollout, self.env)
        self._make_optimizer(config, device)
        self.chunk_size = chunk_size(
            [self.policy.model, *self.bonuses],
            [self.objective, *self.bonuses, *config.policy_loss_addons],
            seq_len=length,
            device=device,
        )
        self.episodes = EpisodeTracker(num_envs, device=device)
        self.discounted_returns = RunningMoments().to(device)
        self.state = self.state_cls()
        self.states: None | Leaves = None  # None: as an episode opens
        self.continues = False  # whether the environment stands where the last rollout ended
        self.is_evaluating = False
        self.is_prepared = not self.bonuses  # whether the bonuses have seen the environment
        self._analytic: None | AnalyticGradients = None
        self._rows_to_learn = 0
        self._reward_scale: None | torch.Tensor = None
        self.graphs = Graphs(CUDAGraph if config.cuda_graphs else None)

    def _hold(self, config: Hyperparameters) -> Hyperparameters:
        """Keep a config, whose minibatches and epochs are resolved then."""
        sequences = cast(int, config.num_envs) * cast(int, config.horizon) // self.policy.seq_len
        config = resolve_minibatch(config, sequences=sequences)
        config = resolve_epochs(config, find_objective(config.objective))
        self.sequences_per_rollout = sequences
        self.minibatch_size = cast(int, config.sgd_minibatch_size)
        self.config = config
        self.hparams = self.hparams_cls(config, num_minibatches=sequences // self.minibatch_size)
        return config

    def _precision(self) -> AbstractContextManager[None]:
        """Where matrices are multiplied as the config says."""
        return bookkeeping.matmul_precision(self.config.matmul_precision)

    def _make_policy(self, config: Hyperparameters, device: torch.device) -> None:
        """The policy, and the bonuses whose streams it values."""
        env = self.env
        self.bonuses = make_bonuses(config.bonuses)
        self.streams = bonuses.streams_of(config, self.bonuses)
        self.policy = make_policy(self.policy_cls, env, config, device, len(self.streams))
        for bonus in self.bonuses:
            bonus.build(env.observation_spec, env.num_envs, device)
        bonuses.add_critics(self.policy, self.bonuses, env.observation_spec)

    def _make_optimizer(self, config: Hyperparameters, device: torch.device) -> None:
        """What is minimised, by what, and how that changes."""
        self.grad_scaler = GradScaler(
            device.type, enabled=config.enable_amp and config.amp_dtype == "float16"
        )
        self.updater = Updater(
            self._parameter_groups(config),
            optimizer_cls=config.optimizer_cls,
            optimizer_config=config.optimizer_options()[0],
            max_grad_norm=config.max_grad_norm,
            grad_scaler=self.grad_scaler,
        )
        self.optimizer = self.updater.optimizer
        self._make_objective(config, device)
        for add_on in config.policy_loss_addons:
            if hasattr(add_on, "setup"):
                add_on.setup(self.policy)

    def _parameter_groups(self, config: Hyperparameters) -> list[dict[str, Any]]:
        others = [p for bonus in self.bonuses for p in bonus.parameters() if p.requires_grad]
        return parameter_groups(self.policy, self.rollout, config, others)

    def _make_objective(self, config: Hyperparameters, device: torch.device) -> None:
        """What is minimised, and what changes it with the transitions."""
        self.lr_scheduler = LRScheduler(
            self.optimizer, schedule=config.lr_schedule, kind=config.lr_schedule_kind
        )
        self.entropy_scheduler = EntropyScheduler(
            config.entropy_coeff,
            schedule=config.entropy_coeff_schedule,
            kind=config.entropy_coeff_schedule_kind,
        )
        coeff = torch.tensor(self.entropy_scheduler.coeff, device=device)
        self.objective = find_objective(config.objective)(config, entropy_coeff=coeff)
