"""Symmetry: laws of reflections, losses by independent formulas, refusals, files, and learning."""

from pathlib import Path
from typing import Any

import pytest
import torch
from examples.symmetry import maze
from tensordict import TensorDict
from torchrl.data import (
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    OneHot,
    Unbounded,
)

import everstep
from everstep import (
    AlgorithmConfig,
    RecurrentAlgorithmConfig,
    RecurrentTrainer,
    TrainConfig,
    Trainer,
)
from everstep.algorithms.recording import optimizer_steps
from everstep.distributions import SquashedNormal
from everstep.env import Env
from everstep.env.specs import random_values
from everstep.errors import ConfigError
from everstep.symmetry import Symmetry, _tables

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "seed": 0, "num_sgd_iters": 1}

#: Exchanges elements 0 and 1, negates 2.
SWAP: dict[str, Any] = {"permutation": [1, 0, 2], "signs": [1, 1, -1]}


class Legs(Env):
    """Two legs and a tilt, which a mirror exchanges and negates; episodes of three env steps."""

    episode_keys = frozenset({"terminated", "truncated", "first"})

    def __init__(self, num_envs: int, horizon: int = 8, *, device: Any = "cpu", **spec: Any):
        self.num_envs, self.horizon, self.device = num_envs, horizon, torch.device(device)
        self.max_horizon = horizon
        self.observation_spec = spec.get("observation") or Unbounded(3)
        self.action_spec = spec.get("action") or Bounded(-1.0, 1.0, shape=(3,))
        self.ends = spec.get("ends", True)
        self.noise = torch.Generator().manual_seed(3)

    def _seen(self) -> Any:
        spec, size = self.observation_spec, [self.num_envs]
        if isinstance(spec, Composite):
            seen = {k: torch.randn(*size, *x.shape, generator=self.noise) for k, x in spec.items()}
            if "action_mask" in seen:
                mask = seen["action_mask"] > -0.5
                mask[:, 0] = True
                seen["action_mask"] = mask
            return TensorDict(seen, size)
        return 3 + torch.randn(*size, 3, generator=self.noise)

    def reset(self, *, config: Any = None) -> Any:
        self.t = torch.zeros(self.num_envs, 1, dtype=torch.int64)
        return self._seen()

    def step(self, action: Any) -> TensorDict:
        self.t += 1
        ended = (self.t % 3 == 0) if self.ends else torch.zeros_like(self.t, dtype=torch.bool)
        rewards = torch.randn(self.num_envs, 1, generator=self.noise)
        out = {"obs": self._seen(), "rewards": rewards, "terminated": ended}
        out |= {"truncated": torch.zeros_like(ended), "first": ended}
        return TensorDict(out, [self.num_envs])


def legs(**spec: Any) -> Any:
    """A factory of `Legs` of these specs."""

    def factory(num_envs: int, horizon: int, *, device: Any) -> Legs:
        return Legs(num_envs, horizon, device=device, **spec)

    return factory


def minibatch_of(algorithm: Any) -> Any:
    """All rows of a rollout that was collected."""
    algorithm.collect()
    algorithm.estimate()
    (chunk,) = next(iter(optimizer_steps(algorithm.parts, 1, None)))
    return chunk


# ---- laws ------------------------------------------------------------------------------------


CASES: list[tuple[Any, Any]] = [
    (Unbounded(3), SWAP),
    (Unbounded(3), [-1, 1, -1]),
    (Bounded(-2.0, 2.0, shape=(2, 2)), {"permutation": [3, 2, 1, 0], "signs": [-1, 1, 1, -1]}),
    (Categorical(4), [1, 0, 3, 2]),
    (
        MultiCategorical([3, 3, 2]),
        {"permutation": [1, 0, 2], "options": [[1, 2, 0], [2, 0, 1], [1, 0]]},
    ),
    (OneHot(4), {"permutation": [1, 0, 2, 3]}),
    (Bounded(2, 5, shape=(2,), dtype=torch.int64), {"options": [[3, 2, 1, 0], [0, 1, 3, 2]]}),
]


@pytest.mark.parametrize(("spec", "table"), CASES)
def test_mirrored_twice_is_what_it_was(spec: Any, table: Any) -> None:
    (mirror,) = _tables("action", table, spec)
    x = random_values(spec, [64, 2])
    once = mirror(x)
    assert once.shape == x.shape
    assert once.dtype == x.dtype
    assert not torch.equal(once, x)
    assert bool(spec.is_in(once[0, 0]))
    assert torch.equal(mirror(once), x)
    logits = torch.randn(5, len(mirror.of_options.source))
    assert torch.equal(mirror.of_options(mirror.of_options(logits)), logits)


