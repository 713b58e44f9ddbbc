"""Distillation: losses by independent formulas, labels of rollouts, refusals, files, learning."""

from pathlib import Path
from typing import Any

import pytest
import torch
from examples.distillation import point
from tensordict import TensorDict
from torch import distributions as td
from torchrl.data import Bounded, Categorical, Composite, MultiCategorical, Unbounded

from everstep import (
    AlgorithmConfig,
    RecurrentAlgorithmConfig,
    RecurrentTrainer,
    TrainConfig,
    Trainer,
)
from everstep.algorithms.recording import optimizer_steps
from everstep.distillation import Distillation
from everstep.distributions import Bernoulli, Normal, SquashedNormal
from everstep.distributions import Categorical as Choices
from everstep.errors import ConfigError
from everstep.symmetry import Symmetry
from tests.everstep.test_symmetry import SMALL, SWAP, legs

SPEC = Composite(seen=Unbounded(3), hidden=Unbounded(2))


def policy_of(config_cls: Any = AlgorithmConfig, seed: int = 7, **spec: Any) -> Any:
    """A policy whose outputs depend on its observations."""
    options = spec.pop("options", {})
    source = legs(**{"observation": SPEC, **spec})
    policy = config_cls(**{**SMALL, "seed": seed}, **options).build(source).policy
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.5 * torch.randn_like(p))
    return policy


def minibatch_of(algorithm: Any) -> Any:
    algorithm.collect()
    algorithm.estimate()
    (chunk,) = next(iter(optimizer_steps(algorithm.parts, 1, None)))
    return chunk


# ---- divergences -----------------------------------------------------------------------------


def test_divergences_are_those_of_torch() -> None:
    p, q = (
        Normal({"mean": torch.randn(5, 3), "log_std": 0.3 * torch.randn(5, 3)}, None)
        for _ in range(2)
    )
    expected = td.kl_divergence(p.dist, q.dist).sum(-1, keepdim=True)
    torch.testing.assert_close(p.kl_divergence(q), expected)
    a, b = (Choices({"logits": torch.randn(5, 2, 4)}, None) for _ in range(2))
    expected = td.kl_divergence(a.dist, b.dist).sum(-1, keepdim=True)
    torch.testing.assert_close(a.kl_divergence(b), expected)
    c, d = (Bernoulli({"logits": torch.randn(5, 4)}, None) for _ in range(2))
    pairs = (td.Bernoulli(logits=x.logits) for x in (c, d))
    torch.testing.assert_close(c.kl_divergence(d), td.kl_divergence(*pairs).sum(-1, keepdim=True))


def test_options_that_both_exclude_do_not_count() -> None:
    mask = torch.tensor([[True, True, False]])
    logits = torch.tensor([[0.2, 0.1, 5.0]]), torch.tensor([[-0.3, 0.4, -5.0]])
    a, b = (Choices({"logits": x, "action_mask": mask}, None) for x in logits)
    expected = td.kl_divergence(*(td.Categorical(logits=x[:, :2]) for x in logits))
    torch.testing.assert_close(a.kl_divergence(b)[:, 0], expected)


# ---- the loss --------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["kl", "mse"])
def test_the_loss_is_that_of_plain_torch(loss: str) -> None:
    teacher = policy_of()
    options = {"vf_loss": "mse", "vf_clip_param": None, "vf_coeff": 0.5, "entropy_coeff": 0.01}
    student = {"model_config": {"actor_obs": ["seen"]}}
    objective = Distillation(teacher, loss=loss)
    algorithm = AlgorithmConfig(**SMALL, **options, **student, objective=objective).build(
        legs(observation=SPEC)
    )
    batch = minibatch_of(algorithm)
    obs = tuple(x.squeeze(1) for x in batch.obs)
    with torch.no_grad():
        theirs, _ = teacher._forward(obs, ())
    ours, values = algorithm.policy._forward(obs, ())  # type: ignore[arg-type]
    p, q = (td.Normal(x["mean"], x["log_std"].exp()) for x in (theirs, ours))
    if loss == "kl":
        rows = td.kl_divergence(p, q).sum(-1, keepdim=True)
    else:
        rows = (p.mean - q.mean).square().mean(-1, keepdim=True)
    rows = rows + 0.5 * 0.5 * (values - batch.returns).square()
    rows = rows - 0.01 * q.entropy().sum(-1, keepdim=True)
    terms = algorithm._losses(batch)
    torch.testing.assert_close(terms["total"], (rows * batch.weight).sum(), rtol=1e-4, atol=1e-5)
    assert terms["policy"] < -0.01
    assert algorithm.general_way == "Distilling is an objective of its own"


