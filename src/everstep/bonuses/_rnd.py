"""Random network distillation: a reward for rare observations."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import nn
from torchrl.data import Composite, TensorSpec, Unbounded

from ..core.advantages import recurrence
from ..core.normalizers import RunningMoments, update_moments
from ..core.rollouts import Minibatch, Rollout
from ..env import Env
from ..env.images import is_image, is_measured
from ..env.specs import Leaves, Structure, leaf_specs, random_values
from ..errors import ConfigError
from ..models import ObservationNetwork
from ._base import Bonus, Stream

#: Observations in one forward pass, of whole vector steps.
CHUNK = 1024

#: Largest absolute value of a normalised observation.
CLIP = 5.0


class RandomNetworkDistillation(Bonus):
    """The error of a network that learns to predict a random one: large for new observations.

    A row's reward is that of the observation after its action (the final one, if the environment
    was reset), divided by the standard deviation of the discounted sums of all such
    rewards so far. Its returns do not end with episodes, unless `episodic`.

    Source: arXiv 1810.12894.

    Args:
        gamma_intrinsic: Discount of its rewards.
        ext_adv_coeff: Weight of the environment's advantages.
        int_adv_coeff: Weight of its own.
        predictor_proportion: Share of a minibatch's rows that the predictor learns from, drawn
            anew for each minibatch; 1 or more for all. The other rows are not computed, and the
            drawn rows take over their weight in the loss.
        pre_normalization_steps: Rollouts of random actions that observations' statistics begin
            with.
        pre_normalization_length: Vector steps of each.
        episodic: Whether its returns end where episodes do.
        features: Width of the target's output.
        hiddens: Widths of the target's hidden layers; the predictor has two more, of `features`.
        network_cls: Makes target and predictor, from the spec of normalised observations and the
            options below: a module of tuples of leaves `[B, …]` to `[B, features]`.
        target_config: Options of the target.
        predictor_config: Options of the predictor.

    Raises:
        ValueError: If an argument breaks a rule.

    """

    name = "rnd"

    #: Discounted sums of past rewards, `[num_envs, 1]`.
    sums: torch.Tensor

    #: See `Bonus`: a share of the rows is chosen from each chunk.
    sums_rows = True

    #: Learns to predict the target.
    predictor: nn.Module

    #: Random network that is predicted; never trained.
    target: nn.Module

    def __init__(
        self,
        *,
        gamma_intrinsic: float = 0.99,
        ext_adv_coeff: float = 2.0,
        int_adv_coeff: float = 1.0,
        predictor_proportion: float = 2.0,
        pre_normalization_steps: int = 50,
        pre_normalization_length: int = 128,
        episodic: bool = False,
        features: int = 64,
        hiddens: tuple[int, ...] | list[int] = (64,),
        network_cls: None | Callable[..., nn.Module] = None,
        target_config: None | dict[str, Any] = None,
        predictor_config: None | dict[str, Any] = None,
    ) -> None:
        super().__init__()
        _check(0 < gamma_intrinsic <= 1, "gamma_intrinsic", "in (0, 1]", gamma_intrinsic)
        _check(predictor_proportion > 0, "predictor_proportion", "above 0", predictor_proportion)
        for name, steps in (
            ("pre_normalization_steps", pre_normalization_steps),
            ("pre_normalization_length", pre_normalization_length),
        ):
            _check(steps >= 0, name, "at least 0", steps)
        self.options = {
            "gamma_intrinsic": gamma_intrinsic,
            "ext_adv_coeff": ext_adv_coeff,
            "int_adv_coeff": int_adv_coeff,
            "predictor_proportion": predictor_proportion,
            "pre_normalization_steps": pre_normalization_steps,
            "pre_normalization_length": pre_normalization_length,
            "episodic": episodic,
            "features": features,
            "hiddens": list(hiddens),
            "network_cls": network_cls,
            "target_config": target_config,
            "predictor_config": predictor_config,
        }
        self.extrinsic_weight = float(ext_adv_coeff)
        self.stream = Stream(float(gamma_intrinsic), float(int_adv_coeff), episodic)
        self.predictor_proportion = predictor_proportion
        self.pre_normalization = pre_normalization_steps * pre_normalization_length
        self._network_cls = network_cls
        self._widths = (features, tuple(hiddens))
        self._configs = (target_config or {}, predictor_config or {})

    def as_config(self) -> dict[str, Any]:
        """See `Bonus.as_config`."""
        return {self.name: dict(self.options)}

    def build(self, observation_spec: TensorSpec, num_envs: int, device: torch.device) -> None:
        """See `Bonus.build`."""
        spec = _normalized_spec(observation_spec)
        try:
            self.target, self.predictor = (self._make(spec, which) for which in (0, 1))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"`bonuses` rnd: {error}.") from error
        self.target.requires_grad_(False)
        leaves = leaf_specs(observation_spec).values()
        self.moments = nn.ModuleDict(
            {str(i): RunningMoments(*s.shape) for i, s in enumerate(leaves) if _is_number(s)}
        )
        self.spread = RunningMoments()
        self.register_buffer("sums", torch.zeros(num_envs, 1))
        self.to(device)

    def _make(self, spec: TensorSpec, which: int) -> nn.Module:
        features, hiddens = self._widths
        if self._network_cls is not None:
            return self._network_cls(spec, **self._configs[which])
        deeper = (features, features) if which else ()
        options = {"hiddens": (*hiddens, *deeper), **self._configs[which]}
        return ObservationNetwork(spec, features, **options)

    # ---- rewards ------------------------------------------------------------------------------

    def prepare(self, env: Env) -> bool:
        """Statistics of observations under random actions; whether there were any."""
        structure = Structure.of(env.observation_spec)
        for t in range(self.pre_normalization):
            if t == 0:
                env.reset()
            action = random_values(env.action_spec, [env.num_envs])
            leaves = structure.flatten(env.step(action)["obs"])
            self._observe(
                leaves, torch.ones(env.num_envs, dtype=torch.bool, device=leaves[0].device)
            )
        return self.pre_normalization > 0

    @torch.no_grad()
    def rewards(self, rollout: Rollout) -> torch.Tensor:
        """See `Bonus.rewards`."""
        novelty = torch.empty_like(rollout.logp[:-1])
        for start, end in _pieces(rollout):
            seen = self._normalized(rollout.next_obs(start, end))
            targets = self.target(seen)
            errors = _errors(self.predictor(seen), targets)
            novelty[start:end] = errors.view_as(novelty[start:end])
            self._keep(targets, rollout, start, end)
        novelty = torch.where(rollout.next_known, novelty, 0.0)
        sums = self._discounted(novelty, rollout)
        self.spread.update(sums.flatten(), rollout.valid.flatten())
        return novelty / self.spread.std.to(novelty.dtype)

    def _keep(self, targets: torch.Tensor, rollout: Rollout, start: int, end: int) -> None:
        """Store the target's outputs of some vector steps, in memory that is reused."""
        batch = (rollout.horizon, rollout.num_envs)
        if not self.cache or self.cache[0].shape[:2] != batch:
            self.cache = (targets.new_empty(*batch, *targets.shape[1:]),)
        self.cache[0][start:end] = targets.unflatten(0, (-1, rollout.num_envs))

    def _discounted(self, rewards: torch.Tensor, rollout: Rollout) -> torch.Tensor:
        """Discounted sums of past rewards `[T, N, 1]`, continued from the last rollout."""
        x = torch.where(rollout.valid, rewards, 0.0)
        decay = torch.full_like(x, self.stream.gamma).masked_fill_(~rollout.valid, 1.0)
        ends = rollout.done & self.stream.episodic
        decay[1:].masked_fill_(ends[:-1], 0.0)
        x[0].addcmul_(decay[0], self.sums.to(x.dtype))
        sums = recurrence(x, decay)
        self.sums.copy_(sums[-1].masked_fill(ends[-1], 0.0))
        return sums

    def _normalized(self, obs: Leaves) -> Leaves:
        return tuple(self._normalize(str(i), leaf) for i, leaf in enumerate(obs))

    def _normalize(self, place: str, leaf: torch.Tensor) -> torch.Tensor:
        if place not in self.moments:
            return leaf
        moments = cast(RunningMoments, self.moments[place])
        dtype = leaf.dtype if leaf.is_floating_point() else torch.get_default_dtype()
        centred = leaf.to(dtype) - moments.mean.to(dtype)
        return centred.div_(moments.std.to(dtype)).clamp_(-CLIP, CLIP)

    # ---- learning -----------------------------------------------------------------------------

    def losses(self, minibatch: Minibatch) -> torch.Tensor:
        """See `Bonus.losses`."""
        assert minibatch.next_known is not None
        obs, targets = minibatch.next_obs, minibatch.cache[self.name][0]
        weight = torch.where(minibatch.next_known, minibatch.weight, 0.0)
        share = weight.sum()
        if self.predictor_proportion < 1:
            count = max(1, round(self.predictor_proportion * len(weight)))
            # So many rows rather than each with that probability: shapes stay what they are.
            chosen = torch.randperm(len(weight), device=weight.device)[:count]
            obs, targets, weight = tuple(x[chosen] for x in obs), targets[chosen], weight[chosen]
            weight = weight * (share / weight.sum().clamp(min=1e-12))
        # Excluded rows may hold NaN, which a weight of 0 does not keep from the gradient.
        excluded = weight == 0
        obs = tuple(x.masked_fill(_like(excluded, x), 0) for x in obs)
        targets = targets.masked_fill(excluded, 0.0)
        return (_errors(self.predictor(self._normalized(obs)), targets) * weight).sum()

    @torch.no_grad()
    def update(self, rollout: Rollout) -> None:
        """See `Bonus.update`."""
        known = rollout.next_known
        for start, end in _pieces(rollout):
            self._observe(rollout.next_obs(start, end), known[start:end].flatten())

    def _observe(self, leaves: Leaves, mask: torch.Tensor) -> None:
        update_moments(self.moments, leaves, mask)


def _pieces(rollout: Rollout) -> Iterator[tuple[int, int]]:
    """First and last vector steps of the pieces of a rollout."""
    steps = max(1, CHUNK // rollout.num_envs)
    for start in range(0, rollout.horizon, steps):
        yield start, min(start + steps, rollout.horizon)


def _like(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Rows `[R, 1]` with as many dimensions as `x` `[R, …]`."""
    return rows.view(-1, *(1,) * (x.ndim - 1))


def _errors(predicted: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean squared errors, `[R, 1]`."""
    return (predicted - targets).square().mean(-1, keepdim=True)


def _is_number(spec: TensorSpec) -> bool:
    return is_measured(spec) or is_image(spec)


def _normalized_spec(spec: TensorSpec) -> TensorSpec:
    """Spec of normalised observations: integers are real numbers then."""
    if isinstance(spec, Composite):
        return Composite({key: _normalized_spec(leaf) for key, leaf in spec.items()})
    if _is_number(spec) and not spec.dtype.is_floating_point:
        return Unbounded(shape=spec.shape, dtype=torch.get_default_dtype())
    return spec


def _check(holds: bool, name: str, rule: str, received: float) -> None:
    if not holds:
        raise ValueError(f"`{name}` must be {rule}; got {received}")
