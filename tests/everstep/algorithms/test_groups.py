"""Several policies in one environment train as each would alone in its rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded

from everstep import Trainer
from everstep.algorithms import (
    AlgorithmConfig,
    GroupedAlgorithm,
    RecurrentAlgorithmConfig,
)
from everstep.bonuses import RandomNetworkDistillation
from everstep.env import Env
from everstep.env.agents import AgentSpec, AllAgents, widened
from everstep.env.formats import EnvFormat
from everstep.errors import CheckpointError, ConfigError, DivergedError, EverstepError
from everstep.evaluation import evaluate
from everstep.policies import GroupedPolicy, Policy, load_policy
from everstep.symmetry import Symmetry

AGENTS = ["red_0", "red_1", "blue_0"]


class Rows(Env):
    """Walks whose noise and ends depend on the row's number alone.

    Args:
        numbers: Number of each row.
        agents: Names of the agents of one environment, of which there is a row each.

    """

    episode_keys = frozenset({"terminated", "truncated", "first", "final_obs"})

    def __init__(self, numbers: list[int], agents: list[str]) -> None:
        super().__init__(len(numbers), 16)
        self.numbers, self.agents, self.rows_per_env = numbers, agents, len(agents)
        self.observation_spec = Unbounded(3)
        self.action_spec = Categorical(4, shape=torch.Size([1]))
        self.generators = [torch.Generator().manual_seed(x) for x in numbers]
        self.calls = 0
        self.x, self.t = torch.zeros(len(numbers), 3), torch.zeros(len(numbers), 1).long()

    def _noise(self) -> torch.Tensor:
        return torch.stack([torch.randn(3, generator=x) for x in self.generators])

    def reset(self, *, config: Any = None) -> torch.Tensor:
        self.calls += 1
        self.t = torch.tensor(self.numbers).unsqueeze(-1) % 5
        self.x = self._noise()
        return self.x

    def step(self, action: torch.Tensor) -> TensorDict:
        self.calls += 1
        self.t = self.t + 1
        self.x = 0.9 * self.x + 0.3 * self._noise() + 0.1 * (action - 1.5)
        truncated, terminated = self.t >= 7, self.x[:, :1] > 2.0
        done = truncated | terminated
        rewards = -self.x.abs().sum(-1, keepdim=True)
        final, self.x = self.x, torch.where(done, self._noise(), self.x)
        self.t = torch.where(done, 0, self.t)
        flags = {"terminated": terminated, "truncated": truncated & ~terminated, "first": done}
        row = {"obs": self.x, "rewards": rewards, "final_obs": final, **flags}
        return TensorDict(row, batch_size=[self.num_envs])

    def state_dict(self) -> dict[str, Any]:
        states = [x.get_state() for x in self.generators]
        return {"x": self.x, "t": self.t, "noise": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.x, self.t = state["x"], state["t"]
        for x, noise in zip(self.generators, state["noise"], strict=True):
            x.set_state(noise)


class Wide(Rows):
    """The same, but its rows have room for two observations and two options more than agents have.

    Args:
        numbers: See `Rows`.
        agents: See `Rows`.
        pushes: Whether actions are four numbers, not a choice of four.

    """

    def __init__(self, numbers: list[int], agents: list[str], *, pushes: bool = False) -> None:
        super().__init__(numbers, agents)
        self.pushes, own = pushes, self.observation_spec
        one = torch.Size([1])
        self.observation_spec = Unbounded(5)
        self.action_spec = Unbounded(6) if pushes else Categorical(6, shape=one)
        action: Any = Unbounded(4) if pushes else Categorical(4, shape=one)
        form = EnvFormat.of(own, action)
        self.env_format = EnvFormat.of(self.observation_spec, self.action_spec)
        self.agent_specs = {x: AgentSpec(own, action, form) for x in agents}

    def reset(self, *, config: Any = None) -> torch.Tensor:
        return widened(super().reset(config=config), 5)

    def step(self, action: torch.Tensor) -> TensorDict:
        if self.pushes:
            assert not action[:, 4:].any()
            action = action[:, :4].sum(-1, keepdim=True)
        row = super().step(action)
        for key in ("obs", "final_obs"):
            row[key] = widened(row[key], 5)
        return row


class Pushed(Rows):
    """Actions are four numbers."""

    def __init__(self, numbers: list[int], agents: list[str]) -> None:
        super().__init__(numbers, agents)
        self.action_spec = Unbounded(4)

    def step(self, action: torch.Tensor) -> TensorDict:
        return super().step(action.sum(-1, keepdim=True))


COUNT = 8  # environments


def everybody() -> Rows:
    return Rows([*range(COUNT * 3)], AGENTS)


def rows_of(agents: list[str]) -> Rows:
    columns = [AGENTS.index(x) for x in agents]
    return Rows([3 * i + column for i in range(COUNT) for column in columns], agents)


def weights(algorithm: Any) -> dict[str, torch.Tensor]:
    parts = {**algorithm.policy.model.state_dict()}
    parts |= {f"n.{k}": x for k, x in algorithm.policy.normalizer.state_dict().items()}
    parts |= {f"r.{k}": x for k, x in algorithm.discounted_returns.state_dict().items()}
    return parts


def assert_equal(one: Any, other: Any) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, x in first.items():
        assert torch.equal(x, second[name]), name


SMALL: dict[str, Any] = {"horizon": 16, "seed": 7, "num_sgd_iters": 2}
CONFIGS: dict[str, Any] = {
    "feedforward": AlgorithmConfig(**SMALL, normalize_values=True),
    "recurrent": RecurrentAlgorithmConfig(**SMALL, seq_len=4),
    "autograd": AlgorithmConfig(**SMALL, enable_amp=True, target_kl_div=0.02),
}

ENDS = {"ends": ["red_0", "blue_0"], "middle": ["red_1"]}
CASES: list[Any] = [
    *(("feedforward", policies) for policies in ("agent", "group", {"all": AGENTS}, ENDS)),
    ("recurrent", "group"),
    ("autograd", ENDS),
]


@pytest.mark.parametrize(("kind", "policies"), CASES, ids=str)
def test_policies_train_together_as_each_does_alone(kind: str, policies: Any) -> None:
    config = CONFIGS[kind]
    together: Any = replace(config, policies=policies).build(everybody())
    assert isinstance(together, GroupedAlgorithm)
    found = [{**together.collect(), **together.step()} for _ in range(3)]
    for name, agents in together.policy.groups.items():
        alone = replace(config, seed=together.members[name].config.seed).build(rows_of(agents))
        for stats in found:
            own = {**alone.collect(), **alone.step()}
            for key, value in own.items():
                if not key.startswith(("profiling/", "memory/")):
                    assert stats[f"{name}/{key}"] == value, key
        assert_equal(together.members[name], alone)


@pytest.mark.parametrize("pushes", [False, True])
@pytest.mark.parametrize("kind", ["feedforward", "recurrent"])
def test_rows_that_are_wider_than_agents_train_as_those_that_are_not(
    kind: str, pushes: bool, tmp_path: Path
) -> None:
    config, numbers = replace(CONFIGS[kind], policies=ENDS), [*range(COUNT * 3)]
    plain_cls: Any = Pushed if pushes else Rows
    plain: Any = config.build(plain_cls(numbers, AGENTS))
    wide: Any = config.build(Wide(numbers, AGENTS, pushes=pushes))
    for _ in range(2):
        expected, found = ({**x.collect(), **x.step()} for x in (plain, wide))
        for key, value in expected.items():
            assert found[key] == value or key.startswith(("profiling/", "memory/")), key
    for name in plain.members:
        assert_equal(plain.members[name], wide.members[name])
    wide.policy.save(tmp_path / "x.everstep")
    again = GroupedPolicy.load(tmp_path / "x.everstep")
    obs = torch.randn(6, 3)
    own, _ = plain.policy.predict(obs)
    for policy in (wide.policy, again):
        for rows in (widened(obs, 5), widened(obs, 5).numpy()):
            actions, _ = policy.predict(rows)
            torch.testing.assert_close(torch.as_tensor(actions)[..., :4], own[..., :4])
        scores = [
            evaluate(x, env(numbers, AGENTS), episodes=24)
            for x, env in (
                (plain.policy, plain_cls),
                (policy, lambda *each: Wide(*each, pushes=pushes)),
            )
        ]
        assert scores[0] == scores[1]


def test_agents_that_differ_have_policies_of_their_own() -> None:
    env = Wide([*range(COUNT * 3)], AGENTS)
    with pytest.raises(ConfigError, match="rows are wider than what the agents observe"):
        CONFIGS["feedforward"].build(env)
    action = Categorical(3, shape=torch.Size([1]))
    other = AgentSpec(Unbounded(2), action, EnvFormat.of(Unbounded(2), action))
    env.agent_specs["blue_0"] = other
    with pytest.raises(ConfigError, match="`policies`: agents have different spaces"):
        CONFIGS["feedforward"].build(env)
    with pytest.raises(ConfigError, match=r"those of red_0 and blue_0, of the policy ends, are "):
        replace(CONFIGS["feedforward"], policies=ENDS).build(env)
    together: Any = replace(CONFIGS["feedforward"], policies="group").build(env)
    together.collect()
    together.step()
    shapes = {name: x.policy.observation_spec.shape for name, x in together.members.items()}
    assert shapes == {"red": torch.Size([3]), "blue": torch.Size([2])}
    assert int(together.members["blue"].rollout.actions[0].max()) == 2


def test_the_first_policy_has_the_seed_of_the_training_and_others_have_others() -> None:
    together: Any = replace(CONFIGS["feedforward"], policies="agent").build(everybody())
    seeds = [x.config.seed for x in together.members.values()]
    assert seeds[0] == 7
    assert len({*seeds}) == 3
    first, second = (weights(x)["policy.0.weight"] for x in [*together.members.values()][:2])
    assert not torch.equal(first, second)


def test_one_environment_is_stepped_once_for_all() -> None:
    env = everybody()
    together: Any = replace(CONFIGS["feedforward"], policies="agent").build(env)
    together.collect()
    assert env.calls == 1 + 16


def test_statistics_are_of_all_rows_and_of_each_policy() -> None:
    together: Any = replace(CONFIGS["feedforward"], policies="group").build(everybody())
    found = {**together.collect(), **together.step()}
    assert found["env/steps"] == 24 * 16
    assert (found["red/env/steps"], found["blue/env/steps"]) == (16 * 16, 8 * 16)
    counts = [found[f"{x}/episodes/count"] for x in ("red", "blue")]
    means = [found[f"{x}/episodes/return_mean"] for x in ("red", "blue")]
    expected = sum(n * x for n, x in zip(counts, means, strict=True)) / sum(counts)
    assert found["episodes/return_mean"] == pytest.approx(expected)
    assert found["losses/vf"] == pytest.approx(
        (found["red/losses/vf"] + found["blue/losses/vf"]) / 2
    )
    assert together.state.env_steps == 24 * 16


def test_schedules_are_over_the_env_steps_of_all() -> None:
    config = replace(CONFIGS["feedforward"], policies="agent", lr=1.0e-3, lr_schedule="linear")
    together: Any = config.build(everybody())
    together.anneal(4 * 24 * 16)
    together.collect()
    together.step()
    for member in together.members.values():
        assert member.optimizer.param_groups[0]["lr"] == pytest.approx(0.75e-3)


@pytest.mark.parametrize("kind", ["feedforward", "recurrent"])
def test_a_checkpoint_continues_bit_for_bit(kind: str) -> None:
    config = replace(CONFIGS[kind], policies="group")
    whole: Any = config.build(everybody())
    first: Any = config.build(everybody())
    for _ in range(4):
        whole.collect(), whole.step()
    for _ in range(2):
        first.collect(), first.step()
    torch.manual_seed(99)
    second: Any = config.build(everybody())
    second.collect(), second.step()
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        second.collect(), second.step()
    for name in whole.members:
        assert_equal(whole.members[name], second.members[name])


def test_checkpoints_of_other_policies_are_refused_and_nothing_changes() -> None:
    config = CONFIGS["feedforward"]
    one: Any = replace(config, policies="group").build(everybody())
    other: Any = replace(config, policies="agent").build(everybody())
    shared = config.build(everybody())
    for algorithm in (one, other, shared):
        algorithm.collect(), algorithm.step()
    before = {name: weights(x) for name, x in one.members.items()}
    for state in (other.state_dict(), shared.state_dict()):
        with pytest.raises(CheckpointError, match="Set `policies` as it was"):
            one.load_state_dict(state)
    with pytest.raises(CheckpointError):
        shared.load_state_dict(one.state_dict())
    for name, member in one.members.items():
        assert all(torch.equal(x, weights(member)[k]) for k, x in before[name].items())


def test_an_evaluation_changes_nothing() -> None:
    config = replace(CONFIGS["feedforward"], policies="group", horizons_per_env_reset=1)
    one, other = (config.build(everybody()) for _ in range(2))
    for algorithm in (one, other):
        algorithm.collect(), algorithm.step()
    numbers = {name: x.episodes.state_dict()["finished"].clone() for name, x in one.members.items()}
    with one.evaluating():
        assert one.collect(deterministic=True)["episodes/count"] > 0
    for name, member in one.members.items():
        assert torch.equal(member.episodes.state_dict()["finished"], numbers[name])
        assert_equal(member, other.members[name])


class Endless(Rows):
    """Walks without ends, which show the env steps since a reset. One agent's may end."""

    ends_at = 0

    def step(self, action: torch.Tensor) -> TensorDict:
        super().step(action)
        self.t = self.t + 1
        ended = torch.zeros(self.num_envs, 1, dtype=torch.bool)
        if self.calls == self.ends_at:
            ended[-1] = True
        row = {"obs": self.x, "rewards": self.x[:, :1], "final_obs": self.x, "first": ended}
        flags = {"terminated": ended, "truncated": torch.zeros_like(ended)}
        return TensorDict(row | flags, batch_size=[self.num_envs])


