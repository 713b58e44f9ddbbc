"""Objectives: laws, PPO and A2C where they must agree, and TorchRL's losses as oracles."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import nn
from torchrl.objectives import A2CLoss, ClipPPOLoss

from everstep import (
    AlgorithmConfig,
    ContinuousDummyEnv,
    DiscreteDummyEnv,
    RecurrentTrainer,
    TrainConfig,
    Trainer,
)
from everstep.algorithms.recording import Recorder
from everstep.core.graphs import Tape
from everstep.core.hyperparameters import Hyperparameters
from everstep.core.losses import weighted_sum
from everstep.core.rollouts import Minibatch
from everstep.distributions import Categorical, Distribution, Normal, TorchDistributionWrapper
from everstep.errors import ConfigError
from everstep.models import Model
from everstep.objectives import A2C, PPO, ActorCritic

SMALL: dict[str, Any] = {"num_envs": 8, "horizon": 8, "seed": 0, "num_sgd_iters": 1}


# ---- PPO and A2C -----------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("env_cls", [DiscreteDummyEnv, ContinuousDummyEnv])
def test_where_the_policy_has_not_moved_ppo_has_the_gradient_of_a2c(env_cls: Any) -> None:
    config = {**SMALL, "normalize_advantages": False, "entropy_coeff": 0.02}
    algorithm = AlgorithmConfig(**config).build(env_cls)
    algorithm.collect()
    algorithm.estimate()
    (minibatch,) = algorithm.policy.sequences(algorithm.rollout).minibatches(
        64, shuffle=False, joint=False, permute=torch.randperm
    )
    gradients = []
    for objective in (PPO, A2C):
        loss = objective(algorithm.config, entropy_coeff=torch.tensor(0.02))
        distribution, values = algorithm.policy.evaluate(minibatch)
        total = loss(minibatch, distribution, values)["total"]
        gradients.append(torch.autograd.grad(total, list(algorithm.policy.model.parameters())))
    for ppo, a2c in zip(*gradients, strict=True):
        assert a2c.abs().max() > 0
        torch.testing.assert_close(ppo, a2c, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_one_update_of_ppo_is_one_of_a2c() -> None:
    config = {**SMALL, "normalize_advantages": False}
    updated = []
    for name in ("ppo", "a2c"):
        algorithm = AlgorithmConfig(**config, objective=name).build(DiscreteDummyEnv)
        algorithm.collect()
        algorithm.step()
        updated.append(torch.cat([p.flatten() for p in algorithm.policy.model.parameters()]))
    torch.testing.assert_close(*updated, rtol=0, atol=1e-12)


def test_a2c_goes_through_a_rollout_once_and_ppo_four_times() -> None:
    for objective, epochs in (("a2c", 1), ("ppo", 4), (A2C, 1), (PPO, 4)):
        algorithm = AlgorithmConfig(num_envs=2, horizon=2, objective=objective).build(
            DiscreteDummyEnv
        )
        assert algorithm.hparams.num_sgd_iters == epochs
    chosen = AlgorithmConfig(num_envs=2, horizon=2, objective="a2c", num_sgd_iters=3)
    assert chosen.build(DiscreteDummyEnv).hparams.num_sgd_iters == 3


class Pictures(gym.Env):
    """Pictures without meaning; episodes of one env step."""

    observation_space = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, True, False, {}


@pytest.mark.parametrize("trainer_cls", [Trainer, RecurrentTrainer])
@pytest.mark.parametrize("graphs", [False, True])
def test_epochs_may_depend_on_the_budget(trainer_cls: Any, graphs: bool, tmp_path: Path) -> None:
    small: dict[str, Any] = {"num_envs": 4, "horizon": 4, "sgd_minibatch_size": None}
    small |= {"num_sgd_iters": [[0, 3], [33, 1], [64, 2]], "lr_schedule": None}

    def build() -> Any:
        trainer = trainer_cls(DiscreteDummyEnv, **small, run_dir=None, progress=False)
        if graphs:
            trainer.algorithm.recorder = Recorder(Tape)
        return trainer

    def steps_of(trainer: Any, call: Any) -> int:
        def taken() -> int:
            states = list(trainer.algorithm.optimizer.state.values())
            return int(states[0]["step"]) if states else 0

        before = taken()
        call()
        return taken() - before

    with build() as trainer:
        assert steps_of(trainer, trainer.step) == 2  # without a budget that of the largest
        assert steps_of(trainer, lambda: trainer.run(total_env_steps=32)) == 3
        assert steps_of(trainer, lambda: trainer.run(total_env_steps=48)) == 1
        trainer.save_checkpoint(tmp_path / "checkpoint")
        with build() as other:
            other.load_checkpoint(tmp_path / "checkpoint")
            assert steps_of(other, other.step) == 1
        trainer.algorithm.update_algorithm_parameter("num_epochs", 5)
        assert steps_of(trainer, trainer.step) == 5


@pytest.mark.parametrize(
    ("env", "num_envs", "horizon", "epochs"),
    [
        ("CartPole-v1", 8, 256, [(0, 20), (100_000, 10)]),
        ("CartPole-v1", 64, 256, 10),
        (DiscreteDummyEnv, 8, 256, 4),
        (Pictures, 8, 16, [(0, 10), (50_000, 4)]),
        (Pictures, 8, 2048, 4),
    ],
)
def test_small_budgets_have_more_epochs(env: Any, num_envs: int, horizon: int, epochs: Any) -> None:
    options: dict[str, Any] = {"num_envs": num_envs, "horizon": horizon, "run_dir": None}
    with Trainer(env, **options) as trainer:
        assert trainer.algorithm.hparams.num_sgd_iters == epochs
    with Trainer(env, **options, objective="a2c") as trainer:
        assert trainer.algorithm.hparams.num_sgd_iters == 1


def test_an_unknown_objective_is_told() -> None:
    with pytest.raises(ConfigError, match="one of a2c, ppo, or a class; got 'a3c'"):
        AlgorithmConfig(num_envs=2, horizon=2, objective="a3c").build(DiscreteDummyEnv)


class Reinforce(ActorCritic):
    """The policy gradient with the returns themselves."""

    default_num_sgd_iters = 1

    def gain(self, logp: torch.Tensor, minibatch: Minibatch) -> torch.Tensor:
        return logp * minibatch.returns


@pytest.mark.slow
def test_a_file_may_name_an_objective(tmp_path: Path) -> None:
    for name, cls in (("a2c", A2C), ("tests.everstep.test_objectives.Reinforce", Reinforce)):
        file = tmp_path / "train.yaml"
        file.write_text(
            f"env_cls: everstep.env.DiscreteDummyEnv\nnum_envs: 4\nhorizon: 4\nobjective: {name}\n"
            "optimizer_config: {lr_pi: 1e-4, lr_v: 1e-3}\n"
        )
        trainer = TrainConfig.from_file(file).build(run_dir=tmp_path / name, track=False)
        trainer.step()
        assert isinstance(trainer.algorithm.objective, cls)
        again = TrainConfig.from_file(tmp_path / name / "config.yaml")
        assert isinstance(again.build(run_dir=None).algorithm.objective, cls)


# ---- learning rates of their own -------------------------------------------------------------


class Shared(Model):
    """One trunk under two heads."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.trunk, self.policy, self.vf = nn.Linear(1, 4), nn.Linear(4, 2), nn.Linear(4, 1)

    def forward(self, batch: TensorDict, /) -> Any:
        self.seen = self.trunk(batch["obs"])
        return TensorDict({"logits": self.policy(self.seen).unsqueeze(1)}, batch.batch_size)

    def value_function(self) -> torch.Tensor:
        return self.vf(self.seen)


