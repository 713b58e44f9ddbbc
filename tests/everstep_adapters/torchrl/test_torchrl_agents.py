"""TorchRL's multi-agent environments: agents as rows, and agents that are done early."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import assert_close
from torchrl.data import Binary, Bounded, Categorical, Composite, OneHot, Unbounded
from torchrl.envs import StepCounter, TransformedEnv

import everstep
from everstep import Trainer
from everstep.core.checkpoints import load_file, save_file
from everstep.errors import AdapterError, ConfigError
from everstep.testing import EnvConformance
from everstep_adapters import TorchRLEnv
from everstep_adapters.torchrl.keys import known_limit
from tests.everstep_adapters.torchrl.torchrl_toys import NEVER, Hunt, Recorder, Team

#: Two environments of three agents: how long each lives, and when the environments end.
LIVES, LENGTHS = [[2, 4, NEVER], [NEVER, 3, 3]], [5, NEVER]


def expected_rows(lives: list[list[int]], lengths: list[int], num_steps: int) -> list[Any]:
    """Each agent's (env, agent, episode, t) and flags, from counting by hand."""
    rows: list[Any] = [[] for _ in range(num_steps)]
    for own, length in zip(lives, lengths, strict=True):
        t = 0
        for row in rows:
            t += 1
            all_dead = all(life <= t for life in own)
            reset = t >= length or all_dead
            for life in own:
                valid = t <= life
                terminated = t == life
                row.append(
                    {
                        "valid": valid,
                        "terminated": terminated,
                        "truncated": valid and reset and not terminated,
                        "first": reset,
                        "rewards": float(t) if valid else 0.0,
                    }
                )
            t = 0 if reset else t
    return rows


def play(env: Any, num_steps: int) -> list[Any]:
    action = env.action_spec.zero(torch.Size([env.num_envs]))
    env.reset()
    return [env.step(action) for _ in range(num_steps)]


@pytest.mark.parametrize("lengths", [LENGTHS, [3, 3], [1, 2], [NEVER, 7]])
def test_agents_that_die_wait_for_their_environment(lengths: list[int]) -> None:
    env = TorchRLEnv(Team(LIVES, lengths))
    assert env.num_envs == 6
    assert env.episode_keys == {"terminated", "truncated", "first", "final_obs", "valid"}
    rows = play(env, 20)
    for row, expected in zip(rows, expected_rows(LIVES, lengths, 20), strict=True):
        for key in expected[0]:
            assert row[key].flatten().tolist() == [agent[key] for agent in expected], key


def test_agents_see_their_own_observation_and_what_all_share() -> None:
    env = TorchRLEnv(Team(LIVES, LENGTHS))
    assert list(env.observation_spec.keys()) == ["observation", "camera"]
    assert env.action_spec == Categorical(3, shape=torch.Size([1]))
    obs = env.reset()
    assert obs["observation"][:, :2].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    row = play(env, 3)[-1]  # the second environment's last two agents have just died
    assert row["obs"]["camera"].tolist() == [[1, 3]] * 6
    assert row["final_obs"]["observation"][4].tolist() == [1, 1, 1, 3]
    only = TorchRLEnv(Team(LIVES, LENGTHS), observation_keys=[("agents", "observation")])
    assert only.observation_spec == Unbounded(4)
    assert "2 environments of 3 `agents`" in only.describe()["num_envs"]


def test_agents_act_for_themselves() -> None:
    env = TorchRLEnv(Team([[9, 9], [9, 9]], [9, 9]))
    env.reset()
    row = env.step(torch.tensor([[0], [1], [2], [0]]))
    assert row["rewards"].flatten().tolist() == [1.0, 2.0, 3.0, 1.0]


def test_a_teams_reward_is_everybodys() -> None:
    env = TorchRLEnv(Team(LIVES, LENGTHS, team_reward=True))
    rewards = [row["rewards"].flatten().tolist() for row in play(env, 3)]
    assert rewards == [[3, 3, 3, 3, 3, 3], [6, 6, 6, 6, 6, 6], [0, 6, 6, 9, 9, 9]]