@pytest.mark.parametrize(
    ("ends_at", "expected"), [(0, [0, 1, 2, 4, 5, 6, 8]), (60, [0, 1, 2]), (20, [0, 1])]
)
def test_all_begin_again_together_while_nobody_has_ended(ends_at: int, expected: list[int]) -> None:
    env = Endless([*range(COUNT * 3)], AGENTS)
    env.ends_at = ends_at
    algorithm = replace(CONFIGS["feedforward"], policies="group").build(env)
    found = []
    for rollout in range(10):
        stats = algorithm.collect()
        found += [rollout] * bool(stats["env/resets"])
        algorithm.step()
    assert found == expected


class Fails(Rows):
    """It fails in its 30th call."""

    def step(self, action: torch.Tensor) -> TensorDict:
        row = super().step(action)
        if self.calls == 30:
            raise RuntimeError("broken")
        if self.calls == 40:
            row["rewards"][2] = float("nan")  # of the last policy
        return row


def test_a_rollout_that_fails_changes_no_policy_and_the_next_one_begins_anew() -> None:
    env = Fails([*range(COUNT * 3)], AGENTS)
    together: Any = replace(CONFIGS["feedforward"], policies="agent").build(env)
    together.collect(), together.step()
    numbers = {n: x.episodes.state_dict()["finished"].clone() for n, x in together.members.items()}
    for error in (RuntimeError, EverstepError):
        with pytest.raises(error):
            together.collect()
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
        assert not together.continues
        assert {x.state.horizons for x in together.members.values()} == {1}
        for name, member in together.members.items():
            assert torch.equal(member.episodes.state_dict()["finished"], numbers[name])
    assert together.collect()["env/resets"] == 24