@pytest.mark.parametrize(
    "action", [Categorical(3, shape=(1,)), MultiCategorical([3, 2]), Bounded(-1.0, 1.0, shape=(3,))]
)
def test_a_student_that_is_the_teacher_has_nothing_to_learn(action: Any) -> None:
    teacher = policy_of(action=action)
    algorithm = AlgorithmConfig(**SMALL, objective=Distillation(teacher)).build(
        legs(observation=SPEC, action=action)
    )
    algorithm.set_weights(teacher.model.state_dict())
    assert abs(float(algorithm._losses(minibatch_of(algorithm))["policy"].detach())) < 1e-5


def test_it_works_with_symmetry_bonuses_and_masks() -> None:
    """A symmetric pair of labels: rows in the mirror are to be answered by the mirrored teacher."""
    teacher = policy_of()
    symmetry = Symmetry({"seen": SWAP, "hidden": [1, -1]}, SWAP, mirror_coeff=0.1)
    algorithm = AlgorithmConfig(
        **SMALL,
        objective=Distillation(teacher),
        symmetry=symmetry,
        bonuses=[{"rnd": {"pre_normalization_steps": 1}}],
    ).build(legs(observation=SPEC))
    batch = minibatch_of(algorithm)
    names = algorithm.objective.label_names  # type: ignore[attr-defined]
    own, mirrored = algorithm.mirror.minibatch(batch, names)  # type: ignore[union-attr]
    mean, deviation = (own.labels[names.index(x)] for x in ("mean", "log_std"))
    expected = torch.stack([mean[:, 1], mean[:, 0], -mean[:, 2]], -1)
    assert torch.equal(mirrored.labels[names.index("mean")], expected)
    assert torch.equal(mirrored.labels[names.index("log_std")], deviation[:, [1, 0, 2]])
    stats: dict[str, Any] = {**algorithm.step()}
    assert {"losses/rnd", "losses/symmetry"} <= stats.keys()
    spec = Composite(seen=Unbounded(3), action_mask=Categorical(2, shape=(3,), dtype=torch.bool))
    action = Categorical(3, shape=(1,))
    masked = policy_of(observation=spec, action=action)
    config = RecurrentAlgorithmConfig(**SMALL, objective=Distillation(masked))
    recurrent = config.build(legs(observation=spec, action=action))
    recurrent.collect()
    assert -1e3 < recurrent.step()["losses/policy"] < 0


# ---- labels ----------------------------------------------------------------------------------