def test_without_flags_of_their_own_agents_end_with_their_environment() -> None:
    env = TorchRLEnv(Team([[NEVER] * 2] * 2, [2, 3], own_flags=False))
    assert "valid" not in env.episode_keys
    rows = play(env, 6)
    truncated = [row["truncated"].flatten().tolist() for row in rows]
    assert [ends[:2] for ends in truncated] == [[t % 2 == 0] * 2 for t in range(1, 7)]
    assert [ends[2:] for ends in truncated] == [[t % 3 == 0] * 2 for t in range(1, 7)]
    assert all(torch.equal(row["truncated"], row["first"]) for row in rows)


def test_without_flags_of_their_environment_agents_are_reset_one_by_one() -> None:
    env = TorchRLEnv(Team([[2, 3], [1, NEVER]], [NEVER] * 2, root_flags=False))
    assert "valid" not in env.episode_keys
    rows = play(env, 6)
    for t, row in enumerate(rows, 1):
        ends = [t % 2 == 0, t % 3 == 0, True, False]
        assert row["terminated"].flatten().tolist() == ends
        assert row["first"].flatten().tolist() == ends
        assert row["obs"]["observation"][:, 3].tolist() == [t % 2, t % 3, 0, t]


def test_a_clock_around_a_team_truncates_who_is_alive() -> None:
    for env in (
        TorchRLEnv(Team(LIVES, [NEVER] * 2), max_episode_steps=5),
        TorchRLEnv(TransformedEnv(Team(LIVES, [NEVER] * 2), StepCounter(5))),
    ):
        rows = play(env, 12)
        for row, expected in zip(rows, expected_rows(LIVES, [5, 5], 12), strict=True):
            for key in ("terminated", "truncated", "first", "valid"):
                assert row[key].flatten().tolist() == [agent[key] for agent in expected], key


def test_who_died_is_forgotten_at_a_reset() -> None:
    env = TorchRLEnv(Team(LIVES, LENGTHS))
    assert not play(env, 3)[-1]["valid"].all()
    assert play(env, 1)[0]["valid"].all()


def test_rows_of_the_dead_are_not_learned_from() -> None:
    trainer = Trainer(everstep.wrap(Team(LIVES, LENGTHS), horizon=20), run_dir=None)
    stats = trainer.step()
    rows = [agent for row in expected_rows(LIVES, LENGTHS, 20) for agent in row]
    assert stats["env/steps"] == sum(agent["valid"] for agent in rows) < 20 * 6
    ends = sum(agent["terminated"] or agent["truncated"] for agent in rows)
    assert stats["episodes/count"] == ends
    assert math.isfinite(stats["losses/total"])


CHOICES: list[Any] = [Categorical(3, shape=()), Categorical(5, shape=())]
REALS: list[Any] = [Bounded(-1.0, 1.0, (2,)), Bounded(-3.0, 0.5, (1,))]

#: Widths of observations, actions and counts of the groups.
GROUPS: dict[str, tuple[list[int], list[Any], list[int]]] = {
    "choices": ([6, 4], CHOICES, [2, 1]),
    "one-hot": ([3, 4], [OneHot(3), OneHot(5)], [1, 3]),
    "numbers": ([3, 7], REALS, [2, 2]),
    "unbounded": ([3, 3], [Unbounded(1), Unbounded(3)], [1, 2]),
    "alike": ([3, 3], [CHOICES[0]] * 2, [3, 2]),
    "three": ([3, 5, 4], [*CHOICES, Categorical(2, shape=())], [1, 1, 1]),
}


@pytest.mark.parametrize("bounds", ["auto", "rescale"])
def test_groups_are_rescaled_where_all_have_the_same_bounds(bounds: Any) -> None:
    threes = [Bounded(-3.0, 3.0, (2,))] * 2
    env: Any = TorchRLEnv(Hunt(1, [3, 7], threes, [2, 1]), action_bounds=bounds)
    env.reset()
    env.step(torch.tensor([[0.5, -1.0], [1.0, 9.0], [0.0, -0.5]]))
    sent = [env.env.sent[name].flatten().tolist() for name in env.env.counts]
    assert sent == [[1.5, -3.0, 3.0, 3.0], [0.0, -1.5]]
    (form,) = env.env_format.action
    assert (form.scale == 3).all()
    others = Hunt(1, [3, 7], [Bounded(-3.0, 3.0, (2,)), Bounded(-3.0, 4.0, (2,))], [2, 1])
    if bounds == "rescale":
        with pytest.raises(AdapterError, match="needs groups whose actions have equal bounds"):
            TorchRLEnv(others, action_bounds=bounds)
    else:
        assert TorchRLEnv(others).env_format.action[0].scale is None