def test_an_update_that_diverges_names_the_policy() -> None:
    together: Any = replace(CONFIGS["feedforward"], policies="agent").build(everybody())
    together.collect()
    together.members["blue_0"].rollout.values[0, 0] = float("nan")
    with pytest.raises(DivergedError, match="Policy blue_0: No minibatch"):
        together.step()


def test_hyperparameters_change_for_all_or_for_none() -> None:
    together: Any = replace(CONFIGS["feedforward"], policies="group").build(everybody())
    together.update_algorithm_parameter("clip_param", 0.1)
    assert {x.config.clip_param for x in together.members.values()} == {0.1}
    assert together.config.clip_param == together.hparams.clip_param == 0.1
    with pytest.raises(ConfigError, match="sgd_minibatch_size"):
        together.update_algorithm_parameter("sgd_minibatch_size", 256)  # blue has 128 rows
    assert {x.config.sgd_minibatch_size for x in together.members.values()} == {64}
    assert {x.minibatch_size for x in together.members.values()} == {64}


REFUSED: dict[str, Any] = {
    "bonuses": [RandomNetworkDistillation()],
    "symmetry": Symmetry(observation=[-1, 1, 1], action=[1, 0, 2, 3]),
    "model": torch.nn.Linear(3, 4),
    "objective": {"distillation": {"teacher": "nobody"}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_for_one_policy_is_refused(name: str) -> None:
    config = replace(CONFIGS["feedforward"], policies="agent", **{name: REFUSED[name]})
    with pytest.raises(ConfigError, match=r"policies.*one policy for all"):
        config.build(everybody())


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"a": ["red_0"]}, "each agent once"),
        ({"a": ["red_0", "red_1", "blue_0", "blue_0"]}, "each agent once"),
        ({"a": AGENTS, "b": []}, "each agent once"),
        ({"a": [*AGENTS[:2], "green_0"]}, "red_0, red_1, blue_0"),
        ({"a.b": AGENTS}, "letters"),
        ({"eval": AGENTS}, "letters"),
        ("each", "policies"),
    ],
)
def test_wrong_groups_are_refused(policies: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONFIGS["feedforward"], policies=policies).build(everybody())