def test_policy_and_values_have_learning_rates_of_their_own() -> None:
    config = AlgorithmConfig(
        **SMALL, model_cls=Shared, objective="a2c", optimizer_config={"lr_pi": 1e-4, "lr_v": 0.0}
    )
    algorithm = config.build(DiscreteDummyEnv)
    model = algorithm.policy.model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    algorithm.collect()
    assert algorithm.step()["coefficients/lr"] == 1e-4
    # What both depend on belongs to the policy.
    moved = {n.split(".")[0] for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {"trunk", "policy"}
    assert [group["lr"] for group in algorithm.optimizer.param_groups] == [1e-4, 0.0]


def test_learning_rates_of_their_own_exclude_a_schedule() -> None:
    config = AlgorithmConfig(
        **SMALL, optimizer_config={"lr_v": 1e-3}, lr_schedule=[(0, 1e-3), (10, 0.0)]
    )
    with pytest.raises(ConfigError, match="lr_v, and `lr_schedule` sets one"):
        config.build(DiscreteDummyEnv)
    with pytest.raises(ConfigError, match="Invalid learning rate"):
        AlgorithmConfig(**SMALL, optimizer_config={"lr_pi": -1.0}).validate()


# ---- terms of one's own ----------------------------------------------------------------------


class Centred:
    """Keeps the means of actions near 0."""

    name = "centred"

    def setup(self, policy: Any) -> None:
        self.policy = policy

    def __call__(
        self, minibatch: Minibatch, distribution: Any, values: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        squares = distribution.mean.square().sum(-1, keepdim=True)
        loss = 0.5 * weighted_sum(squares, minibatch.weight)
        return loss, {"largest": squares.max()}


@pytest.mark.usefixtures("float64")
def test_added_terms_are_minimised_and_reported() -> None:
    add_on = Centred()
    plain = AlgorithmConfig(**SMALL).build(ContinuousDummyEnv)
    plain.collect()
    algorithm = AlgorithmConfig(**SMALL, policy_loss_addons=[add_on]).build(ContinuousDummyEnv)
    algorithm.collect()
    expected = (
        0.5
        * algorithm.policy.evaluate(
            next(
                algorithm.policy.sequences(algorithm.rollout).minibatches(
                    64, shuffle=False, joint=False, permute=torch.randperm
                )
            )
        )[0]
        .mean.square()
        .sum(-1)
        .mean()
    )
    found, without = algorithm.step(), plain.step()
    assert add_on.policy is algorithm.policy
    assert found["losses/centred"] == pytest.approx(expected.item(), abs=1e-12)
    assert found["losses/total"] == pytest.approx(without["losses/total"] + expected.item())
    assert found["losses/centred/largest"] > found["losses/centred"]
    assert found["monitors/grad_norm"] != without["monitors/grad_norm"]


# ---- the whole objective, against TorchRL's --------------------------------------------------


class Network(nn.Module):
    """Policy and value networks whose gradients are compared."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, outputs))
        self.value = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))


def torchrl_loss(
    kind: type[ActorCritic],
    network: Network,
    discrete: bool,
    td: TensorDict,
    options: Hyperparameters,
) -> dict[str, torch.Tensor]:
    if discrete:
        head = TensorDictModule(network.policy, ["obs"], ["logits"])
        keys, cls = ["logits"], torch.distributions.Categorical
    else:

        class Split(nn.Module):
            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                mean, log_std = x.chunk(2, -1)
                return mean, log_std.exp()

        head = TensorDictModule(nn.Sequential(network.policy, Split()), ["obs"], ["loc", "scale"])
        keys = ["loc", "scale"]

        def independent(loc: torch.Tensor, scale: torch.Tensor) -> torch.distributions.Distribution:
            return torch.distributions.Independent(torch.distributions.Normal(loc, scale), 1)

        cls = independent
    actor = ProbabilisticTensorDictSequential(
        head,
        ProbabilisticTensorDictModule(
            in_keys=keys,
            out_keys=["action"],
            distribution_class=cls,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        ),
    )
    critic = TensorDictModule(network.value, ["obs"], ["state_value"])
    common: dict[str, Any] = {
        "entropy_bonus": options.entropy_coeff > 0,
        "entropy_coeff": options.entropy_coeff,
        "critic_coeff": options.vf_coeff,
        "loss_critic_type": "smooth_l1" if options.vf_loss == "smooth_l1" else "l2",
    }
    if kind is A2C:
        loss: Any = A2CLoss(actor, critic, **common)
    else:
        clipped = {"clip_epsilon": options.clip_param, "normalize_advantage": False}
        loss = ClipPPOLoss(actor, critic, **common, **clipped)
    loss.set_keys(advantage="advantage", value_target="value_target", sample_log_prob="logp")
    return dict(loss(td.clone()).items())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", [PPO, A2C])
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
@pytest.mark.parametrize("vf_loss", ["smooth_l1", "mse"])
def test_loss_and_gradients_agree_with_torchrl(
    kind: type[ActorCritic], seed: int, discrete: bool, vf_loss: str
) -> None:
    torch.manual_seed(seed)
    rows, options = 64, 3
    network = Network(options if discrete else 2 * options)
    obs, advantages = torch.randn(rows, 5), torch.randn(rows, 1)
    returns = 2 * torch.randn(rows, 1)
    actions = torch.randint(options, (rows, 1)) if discrete else torch.randn(rows, options)
    # TorchRL's "l2" is the squared error; ours is half of it.
    scale = 1.0 if vf_loss == "smooth_l1" else 2.0
    config = Hyperparameters(
        entropy_coeff=0.03, vf_coeff=0.7, clip_param=0.15, vf_loss=vf_loss, vf_clip_param=None
    )

    def distribution(outputs: torch.Tensor) -> Distribution:
        if discrete:
            return Categorical({"logits": outputs.unsqueeze(1)}, None)
        mean, log_std = outputs.chunk(2, -1)
        return Normal({"mean": mean, "log_std": log_std}, None)

    with torch.no_grad():
        logp = distribution(network.policy(obs)).logp(actions) + 0.3 * torch.randn(rows, 1)
    minibatch = Minibatch(
        obs=(obs,),
        states=(),
        first=torch.zeros(rows, 1, 1, dtype=torch.bool),
        actions=actions,
        logp=logp,
        values=torch.zeros(rows, 1),
        advantages=advantages,
        returns=returns,
        weight=torch.full((rows, 1), 1 / rows),
    )
    objective = kind(config, entropy_coeff=torch.tensor(config.entropy_coeff))
    losses = objective(minibatch, distribution(network.policy(obs)), network.value(obs))
    ours = torch.autograd.grad(
        losses["total"] + (scale - 1) * config.vf_coeff * losses["vf"], list(network.parameters())
    )

    td = TensorDict(
        {
            "obs": obs,
            "action": actions.squeeze(-1) if discrete else actions,
            "logp": logp.squeeze(-1),
            "advantage": advantages,
            "value_target": returns,
        },
        batch_size=[rows],
    )
    oracle = torchrl_loss(kind, network, discrete, td, config)
    total = oracle["loss_objective"] + oracle["loss_critic"] + oracle["loss_entropy"]
    theirs = torch.autograd.grad(total, list(network.parameters()), allow_unused=True)

    assert losses["policy"].item() == pytest.approx(-oracle["loss_objective"].item(), abs=1e-9)
    assert losses["entropy"].item() == pytest.approx(oracle["entropy"].item(), abs=1e-9)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-9)


# ---- entropy ----------------------------------------------------------------------------------


class Unknown(torch.distributions.Normal):
    """A distribution whose entropy has no closed form."""

    def entropy(self) -> torch.Tensor:
        raise NotImplementedError


class NoEntropy(TorchDistributionWrapper):
    def __init__(self, features: Any, model: Any) -> None:
        super().__init__(features, model)
        self.dist = Unknown(features["mean"], features["log_std"].exp())


@pytest.mark.parametrize("activation_fn", ["relu", "hard_swish"], ids=["native", "general"])
@pytest.mark.parametrize("env_cls", [DiscreteDummyEnv, ContinuousDummyEnv])
@pytest.mark.parametrize("coeff", [0.0, 0.01])
def test_entropy_is_measured_whatever_its_weight(
    activation_fn: str, env_cls: Any, coeff: float
) -> None:
    """One minibatch, so the policy's entropy is that of the distributions that collected."""
    config = {**SMALL, "entropy_coeff": coeff, "model_config": {"activation_fn": activation_fn}}
    algorithm = AlgorithmConfig(**config).build(env_cls)
    algorithm.collect()
    assert (algorithm.general_way is None) is (activation_fn == "relu")
    with torch.no_grad():
        minibatch = algorithm.policy.sequences(algorithm.rollout).select(None)
        expected = algorithm.policy.evaluate(minibatch)[0].entropy().mean()
    stats = algorithm.step()
    assert expected > 0.1
    assert stats["losses/entropy"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.usefixtures("general")
def test_an_entropy_without_weight_is_the_mean_over_every_eighth_optimizer_step() -> None:
    means = {}
    for coeff in (0.0, 1e-30):  # a weight that changes nothing is measured in every step
        config = {**SMALL, "num_sgd_iters": 5, "sgd_minibatch_size": 16, "entropy_coeff": coeff}
        algorithm = AlgorithmConfig(**config, lr=0.05).build(ContinuousDummyEnv)
        found: list[float] = []
        add_gradients = algorithm._add_gradients

        def spy(minibatch: Minibatch) -> Any:
            terms = add_gradients(minibatch)  # noqa: B023
            found.extend([float(terms["entropy"])] if "entropy" in terms else [])  # noqa: B023
            return terms

        algorithm._add_gradients = spy  # type: ignore[method-assign]
        algorithm.collect()
        means[coeff] = (algorithm.step()["losses/entropy"], found)
    (mean, some), (mean_of_all, every) = means.values()
    assert (len(some), len(every)) == (3, 20)  # steps 0, 8 and 16 of 20
    torch.testing.assert_close(some, every[::8])
    assert mean == pytest.approx(sum(some) / 3)
    assert mean_of_all == pytest.approx(sum(every) / 20)


def test_an_unknown_entropy_without_weight_is_left_out() -> None:
    algorithm = AlgorithmConfig(**SMALL, distribution_cls=NoEntropy).build(ContinuousDummyEnv)
    algorithm.collect()
    assert "losses/entropy" not in algorithm.step()
    algorithm.collect()
    (minibatch,) = algorithm.minibatches()
    assert float(algorithm.compute_loss(minibatch)[2]) == 0.0


# ---- what is returned in another form ----------------------------------------------------------


class Gain(ActorCritic):
    default_num_sgd_iters = 1
    change: Any = staticmethod(lambda x: x)

    def gain(self, logp: torch.Tensor, minibatch: Minibatch) -> torch.Tensor:
        return self.change(logp * minibatch.advantages)  # type: ignore[no-any-return]


class Terms(PPO):
    change: Any = staticmethod(lambda terms: terms)

    def __call__(self, *arguments: Any) -> Any:
        return self.change(super().__call__(*arguments))


@pytest.mark.parametrize(
    ("objective", "change", "says"),
    [
        (Gain, lambda x: x.squeeze(-1), r"must have the shape \[64, K\]; got \[64\]"),
        (Gain, lambda x: x.mean(), r"must have the shape \[64, K\]; got \[\]"),
        (Gain, lambda x: x[:-1], r"must have the shape \[64, K\]; got \[63, 1\]"),
        (Terms, lambda terms: None, "must return a dict of terms .* as 'total'; got None"),
        (Terms, lambda terms: {"policy": terms["policy"]}, r"got the keys \['policy'\]"),
        (Terms, lambda terms: {**terms, "total": 0.5}, "`total` must be a tensor of one number"),
        (Terms, lambda terms: {**terms, "kl_div": torch.ones(3)}, r"`kl_div` .* the shape \[3\]"),
    ],
)
def test_terms_of_another_shape_are_refused(objective: Any, change: Any, says: str) -> None:
    chosen = type("Own", (objective,), {"change": staticmethod(change)})
    config = {**SMALL, "objective": chosen, "sgd_minibatch_size": None}
    algorithm = AlgorithmConfig(**config).build(DiscreteDummyEnv)
    algorithm.collect()
    with pytest.raises(ConfigError, match=says):
        algorithm.step()


class Added:
    """A term of nothing; others derive theirs."""

    name: Any = "added"

    def __call__(self, minibatch: Any, distribution: Any, values: Any) -> Any:
        return values.sum() * 0


def anonymous(minibatch: Any, distribution: Any, values: Any) -> Any:
    return values.sum() * 0


def added(name: Any) -> Added:
    return type("Other", (Added,), {"name": name})()


def of_one(minibatch: Any) -> Any: ...


of_one.name = "one"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("add_on", "says"),
    [
        (anonymous, r"anonymous.*needs a name.*got no `name`. Set an attribute"),
        (lambda minibatch, distribution, values: None, "<lambda>.*needs a name"),
        (partial(anonymous), "partial.*needs a name"),
        (added(None), "needs a name.*got `name = None`"),
        (added(5), "got `name = 5`"),
        (added(""), "got `name = ''`"),
        (added("total"), "other than 'total'"),
        (added("symmetry"), "other than 'total' and 'symmetry'"),
        (added(property(lambda self: 5)), "got `name = 5`"),
        (Added, r"expected objects; got the class Added. Write `Added\(\)`"),
        (of_one, r"which takes \(minibatch: Any\) -> Any. Give it three arguments"),
        (7, "expected objects that are called with .*; got 7"),
        (None, "expected objects that are called with .*; got None"),
    ],
)
def test_what_is_no_added_term_is_refused_before_anything_is_made(add_on: Any, says: str) -> None:
    made: list[Any] = []

    def factory(*sizes: Any, device: Any) -> Any:
        made.append(sizes)
        return DiscreteDummyEnv(*sizes, device=device)

    with pytest.raises(ConfigError, match=rf"`policy_loss_addons`.*{says}"):
        AlgorithmConfig(**SMALL, policy_loss_addons=[Added(), add_on]).build(factory)
    assert not made


def test_terms_of_a_loss_have_names_of_their_own() -> None:
    two = [Added(), Added()]
    with pytest.raises(ConfigError, match="must have different names; got added, added"):
        AlgorithmConfig(**SMALL, policy_loss_addons=two).build(DiscreteDummyEnv)


@pytest.mark.parametrize("name", ["policy", "vf", "entropy", "rnd"])
def test_a_term_does_not_replace_another_one(name: str) -> None:
    """The statistics showed it alone."""
    terms = {"policy_loss_addons": [added(name)], "bonuses": [{"rnd": {}}]}
    algorithm = AlgorithmConfig(**SMALL, **terms).build(DiscreteDummyEnv)
    algorithm.collect()
    with pytest.raises(ConfigError, match=f"the loss has a term `{name}` already.*another `name`"):
        algorithm.step()


def test_an_added_term_of_many_numbers_is_refused() -> None:
    class Many:
        name = "many"

        def __call__(self, minibatch: Any, distribution: Any, values: Any) -> Any:
            return values.sum(-1)

    algorithm = AlgorithmConfig(**SMALL, policy_loss_addons=[Many()]).build(DiscreteDummyEnv)
    algorithm.collect()
    with pytest.raises(ConfigError, match="`many` of `policy_loss_addons`"):
        algorithm.step()