def hunt(name: str, num_envs: int = 3, **options: Any) -> Hunt:
    widths, actions, counts = GROUPS[name]
    return Hunt(num_envs, widths, actions, counts, **options)


@pytest.mark.parametrize("name", GROUPS)
def test_agents_of_all_groups_are_rows(name: str) -> None:
    """Of an environment the first group's come first; each agent's numbers, and then zeros."""
    widths, actions, counts = GROUPS[name]
    inner = hunt(name)
    env: Any = TorchRLEnv(inner)
    places = [(g, i) for g, count in enumerate(counts) for i in range(count)]
    assert (env.rows_per_env, env.num_envs) == (len(places), 3 * len(places))
    assert env.agents == [f"{list(inner.counts)[g]}_{i}" for g, i in places]
    assert env.observation_spec == Unbounded(max(widths))
    assert (env.agent_specs is None) == (name == "alike")
    for agent, (g, _) in zip(env.agents, places, strict=True):
        own = (env.agent_specs or {agent: (env.observation_spec, env.action_spec)})[agent]
        assert own[0] == Unbounded(widths[g])
        sent = actions[g]
        if isinstance(sent, Bounded | Unbounded):
            assert own[1] == sent
        else:
            assert own[1] == Categorical(sent.space.n, shape=torch.Size([1]))
    expected = [[e, i] for e in range(3) for _, i in places]
    obs = env.reset()
    for t in range(1, 10):
        assert obs[:, :2].tolist() == expected
        assert (obs[:, 2] == (t - 1) % 4).all()
        assert not obs[:, 3:].any()
        action = torch.stack(
            [
                (env.agent_specs or {agent: (None, env.action_spec)})[agent][1].rand()
                if name in ("choices", "one-hot", "three", "alike")
                else env.action_spec.rand()
                for _ in range(3)
                for agent in env.agents
            ]
        )
        row = env.step(action)
        rows = action.view(3, len(places), -1)
        start = 0
        for (group, sent), count, spec in zip(inner.sent.items(), counts, actions, strict=True):
            own = rows[:, start : start + count, : spec.shape[-1] if spec.shape else 1]
            if isinstance(spec, OneHot):
                own, sent = rows[:, start : start + count, :1], sent.long().argmax(-1, True)
            if isinstance(spec, Bounded):
                own = own.clamp(spec.space.low, spec.space.high)
            assert torch.equal(sent.reshape(own.shape), own), group
            rewards = row["rewards"].view(3, -1)[:, start : start + count]
            assert torch.equal(rewards, own[..., 0].float())
            start += count
        ends = t % 4 == 0
        assert (row["truncated"] == ends).all()
        assert (row["first"] == ends).all()
        assert not row["terminated"].any()
        assert (row["final_obs"][:, 2] == (t - 1) % 4 + 1).all()
        obs = row["obs"]


def test_agents_of_several_groups_die_by_themselves() -> None:
    env = TorchRLEnv(hunt("choices", killed_by=2))
    env.reset()
    action = torch.zeros(9, 1, dtype=torch.int64)
    action[[1, 5], 0] = 2  # a hunter of the first environment, the prey of the second
    first, then = (env.step(action) for _ in range(2))
    for row, dead in ((first["terminated"], {1, 5}), (~then["valid"], {1, 5})):
        assert set(row.flatten().nonzero().flatten().tolist()) == dead
    assert not then["rewards"].any()
    state = env.state_dict()
    assert state is None  # of an environment that is not known