def test_environments_of_one_row_are_refused() -> None:
    env = Rows([0, 1], ["only"])
    env.agents = []
    with pytest.raises(ConfigError, match="rows_per_env"):
        replace(CONFIGS["feedforward"], policies="agent").build(env)


def test_agents_without_names_have_numbers() -> None:
    env = everybody()
    del env.agents
    together: Any = replace(CONFIGS["feedforward"], policies="agent").build(env)
    assert [*together.members] == ["agent_0", "agent_1", "agent_2"]


def test_an_algorithm_of_one_policy_says_what_makes_several() -> None:
    from everstep import Algorithm

    with pytest.raises(ConfigError, match=r"config\.build"):
        Algorithm(everybody(), AlgorithmConfig(policies="agent"))


def test_operations_of_one_policy_name_the_members() -> None:
    together: Any = replace(CONFIGS["feedforward"], policies="agent").build(everybody())
    with pytest.raises(AttributeError, match=r"algorithm\.members\['red_0'\]\.get_weights"):
        together.get_weights()
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        together.nonsense()


# ---- the policy ---------------------------------------------------------------------------------


def trained(kind: str = "feedforward") -> Any:
    together: Any = replace(CONFIGS[kind], policies="group").build(everybody())
    together.collect(), together.step()
    return together.policy