def test_a_recurrent_teacher_remembers_the_episode_across_rollouts() -> None:
    """Its labels are its answers to each episode as a whole."""
    teacher = policy_of(RecurrentAlgorithmConfig)
    algorithm = AlgorithmConfig(**SMALL, objective=Distillation(teacher)).build(
        legs(observation=SPEC)
    )
    seen, labels = [], []
    for _ in range(2):
        algorithm.collect()
        seen.append([x[:-1].clone() for x in algorithm.rollout.obs])
        labels.append(algorithm.objective.labels[0].clone())  # type: ignore[attr-defined]
    obs = [torch.cat(x) for x in zip(*seen, strict=True)]
    for start in range(0, 15, 3):  # episodes have three env steps
        episode = {
            path[0]: x[start : start + 3].transpose(0, 1)
            for path, x in zip(algorithm.rollout.observation.paths, obs, strict=True)
        }
        out, _ = teacher.sample(TensorDict({"obs": TensorDict(episode, [4, 3])}, [4, 3]))
        expected = out["features", "mean"].unflatten(0, (4, 3)).transpose(0, 1)
        found = torch.cat(labels)[start : start + 3]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_teacher_does_not_change() -> None:
    teacher = policy_of()
    before = {k: x.clone() for k, x in teacher.model.state_dict().items()}
    algorithm = AlgorithmConfig(**SMALL, objective=Distillation(teacher)).build(
        legs(observation=SPEC)
    )
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    algorithm.update_algorithm_parameter("vf_coeff", 0.5)
    algorithm.collect()
    algorithm.step()
    assert all(torch.equal(x, before[k]) for k, x in teacher.model.state_dict().items())
    assert all(p.requires_grad for p in teacher.model.parameters())


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("teacher", "options", "spec", "message"),
    [
        ({}, {}, {"observation": Composite(seen=Unbounded(3))}, r"sees hidden .* `teacher_obs`"),
        (
            {"observation": Composite(seen=Unbounded(4))},
            *({}, {}, r"sees seen as float32 \[4\]; the environment returns float32 \[3\]"),
        ),
        (
            {"action": Bounded(-2.0, 2.0, shape=(3,))},
            *({}, {}, r"must have the environment's actions, float32 \[3\] within \[-1"),
        ),
        (
            {"options": {"distribution_cls": SquashedNormal}},
            *({}, {}, "the student's distribution of actions, Normal; got SquashedNormal"),
        ),
        ({}, {"teacher_obs": "other"}, {}, "must name a leaf .*seen, hidden; got 'other'"),
        ({}, {"teacher_obs": "seen"}, {}, "names one leaf, and the teacher sees"),
        (
            {"action": Categorical(3, shape=(1,))},
            *({"loss": "mse"}, {"action": Categorical(3, shape=(1,))}),
            "loss` mse is for normal distributions",
        ),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(
    teacher: Any, options: Any, spec: Any, message: str
) -> None:
    objective = Distillation(policy_of(**teacher), **options)
    config = AlgorithmConfig(**SMALL, objective=objective)
    with pytest.raises(ConfigError, match=message):
        config.build(legs(**{"observation": SPEC, **spec}))


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"distil": {"teacher": "x"}}, "objective.distil`: .*distillation"),
        ({"distillation": {}}, "distillation.teacher`: required, and missing"),
        ({"distillation": {"teacher": "x", "los": "kl"}}, "distillation.los`: .*loss"),
        ({"distillation": {"teacher": "x", "loss": "l1"}}, "must be kl or mse; got 'l1'"),
        ({"distillation": {"teacher": 3}}, "expected a policy, or the path .*; got 3"),
        ({"distillation": {"teacher": "no/such/run"}}, "distillation.teacher`: .*no/such/run"),
        ({"a": {}, "b": {}}, "one name with options"),
    ],
)
def test_a_description_that_is_none_is_refused(described: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AlgorithmConfig(**SMALL, objective=described).build(legs())


# ---- files and runs --------------------------------------------------------------------------


def test_a_leaf_is_named_for_a_teacher_without_a_mapping() -> None:
    teacher = policy_of(observation=Unbounded(3))
    objective = Distillation(teacher, teacher_obs="seen")
    algorithm = AlgorithmConfig(**SMALL, objective=objective).build(legs(observation=SPEC))
    algorithm.collect()
    assert algorithm.step()["losses/policy"] < 0


@pytest.mark.slow
def test_a_file_names_the_teacher_and_the_run_goes_on(tmp_path: Path) -> None:
    first = RecurrentTrainer("CartPole-v1", **SMALL, run_dir=None)
    first.algorithm.policy.save(tmp_path / "teacher.everstep")
    file = tmp_path / "train.yaml"
    file.write_text(
        "env_cls: gymnasium:CartPole-v1\nnum_envs: 4\nhorizon: 16\nseed: 0\n"
        "total_env_steps: 128\nnum_sgd_iters: 1\nlr_schedule: null\n"
        f"objective: {{distillation: {{teacher: {tmp_path / 'teacher.everstep'}}}}}\n"
    )
    whole = TrainConfig.from_file(file, ["total_env_steps=256"]).build(run_dir=None)
    whole.run()
    run = tmp_path / "run"
    TrainConfig.from_file(file).build(run_dir=run, track=False).run()
    assert "cannot repeat" not in (run / "config.yaml").read_text()
    again = Trainer.load(run, total_env_steps=256)
    objective: Any = again.algorithm.objective
    assert objective.follower.states is not None
    again.run()
    again.close()
    weights = whole.algorithm.get_weights()
    for name, x in again.algorithm.get_weights().items():
        torch.testing.assert_close(x, weights[name], rtol=0, atol=0)


def test_a_teacher_of_the_program_is_named_in_the_record(tmp_path: Path) -> None:
    teacher = Trainer("CartPole-v1", **SMALL, run_dir=None).algorithm.policy
    run = tmp_path / "run"
    objective = Distillation(teacher)
    trainer = Trainer("CartPole-v1", **SMALL, objective=objective, run_dir=run, track=False)
    trainer.step()
    trainer.close()
    assert "so this file cannot repeat: objective" in (run / "config.yaml").read_text()


# ---- learning --------------------------------------------------------------------------------


@pytest.mark.learning
def test_an_lstm_reaches_its_privileged_teacher() -> None:
    teacher = point.train_teacher(0)
    student = point.train_student(0, 60_000, **point.STUDENT, objective=Distillation(teacher))
    assert point.mean_return(student) >= 0.95 * point.mean_return(teacher)