def test_a_reflection_computed_by_hand() -> None:
    (numbers,) = _tables("observation", SWAP, Unbounded(3))
    assert numbers(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[2.0, 1.0, -3.0]]
    (choice,) = _tables("action", [2, 1, 0], Categorical(3))
    assert choice(torch.tensor([0, 1, 2])).tolist() == [2, 1, 0]
    assert choice.of_options(torch.tensor([[0.1, 0.2, 0.7]])).tolist() == [
        pytest.approx([0.7, 0.2, 0.1])
    ]
    table = {"permutation": [1, 0], "options": [[1, 2, 0], [2, 0, 1]]}
    (several,) = _tables("action", table, MultiCategorical([3, 3]))
    # Choice 0 in the mirror is options[0] of choice 1, and the other way round.
    assert several(torch.tensor([[0, 1]])).tolist() == [[2, 2]]


@pytest.mark.parametrize(
    ("action", "table"),
    [
        (Categorical(3, shape=(1,)), [2, 1, 0]),
        (
            MultiCategorical([3, 3, 2]),
            {"permutation": [1, 0, 2], "options": [[1, 2, 0], [2, 0, 1], [1, 0]]},
        ),
        (OneHot(3), {"permutation": [2, 1, 0]}),
        (Bounded(2, 5, shape=(2,), dtype=torch.int64), {"permutation": [1, 0]}),
        (Bounded(-1.0, 1.0, shape=(3,)), SWAP),
    ],
)
def test_a_mirrored_distribution_gives_mirrored_actions_the_probability_of_the_actions(
    action: Any, table: Any
) -> None:
    symmetry = Symmetry(SWAP, table, mirror_coeff=1.0)
    algorithm = AlgorithmConfig(**SMALL, symmetry=symmetry).build(legs(action=action))
    batch = minibatch_of(algorithm)
    mirror: Any = algorithm.mirror
    with torch.no_grad():
        for p in algorithm.policy.model.parameters():
            p.add_(0.5 * torch.randn_like(p))
        distribution, _ = algorithm.policy.evaluate(batch)
        mirrored: Any = type(distribution)(
            mirror.features(distribution.features), distribution.model
        )
        before = distribution.latents_logp(batch.actions)
        after = mirrored.latents_logp(mirror.actions(batch.actions))
    assert before.std() > 0
    torch.testing.assert_close(after, before)
    assert mirror.loss(batch, distribution, mirrored) == pytest.approx(0, abs=1e-6) or isinstance(
        action, Bounded
    )


# ---- losses ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("augment", [True, False])
def test_the_loss_is_that_of_plain_torch(augment: bool) -> None:
    """PPO's loss on rows and mirrored rows, and the mirror loss, from the model's outputs."""
    symmetry = Symmetry(SWAP, SWAP, augment=augment, mirror_coeff=0.3)
    options = {"vf_loss": "mse", "vf_clip_param": None, "entropy_coeff": 0.01}
    algorithm = AlgorithmConfig(**SMALL, **options, symmetry=symmetry).build(legs())
    algorithm.collect()
    algorithm.step()  # the normaliser has seen something, and the policy has moved
    batch = minibatch_of(algorithm)
    policy: Any = algorithm.policy
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    moments = policy.normalizer.state_dict()
    (mean,) = [x for k, x in moments.items() if k.endswith("mean")]
    (var,) = [x for k, x in moments.items() if k.endswith("var")]
    assert mean.abs().max() > 1  # mirrored after normalising, this would differ

    def loss(obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = ((obs - mean) / (var + 1e-8).sqrt()).clamp(-10, 10)
        features = policy.model(TensorDict({"obs": seen}, [len(obs)]))
        values = policy.model.value_function()
        normal = torch.distributions.Normal(features["mean"], features["log_std"].exp())
        ratio = (normal.log_prob(actions).sum(-1, keepdim=True) - batch.logp).exp()
        gain = torch.min(ratio * batch.advantages, ratio.clamp(0.8, 1.2) * batch.advantages)
        errors = 0.5 * (values - batch.returns).square()
        entropy = normal.entropy().sum(-1, keepdim=True)
        rows = -gain + errors - 0.01 * entropy
        return (rows * batch.weight).sum(), features["mean"]

    def mirrored(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, 1], x[:, 0], -x[:, 2]], -1)

    obs = batch.obs[0].squeeze(1)
    own, means = loss(obs, batch.actions)
    other, in_mirror = loss(mirrored(obs), mirrored(batch.actions))
    difference = (in_mirror - mirrored(means).detach()).square().mean(-1, keepdim=True)
    expected = (own + other) / 2 if augment else own
    expected = expected + 0.3 * (difference * batch.weight).sum()
    parameters = list(policy.model.parameters())
    gradients = torch.autograd.grad(expected, parameters)
    terms = algorithm._losses(batch)
    torch.testing.assert_close(terms["total"], expected, rtol=1e-9, atol=1e-9)
    assert terms["symmetry"] > 0
    found = torch.autograd.grad(terms["total"], parameters)
    for x, y in zip(found, gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-9)