class Kept(Hunt):
    """Its state can be read; all agents see a clock, which is no group's."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.observation_spec["clock"] = Unbounded((len(self.t), 2))

    def _observe(self) -> dict[str, Any]:
        return {**super()._observe(), "clock": self.t[:, None].expand(-1, 2).float()}

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        return {"t": self.t.clone(), **{x: dead.clone() for x, dead in self.dead.items()}}

    def load_state_dict(self, state: Any, *args: Any, **options: Any) -> None:  # type: ignore[override]
        self.t = state["t"].clone()
        self.dead = {x: state[x].clone() for x in self.dead}


def test_groups_go_on_from_their_state_and_see_what_all_share(tmp_path: Path) -> None:
    widths, actions, counts = GROUPS["choices"]
    one, other = (TorchRLEnv(Kept(2, widths, actions, counts, 9, killed_by=2)) for _ in range(2))
    assert list(one.observation_spec.keys()) == ["observation", "clock"]
    one.reset()
    fatal = torch.zeros(6, 1, dtype=torch.int64)
    fatal[4] = 2
    one.step(fatal)
    state = one.state_dict()
    assert state is not None
    save_file(f"{tmp_path}/state", state)
    other.reset()
    other.load_state_dict(load_file(f"{tmp_path}/state"))
    for t in range(2, 13):
        rows = [env.step(torch.zeros_like(fatal)) for env in (one, other)]
        assert_close(*rows)
        assert rows[0]["valid"].flatten().tolist() == [i != 4 or t > 9 for i in range(6)]
        assert (rows[0]["final_obs"]["clock"] == (t - 1) % 9 + 1).all()


class Masked(Hunt):
    """Allows the last option of each group alone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for x, k in self.counts.items():
            shape = (len(self.t), k, self.action_spec[x, "action"].space.n)
            self.observation_spec[x, "action_mask"] = Binary(shape=shape, dtype=torch.bool)

    def _observe(self) -> dict[str, Any]:
        data = super()._observe()
        for x, own in data.items():
            mask = self.observation_spec[x, "action_mask"].zero()
            mask[..., -1] = True
            own["action_mask"] = mask
        return data


def test_masks_of_groups_are_those_of_their_own_options() -> None:
    inner = Masked(3, *GROUPS["choices"])
    env: Any = everstep.wrap(inner, horizon=8)
    assert env.reset()["action_mask"].tolist()[1:3] == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
    trainer = Trainer(env, run_dir=None, policies="group", seed=0, progress=False)
    trainer.step()
    assert (inner.sent["hunter"] == 2).all()
    assert (inner.sent["prey"] == 4).all()


@pytest.mark.parametrize("policies", ["group", "agent"])
@pytest.mark.parametrize("name", GROUPS)
def test_each_group_is_trained_with_a_policy_of_its_own(name: str, policies: str) -> None:
    env: Any = everstep.wrap(hunt(name), horizon=8)
    trainer = Trainer(env, run_dir=None, policies=policies, seed=0, progress=False)
    stats: Any = trainer.step()
    counts = dict(zip(env.env.counts, GROUPS[name][2], strict=True))
    if policies == "agent":
        counts = dict.fromkeys(env.agents, 1)
    for policy, count in counts.items():
        assert stats[f"{policy}/env/steps"] == 3 * 8 * count
    before = env.reset()
    assert trainer.algorithm.policy.predict(before)[0].shape[0] == env.num_envs


def test_groups_are_those_that_the_environment_names() -> None:
    """Whatever their agents are called; two agents with one name have their group's in front."""
    inner = hunt("choices")
    inner.group_map = {"hunter": ["ann", "bob"], "prey": ["bob"]}
    env: Any = everstep.wrap(inner, horizon=8)
    assert env.agents == ["ann", "hunter_bob", "prey_bob"]
    trainer = Trainer(env, run_dir=None, policies="group", seed=0, progress=False)
    stats: Any = trainer.step()
    assert (stats["hunter/env/steps"], stats["prey/env/steps"]) == (48, 24)


def test_groups_that_differ_share_no_policy() -> None:
    env = everstep.wrap(hunt("choices"), horizon=8)
    with pytest.raises(ConfigError, match="agents have different spaces, and one policy cannot"):
        Trainer(env, run_dir=None)
    stats: Any = Trainer(everstep.wrap(hunt("alike"), horizon=8), run_dir=None).step()
    assert stats["env/steps"] == 3 * 5 * 8