@pytest.mark.parametrize("kind", ["feedforward", "recurrent"])
def test_rows_are_acted_on_by_the_policies_of_their_agents(kind: str) -> None:
    policy, obs = trained(kind), torch.randn(12, 3)
    actions, state = policy.predict(obs)
    again, _ = policy.predict(obs, state)
    for i, agent in enumerate(AGENTS):
        own, own_state = policy.of(agent).predict(obs[i::3])
        assert torch.equal(actions[i::3], own)
        assert torch.equal(again[i::3], policy.of(agent).predict(obs[i::3], own_state)[0])
    states = () if state is None else tuple(state)
    sample = policy.act((obs,), policy.memory.flatten(policy.init_states(12)), deterministic=True)
    assert torch.equal(sample.actions[0].flatten(), actions.flatten())
    assert len(sample.states) == len(states)


@pytest.mark.parametrize("kind", ["feedforward", "recurrent"])
def test_mappings_of_agents_are_those_of_their_policies(kind: str) -> None:
    policy = trained(kind)
    obs = {agent: torch.randn(3).numpy() for agent in ("blue_0", "red_1")}
    actions, state = policy.predict(obs)
    assert list(actions) == list(obs)
    later, _ = policy.predict(obs, state)
    for agent, own in obs.items():
        first, before = policy.of(agent).predict(own)
        assert actions[agent] == first
        assert later[agent] == policy.of(agent).predict(own, before)[0]
    assert policy.of("red") is policy.of("red_0") is policy.of("red_1")


def test_observations_that_name_no_agent_are_refused() -> None:
    policy = trained()
    with pytest.raises(ValueError, match=r"policy\.of\('red_0'\)"):
        policy.predict(torch.zeros(3))
    with pytest.raises(ValueError, match="rows of all agents"):
        policy.predict(torch.zeros(4, 3))
    with pytest.raises(KeyError, match="policies are red, blue, and agents red_0"):
        policy.of("green")


@pytest.mark.parametrize("kind", ["feedforward", "recurrent"])
def test_a_file_has_all_policies(kind: str, tmp_path: Path) -> None:
    policy, obs = trained(kind), torch.randn(6, 3)
    policy.save(tmp_path / "several")
    for loaded in (load_policy(tmp_path / "several"), GroupedPolicy.load(tmp_path / "several")):
        assert isinstance(loaded, GroupedPolicy)
        assert loaded.groups == policy.groups
        assert torch.equal(loaded.predict(obs)[0], policy.predict(obs)[0])
    policy.of("blue").save(tmp_path / "one")
    assert torch.equal(
        load_policy(tmp_path / "one").predict(obs)[0], policy.of("blue").predict(obs)[0]
    )
    with pytest.raises(CheckpointError, match="GroupedPolicy"):
        Policy.load(tmp_path / "several")


def test_programs_are_of_one_policy(tmp_path: Path) -> None:
    for call in (lambda p: p.export(tmp_path / "x"), lambda p: p.as_tensordict_module()):
        with pytest.raises(EverstepError, match=r"policy\.of\('red'\)"):
            call(trained())