def test_of_choices_the_mirror_loss_is_a_divergence() -> None:
    symmetry = Symmetry(SWAP, [2, 1, 0], augment=False, mirror_coeff=0.3)
    algorithm = AlgorithmConfig(**SMALL, symmetry=symmetry).build(
        legs(action=Categorical(3, shape=(1,)))
    )
    batch = minibatch_of(algorithm)
    policy: Any = algorithm.policy
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.5 * torch.randn_like(p))
    obs = batch.obs[0].squeeze(1)
    in_mirror = torch.stack([obs[:, 1], obs[:, 0], -obs[:, 2]], -1)
    normalize = policy._normalization()
    logits = [
        policy.model(TensorDict({"obs": normalize((x,))[0]}, [len(x)]))["logits"].flatten(1)
        for x in (obs, in_mirror)
    ]
    p, q = (
        torch.distributions.Categorical(logits=x.flatten(1))
        for x in (logits[0].flip(-1), logits[1])
    )
    expected = (torch.distributions.kl_divergence(p, q)[:, None] * batch.weight).sum()
    assert expected > 0.01
    torch.testing.assert_close(algorithm._losses(batch)["symmetry"], expected.detach())


def test_monitors_are_of_the_rows_that_were_collected() -> None:
    """Before the first step the policy has not moved, whatever the mirrored rows say."""
    for coeff in (0.0, 1.0):
        symmetry = Symmetry(SWAP, SWAP, mirror_coeff=coeff)
        algorithm = AlgorithmConfig(**SMALL, symmetry=symmetry).build(legs())
        terms = algorithm._losses(minibatch_of(algorithm))
        assert terms["kl_div"] == pytest.approx(0, abs=1e-6)
        assert terms["clip_fraction"] == 0


# ---- with everything else --------------------------------------------------------------------


def test_masks_are_mirrored_with_the_actions() -> None:
    spec = Composite(seen=Unbounded(3), action_mask=Categorical(2, shape=(3,), dtype=torch.bool))
    symmetry = Symmetry({"seen": SWAP}, [2, 1, 0], mirror_coeff=1.0)
    config = AlgorithmConfig(**SMALL, symmetry=symmetry)
    algorithm = config.build(legs(observation=spec, action=Categorical(3, shape=(1,))))
    batch = minibatch_of(algorithm)
    paths = algorithm.rollout.observation.paths
    mask = paths.index(("action_mask",))
    _, mirrored = algorithm.mirror.minibatch(batch, ())  # type: ignore[union-attr]
    assert not batch.obs[mask].all()
    assert torch.equal(mirrored.obs[mask], batch.obs[mask].flip(-1))
    assert algorithm.step()["losses/symmetry"] >= 0  # type: ignore[typeddict-item]
    bad = Symmetry({"seen": SWAP, "action_mask": {}}, [2, 1, 0])
    source = legs(observation=spec, action=Categorical(3, shape=(1,)))
    with pytest.raises(ConfigError, match="action_mask`: the mask is mirrored with the actions"):
        AlgorithmConfig(**SMALL, symmetry=bad).build(source)


def test_it_works_with_bonuses_and_other_observations_for_the_values() -> None:
    spec = Composite(seen=Unbounded(3), hidden=Unbounded(2))
    symmetry = {"observation": {"seen": SWAP, "hidden": [1, -1]}, "action": SWAP}
    rnd = {"rnd": {"pre_normalization_steps": 1}}
    options = {"model_config": {"actor_obs": ["seen"]}, "normalize_values": True}
    config = AlgorithmConfig(**SMALL, **options, symmetry=symmetry, bonuses=[rnd])
    algorithm = config.build(legs(observation=spec))
    for _ in range(2):
        algorithm.collect()
        stats: dict[str, Any] = {**algorithm.step()}
    assert stats["losses/rnd"] > 0
    config = AlgorithmConfig(
        **SMALL, symmetry=symmetry, distribution_cls=SquashedNormal, target_kl_div=1.0
    )
    algorithm = config.build(legs(observation=spec))
    algorithm.collect()
    assert algorithm.step()["monitors/skipped_updates"] == 0