def test_values_may_see_what_all_groups_observe() -> None:
    env: Any = everstep.wrap(hunt("choices"), horizon=8, all_agents=True)
    obs = env.reset()
    assert torch.equal(obs["all_agents"][:3], obs["observation"][:3].flatten().expand(3, 18))
    stats: Any = Trainer(env, run_dir=None, policies="group", seed=0).step()
    assert stats["prey/env/steps"] == 24


@pytest.mark.parametrize(
    ("widths", "actions", "message"),
    [
        ([3, 3], [CHOICES[0], REALS[0]], r"actions that no row can hold: that of hunter is"),
        ([3, 3], [REALS[0], Bounded(-1.0, 1.0, (2, 1))], "actions that no row can hold"),
    ],
)
def test_groups_that_no_row_can_hold_are_refused(
    widths: list[int], actions: list[Any], message: str
) -> None:
    env = Hunt(2, widths, actions, [1, 2])
    with pytest.raises(AdapterError, match=message) as error:
        TorchRLEnv(env)
    assert "action_key=('hunter', 'action')" in str(error.value)
    assert TorchRLEnv(env, action_key=("prey", "action")).num_envs == 4


@pytest.mark.parametrize(
    "option", [{"observation_keys": [("prey", "observation")]}, {"reward_key": ("prey", "reward")}]
)
def test_options_for_rows_of_one_kind_are_refused_for_several_groups(option: Any) -> None:
    with pytest.raises(AdapterError, match=r"has the groups hunter, prey. Name one by `action_"):
        TorchRLEnv(hunt("choices"), **option)