def test_evaluations_are_in_environments_of_the_same_agents() -> None:
    policy = trained()
    assert evaluate(policy, everybody(), episodes=24)["episodes/count"] == 24
    with pytest.raises(ConfigError, match=r"policy\.of"):
        evaluate(policy, Rows([0, 1, 2, 3], AGENTS[:2]), episodes=4)
    one = evaluate(policy.of("blue"), rows_of(["blue_0"]), episodes=8)
    assert one["episodes/count"] == 8


# ---- trainers -----------------------------------------------------------------------------------


def test_a_run_is_recorded_continued_and_evaluated(tmp_path: Path) -> None:
    options: dict[str, Any] = {"policies": "group", "horizon": 16, "seed": 3, "track": False}
    options |= {"progress": False, "eval_env": everybody(), "eval_episodes": 24}
    whole = Trainer(everybody(), run_dir=tmp_path / "whole", **options)
    whole.run(total_env_steps=4 * 24 * 16)
    whole.close()
    with Trainer(everybody(), run_dir=tmp_path / "run", **options) as trainer:
        trainer.run(total_env_steps=2 * 24 * 16)
    options["eval_env"] = everybody()
    with Trainer(everybody(), run_dir=tmp_path / "run", resume=True, **options) as trainer:
        stats: Any = trainer.run(total_env_steps=4 * 24 * 16)
        assert stats["env/steps"] == 4 * 24 * 16
        assert "red/losses/vf" in stats
        assert trainer.eval()["eval/episodes/count"] == 24
        loaded = load_policy(tmp_path / "run")
        obs = torch.randn(6, 3)
        assert torch.equal(loaded.predict(obs)[0], trainer.algorithm.policy.predict(obs)[0])
    assert "policies: group" in (tmp_path / "run" / "config.yaml").read_text()


# ---- what all agents observe --------------------------------------------------------------------


def test_all_agents_observe_the_concatenation() -> None:
    env = everybody()
    form = EnvFormat.of(env.observation_spec, env.action_spec)
    extend = AllAgents(env.observation_spec, form, 3)
    obs, final = torch.arange(18.0).view(6, 3), 100 + torch.arange(18.0).view(6, 3)
    flags = {key: torch.zeros(6, 1, dtype=torch.bool) for key in ("terminated", "truncated")}
    flags["truncated"][1] = True  # the environment goes on without it
    valid, first = torch.ones(6, 1, dtype=torch.bool), torch.zeros(6, 1, dtype=torch.bool)
    valid[2] = False  # ended before
    valid[5], first[5] = False, True  # joins
    row = TensorDict(
        {"obs": obs, "final_obs": final, "valid": valid, "first": first, **flags}, batch_size=[6]
    )
    extend.extend(row)
    zeros = torch.zeros(3)
    there = torch.cat([obs[0], obs[1], zeros])
    assert torch.equal(row["obs", "all_agents"][:3], there.expand(3, 9))
    assert torch.equal(row["obs", "all_agents"][3:], obs[3:].flatten().expand(3, 9))
    assert torch.equal(row["obs", "observation"], obs)
    last = torch.cat([obs[0], final[1], zeros])
    assert torch.equal(row["final_obs", "all_agents"][:3], last.expand(3, 9))
    assert torch.equal(
        row["final_obs", "all_agents"][3:], torch.cat([obs[3], obs[4], zeros]).expand(3, 9)
    )
    assert torch.equal(row["final_obs", "observation"], final)


def test_policies_do_not_see_what_all_agents_observe() -> None:
    spec = Composite({"observation": Unbounded(3), "all_agents": Unbounded(9)})
    action = Categorical(4, shape=torch.Size([1]))
    policy, own = Policy(spec, action), torch.randn(5, 3)
    one, other = (policy.act((own, torch.randn(5, 9)), (), deterministic=True) for _ in range(2))
    assert not torch.equal(one.values, other.values)
    assert torch.equal(one.actions[0], other.actions[0])
    everything = TensorDict({"observation": own, "all_agents": torch.zeros(5, 9)}, [5])
    for obs in (own, {"observation": own}, everything):
        assert torch.equal(policy.predict(obs)[0].flatten(), one.actions[0].flatten())
    sees = Policy(spec, action, model_config={"actor_obs": ["all_agents"]})
    with pytest.raises(ValueError, match="all_agents"):
        sees.predict({"observation": own})