def test_mirrored_sequences_begin_with_the_states_of_mirrored_experience() -> None:
    """Of two rollouts without an end of an episode: as the policy answers all of it, mirrored."""
    config = RecurrentAlgorithmConfig(
        **SMALL, seq_len=4, seqs_per_state_reset=-1, symmetry=Symmetry(SWAP, SWAP)
    )
    config.horizons_per_env_reset = -1
    algorithm = config.build(legs(ends=False))
    seen = []
    for _ in range(2):
        algorithm.collect()
        seen.append(algorithm.rollout.obs[0][:-1].clone())
    obs = torch.cat(seen).transpose(0, 1)  # [N, 2T, 3]
    obs = torch.stack([obs[..., 1], obs[..., 0], -obs[..., 2]], -1)
    for sequence, end in enumerate((8, 12)):
        batch = TensorDict({"obs": obs[:, :end]}, [4, end])
        _, after = algorithm.policy.sample(batch)
        expected = algorithm.policy.memory.flatten(after)
        mirror: Any = algorithm.mirror
        for x, y in zip(mirror.states, expected, strict=True):
            assert y.abs().max() > 0
            torch.testing.assert_close(x[sequence], y, rtol=1e-4, atol=1e-5)
    algorithm.step()


def test_mirrored_states_are_reset_with_episodes() -> None:
    config = RecurrentAlgorithmConfig(**SMALL, seq_len=2, symmetry=Symmetry(SWAP, SWAP))
    algorithm = config.build(legs())
    algorithm.collect()
    mirror: Any = algorithm.mirror
    # Episodes have three env steps: the sequences of steps 0 and 6 begin with them.
    zero = [all(not x[s].any() for x in mirror.states) for s in range(4)]
    assert zero == [True, False, False, True]


def test_windows_are_mirrored_whole() -> None:
    from everstep.models import Model
    from everstep.views import ViewRequirement

    class Windowed(Model):
        def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
            super().__init__(observation_spec, action_spec)
            self.view_requirements[("obs",)] = ViewRequirement(shift=2, method="rolling_window")
            self.mean = torch.nn.Linear(9, 3)
            self.log_std = torch.nn.Parameter(torch.zeros(3))
            self.value = torch.nn.Linear(9, 1)

        def forward(self, batch: TensorDict, /) -> Any:
            self.seen = batch["obs"].flatten(1)
            mean = self.mean(self.seen)
            return {"mean": mean, "log_std": self.log_std.expand_as(mean)}

        def value_function(self) -> torch.Tensor:
            return self.value(self.seen)

    config = AlgorithmConfig(**SMALL, model_cls=Windowed, symmetry=Symmetry(SWAP, SWAP))
    algorithm = config.build(legs())
    batch = minibatch_of(algorithm)
    own, mirrored = algorithm.mirror.minibatch(batch, ())  # type: ignore[union-attr]
    assert own.obs[0].shape[1:] == (3, 3)
    expected = own.obs[0][..., [1, 0, 2]] * torch.tensor([1.0, 1.0, -1.0])
    assert torch.equal(mirrored.obs[0], expected)


def test_the_native_way_declines() -> None:
    algorithm = AlgorithmConfig(**SMALL, symmetry=Symmetry(SWAP, SWAP)).build(legs())
    assert algorithm.general_way == "`symmetry` is differentiated by autograd"
    algorithm.collect()
    algorithm.step()
    assert algorithm._fast is None


# ---- refusals --------------------------------------------------------------------------------