class TestGroupsConform(EnvConformance):
    """Advantages of all agents against the oracle are among the rules."""

    num_envs_choices = (3, 6)
    episodes_end = True
    resets_draw_new_states = False

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Any:
        return TorchRLEnv(hunt("choices", num_envs // 3, killed_by=2), horizon, device=device)


class TestTeamsConform(EnvConformance):
    """Advantages of all agents against the oracle are among the rules."""

    num_envs_choices = (3, 6)
    episodes_end = True

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Any:
        n = num_envs // 3
        return TorchRLEnv(Team(LIVES[:n], LENGTHS[:n]), horizon, device=device)


# What cannot be rows.


def groups_of_agents() -> Recorder:
    shape = torch.Size([2])

    def group(count: int, spec: Any) -> Composite:
        return Composite({spec[0]: spec[1](torch.Size([2, count]))}, shape=(2, count))

    def both(name: str, make: Any) -> Composite:
        return Composite(cats=group(2, (name, make)), dogs=group(3, (name, make)), shape=shape)

    return Recorder(
        both("action", lambda s: Categorical(3, shape=s)),
        both("observation", lambda s: Unbounded((*s, 4))),
        shape,
        reward=both("reward", lambda s: Unbounded((*s, 1))),
    )


def test_of_several_groups_one_is_chosen() -> None:
    env = TorchRLEnv(groups_of_agents(), action_key=("dogs", "action"))
    assert env.num_envs == 6
    assert env.observation_spec == Unbounded(4)
    assert env.describe()["action"].endswith("(at random: cats.action)")


def test_observations_of_one_name_are_refused() -> None:
    shape = torch.Size([2])
    agents = Composite({"seen": Unbounded((2, 3, 1))}, shape=(2, 3))
    action = Composite(
        agents=Composite({"action": Categorical(2, shape=(2, 3))}, shape=(2, 3)), shape=shape
    )
    seen = Composite(agents=agents, seen=Unbounded((2, 4)), shape=shape)
    with pytest.raises(AdapterError, match="both be called 'seen'"):
        TorchRLEnv(Recorder(action, seen, shape))


def test_parts_that_end_at_different_times_are_refused() -> None:
    shape = torch.Size([2])
    inner = Recorder(
        Categorical(2, shape=shape), Composite(seen=Unbounded((2, 1)), shape=shape), shape
    )
    done = Categorical(2, shape=(2, 1), dtype=torch.bool)
    parts = {name: Composite(done=done, shape=shape) for name in ("left", "right")}
    inner.auto_complete_done_specs = False
    inner.full_done_spec = Composite(parts, shape=shape)
    with pytest.raises(AdapterError, match=r"different times \(left.done, .*`done_key="):
        TorchRLEnv(inner)
    env = TorchRLEnv(inner, done_key=("left", "done"))
    assert "by left.done" in env.describe()["resets"]


class Silent(Team):
    """Says of an agent that it is done in the env step in which it dies, and not again."""

    def _step(self, tensordict: Any) -> Any:
        before = self.dead.clone()
        out = super()._step(tensordict)
        for flag in ("done", "terminated"):
            out["agents", flag] = out["agents", flag] & ~before[..., None]
        return out


def test_agents_that_said_once_that_they_are_done_stay_absent() -> None:
    rows = play(TorchRLEnv(Silent(LIVES, [5, NEVER])), 5)
    expected = expected_rows(LIVES, [5, NEVER], 5)
    found = [row["valid"].flatten().tolist()[:3] for row in rows]
    assert found == [[agent["valid"] for agent in row[:3]] for row in expected]


def test_all_agents_observe_what_the_environment_returned_for_each() -> None:
    env = TorchRLEnv(Team(LIVES, LENGTHS), all_agents=True)
    opened = env.reset()
    own = torch.cat([opened["observation"], opened["camera"]], -1)
    assert torch.equal(opened["all_agents"][:3], own[:3].flatten().expand(3, 18))
    for t, row in enumerate(play(env, 12), 1):
        obs, final, done = row["obs"], row["final_obs"], row["terminated"] | row["truncated"]
        parts = torch.cat([obs["observation"], obs["camera"]], -1)
        last = torch.cat([final["observation"], final["camera"]], -1)
        last = torch.where(done, last, parts) * row["valid"]
        parts = parts * (row["valid"] | row["first"])
        for i in range(6):
            everybody = slice(i // 3 * 3, i // 3 * 3 + 3)
            assert torch.equal(obs["all_agents"][i], parts[everybody].flatten()), (t, i)
            assert torch.equal(final["all_agents"][i], last[everybody].flatten()), (t, i)


def test_a_policy_for_each_agent() -> None:
    env = everstep.wrap(Team(LIVES, LENGTHS), horizon=20, all_agents=True)
    assert (env.rows_per_env, env.agents) == (3, [])
    trainer = Trainer(env, run_dir=None, policies="agent", seed=0)
    stats: Any = trainer.step()
    rows = expected_rows(LIVES, LENGTHS, 20)
    for i, name in enumerate(("agent_0", "agent_1", "agent_2")):
        counted = sum(row[i]["valid"] + row[3 + i]["valid"] for row in rows)
        assert stats[f"{name}/env/steps"] == counted


def test_one_agent_has_no_others() -> None:
    with pytest.raises(AdapterError, match="several agents"):
        everstep.make("torchrl:torchrl.envs:PendulumEnv", 2, all_agents=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_vmas_names_its_agents_and_trains_a_policy_for_each() -> None:
    pytest.importorskip("vmas")
    from torchrl.envs import VmasEnv

    inner = VmasEnv("simple_spread", num_envs=4, max_steps=20, device="cpu")
    assert known_limit(inner) == 20
    env = everstep.wrap(inner, time_limit=20, all_agents=True)
    assert env.agents == ["agent_0", "agent_1", "agent_2"]
    trainer = Trainer(env, run_dir=None, policies="agent", horizon=20, seed=0)
    stats: Any = trainer.step()
    assert stats["agent_2/env/steps"] == 80
    several = VmasEnv("simple_tag", num_envs=4, max_steps=20, device="cpu")
    tag: Any = everstep.wrap(several, time_limit=20, horizon=20)
    assert [*dict.fromkeys(x.split("_")[0] for x in tag.agents)] == ["adversary", "agent"]
    stats = Trainer(tag, run_dir=None, policies="group", seed=0).step()
    counts = {x: 80 * len(own) for x, own in several.group_map.items()}
    assert {x: stats[f"{x}/env/steps"] for x in counts} == counts
    assert trainer.algorithm.policy.predict(env.reset())[0].shape == (12, 2)