REFUSED: list[tuple[Any, Any, Any, Any, str]] = [
    (None, None, [1, 1], SWAP, r"observation.signs` needs 3 numbers, one for each element; got 2"),
    (None, None, [1, 1, 2], SWAP, r"observation.signs` has 1 and -1 alone; got 2 in place 2"),
    (
        *(None, None, {"permutation": [1, 2, 0]}, SWAP),
        r"observation.permutation` must be its own inverse \(p\[p\[i\]\] = i\); got \[1, 2, 0\]",
    ),
    (
        *(None, None, {"permutation": [0, 1, 3]}, SWAP),
        r"observation.permutation` has indices from 0 to 2; got 3 in place 2",
    ),
    (
        *(None, None, {"permutation": [1, 0, 2], "signs": [1, -1, 1]}, SWAP),
        r"observation`: mirrored twice, element 0 would change its sign.*signs are 1 and -1",
    ),
    (None, None, {"permutations": [0, 1, 2]}, SWAP, r"permutations`: .*permutation"),
    (None, None, 3, SWAP, r"observation` expected a list, or a mapping .*; got 3"),
    (
        None,
        Categorical(3, shape=(1,)),
        SWAP,
        [0, 1, 3],
        r"action.options` has options from 0 to 2; got 3",
    ),
    (None, Categorical(3, shape=(1,)), SWAP, [1, 2, 0], r"action.options` must be its own inverse"),
    (None, Categorical(3, shape=(1,)), SWAP, [1, 0], r"action.options` needs 3 numbers.*; got 2"),
    (
        None,
        Categorical(3, shape=(1,)),
        SWAP,
        {"signs": [1]},
        r"action.signs`: choices have no signs",
    ),
    (
        *(None, MultiCategorical([3, 2]), SWAP, {"permutation": [1, 0]}),
        r"exchanges choices 0 and 1, which have 3 and 2 options",
    ),
    (
        *(None, OneHot(4), SWAP, [1, 0, 2, 3]),
        r"action`: flags have no signs; got the list .* Give \{permutation: …\}",
    ),
    (
        *(None, Bounded(0.0, 1.0, shape=(3,)), SWAP, SWAP),
        r"action`: the mirror must keep the bounds .* Element 2 has 0 to 1, its mirrored one -1",
    ),
    (
        *(Composite(a=Unbounded(2), b=Unbounded(3)), None, {"a": [1, -1]}, SWAP),
        r"observation.b`: every leaf needs a table; it has none. Give \{\}",
    ),
    (
        *(Composite(a=Unbounded(2)), None, {"a": [1, -1], "c": [1]}, SWAP),
        r"observation.c`: there is no such leaf; got a table. Leaves are a",
    ),
    (None, None, lambda x: x + 1, SWAP, r"must be its own inverse; twice makes"),
    (None, None, lambda x: x[:, :2], SWAP, r"<lambda> raised RuntimeError"),
    (None, None, SWAP, lambda a: 2 * a, r"may change signs and order of an action's elements"),
    (None, MultiCategorical([2, 2]), SWAP, lambda a: a, r"a function mirrors one tensor"),
    (None, None, [1, float("nan"), 1], SWAP, r"observation.signs` has whole numbers; got nan"),
    (None, None, [1, 1, float("inf")], SWAP, r"observation.signs` has whole numbers; got inf"),
    (
        *(None, MultiCategorical([2, 2]), SWAP),
        *(
            {"permutation": [1, 0], "options": [[0, 1], [0]]},
            r"options.1` needs 2 numbers.*; got 1",
        ),
    ),
    (None, None, SWAP, lambda _: 1 / 0, r"action`: .* raised ZeroDivisionError"),
    (None, None, SWAP, lambda _: None, r"action`: .* must return a tensor .*; got NoneType"),
    (None, None, SWAP, lambda a: a[:1], r"action`: .* must return a tensor like its argument"),
    (None, None, SWAP, lambda a: a.double(), r"action`: .* of torch.float32; got .* torch.float64"),
    (None, Categorical(3, shape=(1,)), SWAP, lambda a: [a], r"action`: .*; got list"),
]


@pytest.mark.parametrize(("observation", "action", "seen", "done", "message"), REFUSED)
def test_what_is_no_reflection_is_refused(
    observation: Any, action: Any, seen: Any, done: Any, message: str
) -> None:
    source = legs(observation=observation, action=action)
    config = AlgorithmConfig(**SMALL, symmetry={"observation": seen, "action": done})
    with pytest.raises(ConfigError, match=message):
        config.build(source)


def overwrites(obs: torch.Tensor) -> torch.Tensor:
    """A mirror that writes into its argument, which training reads, too."""
    return obs.neg_()


def returns_none(obs: torch.Tensor) -> None:
    """No mirror."""


def shifts_in_place(obs: torch.Tensor) -> torch.Tensor:
    """Its own inverse; the argument is left half mirrored."""
    new = obs.flip(-1)
    obs[..., 0] = 0.0
    return new


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (overwrites, "overwrites writes into the observations"),
        (shifts_in_place, "shifts_in_place writes into the observations"),
        (returns_none, "returns_none must return observations of the form .*Tensor; got NoneType"),
        (lambda obs: {"a": obs}, "must return observations of the form .*Tensor; got dict"),
    ],
)
def test_functions_that_spoil_or_lose_observations_are_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AlgorithmConfig(**SMALL, symmetry={"observation": function, "action": SWAP}).build(legs())


def test_a_function_and_its_table_train_alike() -> None:
    found = []
    for mirror in ([-1, -1, -1, -1], lambda obs: -obs):
        env = everstep.make("CartPole-v1", 4, horizon=8)
        symmetry = {"observation": mirror, "action": [1, 0], "mirror_coeff": 0.5}
        algorithm = AlgorithmConfig(horizon=8, seed=0, symmetry=symmetry).build(env)
        for _ in range(2):
            algorithm.collect()
            algorithm.step()
        found.append(algorithm.get_weights())
    for name, x in found[0].items():
        assert torch.equal(x, found[1][name]), name


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"observation": SWAP}, "`symmetry.action`: required, and missing"),
        (
            {"observation": SWAP, "action": SWAP, "augmented": True},
            "symmetry.augmented`: .*augment",
        ),
        ([1, -1], "`symmetry` expected an everstep.symmetry.Symmetry"),
        ({"observation": SWAP, "action": SWAP, "augment": False}, "`symmetry` has no effect"),
        ({"observation": SWAP, "action": SWAP, "mirror_coeff": -1}, "at least 0; got -1"),
        ({"observation": SWAP, "action": SWAP, "augment": 1}, "must be true or false; got 1"),
    ],
)
def test_a_description_that_is_none_is_refused(chosen: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AlgorithmConfig(**SMALL, symmetry=chosen).build(legs())


# ---- files and runs --------------------------------------------------------------------------


def mirrored_cart(obs: torch.Tensor) -> torch.Tensor:
    """CartPole's observations in the mirror."""
    return -obs


@pytest.mark.slow
@pytest.mark.parametrize("observation", ["[-1, -1, -1, -1]", f"{__name__}.mirrored_cart"])
def test_a_file_has_it_and_the_run_goes_on(tmp_path: Path, observation: str) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(
        "env_cls: gymnasium:CartPole-v1\nnum_envs: 4\nhorizon: 16\nseed: 0\n"
        "total_env_steps: 128\nnum_sgd_iters: 1\nrecurrent: true\n"
        "lr_schedule: null\n"
        f"symmetry:\n  observation: {observation}\n  action: [1, 0]\n  mirror_coeff: 0.5\n"
    )
    whole = TrainConfig.from_file(file, ["total_env_steps=256"]).build(run_dir=None)
    whole.run()
    run = tmp_path / "run"
    TrainConfig.from_file(file).build(run_dir=run, track=False).run()
    again = RecurrentTrainer.load(run, trust=True, total_env_steps=256)
    mirror: Any = again.algorithm.mirror
    assert mirror.mirror_coeff == 0.5
    assert mirror.followers[0].states is not None
    again.run()
    again.close()
    weights = whole.algorithm.get_weights()
    for name, x in again.algorithm.get_weights().items():
        torch.testing.assert_close(x, weights[name], rtol=0, atol=0)


def test_a_line_of_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(
        "env_cls: gymnasium:CartPole-v1\nnum_envs: 4\nhorizon: 16\n"
        "symmetry: {observation: [-1, -1, -1], action: [1, 0]}\n"
    )
    with pytest.raises(ConfigError, match=r"train.yaml:4: .*needs 4 numbers"):
        TrainConfig.from_file(file).build(run_dir=None)


def test_a_function_of_the_program_is_named_in_the_record(tmp_path: Path) -> None:
    symmetry = Symmetry(lambda x: -x, [1, 0])
    run = tmp_path / "run"
    trainer = Trainer(
        "CartPole-v1", **SMALL, symmetry=symmetry, run_dir=run, track=False, progress=False
    )
    trainer.step()
    trainer.close()
    text = (run / "config.yaml").read_text()
    assert "so this file cannot repeat: symmetry" in text


# ---- learning --------------------------------------------------------------------------------


@pytest.mark.learning
def test_a_maze_is_learned_from_fewer_env_steps() -> None:
    """Of five seeds each, in as many environments."""
    found = {
        way: sum(maze.steps_to_goal(maze.WAYS[way], seed) for seed in range(5))
        for way in ("half", "augment")
    }
    assert found["augment"] < 0.85 * found["half"]
