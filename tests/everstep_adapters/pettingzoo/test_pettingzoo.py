"""PettingZoo: agents are rows, which end by themselves and are reset with their environment."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import everstep
from everstep import Trainer
from everstep.adapters import PettingZooEnv
from everstep.errors import AdapterError, ConfigError, EnvError
from everstep.testing import run_checks

pytest.importorskip("pettingzoo")

from tests.everstep_adapters.pettingzoo.pettingzoo_toys import TEAM, T, Team, U

pytestmark = pytest.mark.filterwarnings("ignore")


def play(env: Any, steps: int) -> list[Any]:
    env.reset()
    action = torch.zeros(env.num_envs, 1, dtype=torch.int64)
    return [env.step(action).clone() for _ in range(steps)]


def column(rows: list[Any], key: str, i: int) -> list[Any]:
    return [row[key][i].item() for row in rows]


def test_agents_end_by_themselves_and_their_environment_resets_when_all_have() -> None:
    env = everstep.wrap(Team(TEAM))
    assert isinstance(env, PettingZooEnv)
    rows = play(env, 6)
    assert env.num_envs == 3
    no, yes = [False] * 6, True
    assert column(rows, "terminated", 0) == [False, yes, False, False, False, yes]
    assert column(rows, "truncated", 1) == [False, False, False, yes, False, False]
    assert column(rows, "terminated", 2) == [False, False, yes, False, False, False]
    assert column(rows, "truncated", 0) == column(rows, "terminated", 1) == no
    for i in range(3):
        assert column(rows, "first", i) == [False, False, False, yes, False, False]
    assert column(rows, "valid", 0) == [True, True, False, False, True, True]
    assert column(rows, "valid", 1) == [True] * 6
    assert column(rows, "rewards", 0) == [1, 1, 0, 0, 1, 1]
    assert column(rows, "rewards", 2) == [3, 3, 3, 0, 3, 3]
    # The observation says which agent and when: final ones are of the end, `obs` of the reset.
    assert rows[1]["final_obs"][0].tolist() == [0, 2, 0]
    assert rows[3]["final_obs"][1].tolist() == [1, 4, 0]
    assert rows[3]["obs"][:, 1].tolist() == [0, 0, 0]
    assert rows[4]["obs"].tolist() == [[0, 1, 0], [1, 1, 0], [2, 1, 0]]


def test_several_environments_and_their_actions_keep_their_order() -> None:
    envs = [Team({"a": (3, T), "b": (3, U)}), Team({"a": (2, T), "b": (2, U)})]
    env = everstep.wrap(envs)
    env.reset()
    row = env.step(torch.tensor([[0], [1], [1], [0]]))
    assert [x.received for x in envs] == [[{"a": 0, "b": 1}], [{"a": 1, "b": 0}]]
    assert row["obs"][:, 2].tolist() == [0, 1, 1, 0]
    assert row["rewards"].flatten().tolist() == [1, 2, 1, 2]
    row = env.step(torch.ones(4, 1, dtype=torch.int64))
    assert row["first"].flatten().tolist() == [False, False, True, True]
    assert row["truncated"].flatten().tolist() == [False, False, False, True]


def test_seeds_are_those_of_environments() -> None:
    envs = [Team(TEAM), Team(TEAM)]
    env = everstep.wrap(envs)
    env.seed(7)
    env.reset()
    env.reset()
    assert [x.seeds for x in envs] == [[7, None], [8, None]]


def test_a_group_is_chosen_and_the_others_act_at_random() -> None:
    for agents, rows in (("a", 2), ("b", 1), (["a_1"], 1), ("a_0", 1)):
        assert everstep.wrap(Team(TEAM, wide=("b_0",)), agents=agents).num_envs == rows
    task = Team({"a_0": (50, T), "b_0": (50, T)})
    env = everstep.wrap(task, agents="b")
    env.seed(0)
    play(env, 40)
    others = [received["a_0"] for received in task.received]
    assert 5 < sum(others) < 35
    assert not any(received["b_0"] for received in task.received)
    again = Team({"a_0": (50, T), "b_0": (50, T)})
    env = everstep.wrap(again, agents="b")
    env.seed(0)
    play(env, 40)
    assert again.received == task.received


class Uneven(Team):
    """Agents have different actions, too: two options, or three; or one number, or two."""

    numbers = False

    def action_space(self, agent: str) -> Any:
        size = 2 + (agent in self.wide)
        if self.numbers:
            return spaces.Box(-1.0, float(size), (size - 1,), np.float32)
        return spaces.Discrete(size)

    def step(self, actions: Any) -> Any:
        for agent, action in actions.items():
            assert self.action_space(agent).contains(np.asarray(action)), (agent, action)
        return super().step({x: np.sum(action) for x, action in actions.items()})


class UnevenNumbers(Uneven):
    numbers = True


@pytest.mark.parametrize("kind", [Uneven, UnevenNumbers])
@pytest.mark.parametrize("all_agents", [False, True])
def test_agents_of_different_spaces_have_their_own_in_rows_of_one_width(
    kind: Any, all_agents: bool
) -> None:
    env: Any = PettingZooEnv([kind(TEAM, wide=("b_0",)) for _ in range(2)], all_agents=all_agents)
    own = {x: y.observation_spec for x, y in env.agent_specs.items()}
    if all_agents:
        assert {x["all_agents"].shape.numel() for x in own.values()} == {15}
        own = {name: x["observation"] for name, x in own.items()}
    assert [own[x].shape.numel() for x in ("a_0", "a_1", "b_0")] == [3, 3, 5]
    with pytest.raises(ConfigError, match="`policies`: agents have different spaces"):
        Trainer(env, horizon=8, run_dir=None)
    options: Any = {"horizon": 8, "run_dir": None, "progress": False, "seed": 0}
    trainer = Trainer(env, policies="group", **options)
    for _ in range(3):
        trainer.step()
    policy: Any = trainer.algorithm.policy
    task = kind(TEAM, wide=("b_0",))
    seen, _ = task.reset()
    task.step(
        policy.predict(seen)[0]
        if not all_agents
        else {x: task.action_space(x).sample() for x in seen}
    )
    assert everstep.evaluate(policy, env, episodes=6)["episodes/count"] == 6
    rows: Any = env.reset()
    rows = rows["observation"] if all_agents else rows
    assert not rows[0, 3:].any()
    assert rows[2, 0] == 2


def test_an_uneven_environment_keeps_the_rules() -> None:
    def make(num_envs: int, horizon: int, device: Any) -> Any:
        source = lambda: Uneven(TEAM, wide=("b_0",))  # noqa: E731
        return everstep.make(source, num_envs, horizon=horizon, device=device)

    results = run_checks(make, deterministic_by_seed=False, resets_draw_new_states=False)
    assert [x for x in results if x.status == "failed"] == []
    assert {"bootstrap", "rows", "some_end"} <= {x.name for x in results if x.status == "passed"}


def test_one_map_to_bounds_is_for_agents_of_equal_bounds() -> None:
    with pytest.raises(AdapterError, match=r"equal bounds; those of a_0 are Box\(-1.0, 2.0, "):
        everstep.wrap(UnevenNumbers(TEAM, wide=("b_0",)), action_bounds="rescale")

    class Equal(UnevenNumbers):
        def action_space(self, agent: str) -> Any:
            return spaces.Box(-1.0, 3.0, (1 + (agent in self.wide),), np.float32)

    for options in ({}, {"action_bounds": "rescale"}):
        env = everstep.wrap(Equal(TEAM, wide=("b_0",)), **options)
        env.reset()
        env.step(torch.tensor([[0.5, 9.0], [-1.0, 9.0], [2.0, 0.0]]))
        assert env.env.envs[0].received == [{"a_0": 2, "a_1": -1, "b_0": 4}]
    env = everstep.wrap(UnevenNumbers(TEAM, wide=("b_0",)))  # is only clipped
    env.reset()
    env.step(torch.tensor([[0.5, 9.0], [1.5, 9.0], [2.0, 3.0]]))
    assert env.env.envs[0].received == [{"a_0": 0, "a_1": 1, "b_0": 5}]


class Threes(Team):
    def action_space(self, agent: str) -> Any:
        return spaces.Box(-3.0, 3.0, (1,), np.float32)

    def step(self, actions: Any) -> Any:
        return super().step({x: float(y[0]) for x, y in actions.items()})


@pytest.mark.parametrize("policies", ["shared", "agent"])
def test_policies_of_agents_act_in_the_unit_that_they_were_trained_in(policies: str) -> None:
    trainer = Trainer(
        everstep.wrap(Threes(TEAM), action_bounds="clip"),
        horizon=8,
        policies=policies,
        run_dir=None,
    )
    trainer.step()
    with pytest.raises(ConfigError, match=r"env_kwargs.action_bounds=clip"):
        everstep.evaluate(trainer.algorithm.policy, everstep.wrap(Threes(TEAM)), episodes=1)


def test_agents_that_differ_in_their_actions_alone_share_the_form_of_observations() -> None:
    class Scalar(Team):
        def action_space(self, agent: str) -> Any:
            return spaces.Box(-1.0, 1.0, (), np.float32)

        def step(self, actions: Any) -> Any:
            return super().step({x: float(y) for x, y in actions.items()})

    class Several(Team):
        def observation_space(self, agent: str) -> Any:
            own = super().observation_space(agent)
            return spaces.Dict(x=own, y=own)

        def seen(self, agent: str) -> Any:
            return {key: np.zeros(3, np.float32) for key in ("x", "y")}

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2 + (agent == "b_0"))

    for task, all_agents in ((Scalar(TEAM, wide=("b_0",)), False), (Several(TEAM), True)):
        env = PettingZooEnv(task, all_agents=all_agents)
        trainer = Trainer(env, policies="agent", horizon=8, run_dir=None, progress=False)
        trainer.step()
        assert env.agent_specs is not None


def test_agents_whose_spaces_no_row_can_hold_are_refused() -> None:
    class Mixed(Team):
        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2) if agent == "b_0" else spaces.Box(-1, 1, (2,))

    class Shifted(Team):
        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2, start=int(agent == "b_0"))

    for kind, word in ((Mixed, "action_space"), (Shifted, "action_space")):
        with pytest.raises(
            AdapterError, match=rf"no row can hold: `{word}.* a \(2\), b \(1\) with"
        ):
            everstep.wrap(kind(TEAM))


def test_an_agent_whose_observation_has_the_shape_of_another_is_named() -> None:
    class Wrong(Team):
        def seen(self, agent: str) -> Any:
            return np.zeros(5, np.float32)

    env = everstep.wrap(Wrong(TEAM, wide=("b_0",)))
    with pytest.raises(EnvError, match=r"`obs\['a_0'\]` must have shape \(3,\).*\(5,\)"):
        env.reset()


def test_others_have_different_random_actions_in_each_environment() -> None:
    """Also the second agent of one environment and the first of the next."""
    tasks = [Team({"a_0": (50, T), "a_1": (50, T), "b_0": (50, T)}) for _ in range(3)]
    env = everstep.wrap(tasks, agents="b")
    env.seed(3)
    play(env, 40)
    streams = [tuple(x[name] for x in task.received) for task in tasks for name in ("a_0", "a_1")]
    assert len(set(streams)) == 6


@pytest.mark.parametrize("agents", ["c", ["a_0", "c"], []])
def test_unknown_agents_are_refused(agents: Any) -> None:
    with pytest.raises(AdapterError, match=r"`agents` are names or a group .* a \(2\), b \(1\)"):
        everstep.wrap(Team(TEAM), agents=agents)


def test_agents_that_join_later_begin_there() -> None:
    env = everstep.wrap(Team({"a": (4, T), "b": (4, T)}, joins={"b": 2}))
    rows = play(env, 5)
    assert column(rows, "valid", 1) == [False, False, True, True, False]
    assert column(rows, "first", 1) == [False, True, False, True, False]
    assert rows[1]["obs"][1].tolist() == [1, 2, 0]


def test_agents_that_leave_without_a_flag_are_an_error() -> None:
    class Silent(Team):
        def step(self, actions: Any) -> Any:
            returned = super().step(actions)
            self.agents = []
            return returned

    env = everstep.wrap(Silent({"a": (9, T), "b": (9, T)}))
    with pytest.raises(EnvError, match=r"'a' of .* left the environment and was neither"):
        play(env, 1)


def test_infos_are_metrics_of_valid_rows() -> None:
    env = everstep.wrap(Team(TEAM))
    play(env, 4)
    # 1 + 2 of a_0, 1 + 2 + 3 + 4 of a_1, 1 + 2 + 3 of b_0.
    assert env.metrics()["speed"] == pytest.approx(19 / 9)


@pytest.mark.slow
def test_rules_of_the_protocol() -> None:
    ends = {"a_0": (2, T), "a_1": (4, U), "a_2": (7, T)}

    def make(num_envs: int, horizon: int, device: Any) -> Any:
        return everstep.make(lambda: Team(ends), num_envs, horizon=horizon, device=device)

    results = run_checks(make, deterministic_by_seed=False, resets_draw_new_states=False)
    assert [x for x in results if x.status == "failed"] == []
    assert {"bootstrap", "rows", "some_end"} <= {x.name for x in results if x.status == "passed"}


def test_rows_are_rounded_up_to_whole_environments() -> None:
    assert everstep.make(lambda: Team(TEAM), 4).num_envs == 6
    trainer = everstep.Trainer(lambda: Team(TEAM), num_envs=4, horizon=8, run_dir=None)
    assert trainer.algorithm.params["num_envs"] == 6
    assert trainer.step()["env/steps"] <= 48


@pytest.mark.parametrize(
    ("fails", "options", "message"),
    [(3, {}, "cannot make .*no third"), (9, {"agents": "c"}, "`agents` are names")],
)
def test_environments_are_closed_if_a_later_one_cannot_be_made(
    fails: int, options: Any, message: str
) -> None:
    made: list[Team] = []
    closed: list[Team] = []

    class Closing(Team):
        def close(self) -> None:
            closed.append(self)

    def make() -> Team:
        if len(made) + 1 == fails:
            raise ValueError("no third")
        made.append(Closing(TEAM))
        return made[-1]

    with pytest.raises(AdapterError, match=message):
        everstep.make(make, 9, **options)
    assert made
    assert closed == made


class Masked(Team):
    """Only the second action is possible."""

    def observation_space(self, agent: str) -> Any:
        mask = spaces.Box(0, 1, (2,), np.int8)
        return spaces.Dict(seen=super().observation_space(agent), action_mask=mask)

    def seen(self, agent: str) -> Any:
        values = np.array([self.possible_agents.index(agent), self.t, 0], np.float32)
        return {"seen": values, "action_mask": np.array([0, 1], np.int8)}


def test_masks_that_agents_observe_are_applied() -> None:
    tasks = [Masked(TEAM) for _ in range(2)]
    everstep.Trainer(everstep.wrap(tasks), horizon=8, run_dir=None).step()
    assert all(set(actions.values()) == {1} for task in tasks for actions in task.received)


def test_masks_of_agents_that_are_not_controlled_are_applied() -> None:
    """They act at random, among what they may do."""
    task = Masked({"a": (30, T), "b": (30, U)})
    env = everstep.wrap(task, agents="a")
    env.seed(0)
    env.reset()
    for _ in range(20):
        env.step(torch.ones(1, 1, dtype=torch.int64))
    assert [x["b"] for x in task.received] == [1] * 20


def test_names_that_are_no_environments() -> None:
    with pytest.raises(AdapterError, match=r"no module nothing_v0 or pettingzoo\.nothing_v0"):
        everstep.make("pettingzoo:nothing_v0", 2)
    with pytest.raises(AdapterError, match=r"Did you mean 'classic\.rps_v2'"):
        everstep.make("pettingzoo:classic.rps_v1", 2)
    with pytest.raises(AdapterError, match="has no `parallel_env`"):
        everstep.make("pettingzoo:utils", 2)


def test_turns_that_cannot_be_made_parallel_are_refused() -> None:
    classic = pytest.importorskip("pettingzoo.classic")
    with pytest.raises(AdapterError, match="take turns"):
        everstep.wrap(classic.tictactoe_v3.env())


@pytest.mark.slow
def test_rows_of_a_real_environment_are_supersuits() -> None:
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    supersuit = pytest.importorskip("supersuit")
    ours = everstep.wrap(spread.parallel_env(max_cycles=5))
    assert ours.max_episode_steps == 5
    theirs = supersuit.pettingzoo_env_to_vec_env_v1(spread.parallel_env(max_cycles=5))
    ours.seed(3)
    expected, _ = theirs.reset(seed=3)
    torch.testing.assert_close(ours.reset(), torch.as_tensor(expected))
    for t in range(1, 5):
        action = torch.randint(5, (3, 1))
        obs, rewards, terminated, truncated, _ = theirs.step(action.flatten().numpy())
        row = ours.step(action)
        flags = row["terminated"].flatten().tolist(), row["truncated"].flatten().tolist()
        assert flags == ([*map(bool, terminated)], [*map(bool, truncated)])
        torch.testing.assert_close(row["rewards"].flatten(), torch.as_tensor(rewards).float())
        torch.testing.assert_close(row["obs"], torch.as_tensor(obs))
        assert row["first"].any().item() is False, t


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("mpe2.simple_spread_v3", "{max_cycles: 9}"),
        ("mpe2.simple_tag_v3", "{max_cycles: 9, agents: adversary}"),
        ("sisl.pursuit_v5", "{max_cycles: 9}"),
        ("mpe2.simple_tag_v3", "{max_cycles: 9, all_agents: true}\npolicies: group"),
        ("mpe2.simple_speaker_listener_v4", "{max_cycles: 9}\npolicies: agent"),
        ("mpe2.simple_spread_v3", "{max_cycles: 9, all_agents: true}\npolicies: agent"),
    ],
)
def test_real_environments_train_from_a_file(tmp_path: Path, name: str, kwargs: str) -> None:
    from everstep.__main__ import main

    pytest.importorskip(name.split(".")[0] if name.startswith("mpe2") else f"pettingzoo.{name}")
    file = tmp_path / "train.yaml"
    file.write_text(
        f"env_cls: pettingzoo:{name}\nenv_kwargs: {kwargs}\nnum_envs: 12\nhorizon: 16\n"
        "total_env_steps: 400\n"
    )
    run = tmp_path / "run"
    assert main(["train", "-f", str(file), "--no-mlflow", "--run-dir", str(run)]) == 0
    assert len((run / "metrics.jsonl").read_text().splitlines()) >= 2
    assert main(["eval", str(run), "--episodes", "12"]) == 0


@pytest.mark.slow
def test_the_program_of_the_page_trains_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpe2")
    page = Path(__file__).parents[3] / "docs" / "adapters" / "pettingzoo.md"
    program = re.findall(r":caption: train.py\n\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(program[0].replace("300_000", "300"), names)
    assert list(names["actions"]) == ["agent_0", "agent_1", "agent_2"]
    observation = names["observations"]["agent_0"]
    assert names["one"].predict(observation)[0] == names["actions"]["agent_0"]
    names["trainer"].close()


@pytest.mark.filterwarnings("ignore")
def test_supersuit_makes_spaces_equal() -> None:
    supersuit = pytest.importorskip("supersuit")
    unequal = Team(TEAM, wide=("b_0",))
    assert everstep.wrap(unequal).agent_specs is not None
    equal: Any = everstep.wrap(supersuit.pad_observations_v0(unequal))
    assert equal.agent_specs is None
    Trainer(equal, horizon=8, run_dir=None).step()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_supersuit_trains_from_the_file_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from everstep.__main__ import main

    pytest.importorskip("supersuit")
    pytest.importorskip("mpe2")
    page = Path(__file__).parents[3] / "docs" / "adapters" / "pettingzoo.md"
    _, *files = re.findall(r":caption: (\S+)\n\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    assert [name for name, _ in files] == ["spread.py", "train.yaml"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["check", "spread.make"]) == 0
    assert main(["train", "-f", "train.yaml", "--no-mlflow", "--run-dir", "run"]) == 0
    assert len(Path("run", "metrics.jsonl").read_text().splitlines()) == 2


def test_both_halves_of_an_env_step_are_the_env_step() -> None:
    """With agents that end before others, that join later, and environments that begin again."""
    ends = {"a_0": (2, T), "a_1": (4, U), "a_2": (5, T)}

    def played(*, halves: bool) -> list[Any]:
        env = PettingZooEnv([Team(ends, joins={"a_2": 3}) for _ in range(2)])
        env.reset()
        rows = []
        for t in range(12):
            action = torch.full((6, 1), t % 2)
            if halves:
                env.step_async(action)
            row = env.step_wait() if halves else env.step(action)
            assert set(row.keys()) == {"obs", "rewards"} | env.episode_keys
            rows.append({key: value.tolist() for key, value in row.items()})
        return rows

    assert played(halves=True) == played(halves=False)


def test_environments_that_are_one_are_refused() -> None:
    team = Team({"a_0": (2, T)})
    with pytest.raises(AdapterError, match="Rows 0 and 1 of `env` have one environment, Team"):
        PettingZooEnv([team, team])
    with pytest.raises(AdapterError, match="have one environment, Team"):
        everstep.make(lambda: team, 2)


def test_all_environments_are_closed_if_one_cannot_be() -> None:
    made: list[Any] = []

    class Breaking(Team):
        def __init__(self) -> None:
            super().__init__({"a_0": (2, T)})
            self.closes = 0
            made.append(self)
            if len(made) == 4:
                raise RuntimeError("out of memory")

        def close(self) -> None:
            self.closes += 1
            raise RuntimeError("no window")

    with pytest.raises(AdapterError, match="out of memory"):
        PettingZooEnv.make(Breaking, 8)
    assert [x.closes for x in made] == [1, 1, 1, 0]


def test_all_agents_observe_what_the_environment_returned_for_each() -> None:
    """Agents join in env step 1, end in 2, 3 and 4, and the environment begins anew."""
    ends = {"a_0": (2, T), "a_1": (4, U), "b_0": (3, T)}
    env = PettingZooEnv([Team(ends, {"b_0": 1}), Team(ends)], all_agents=True)
    assert env.agents == ["a_0", "a_1", "b_0"]
    zeros = [0.0] * 3

    def seen(agent: int, t: int) -> list[float]:
        return [float(agent), float(t), 0.0]

    def everybody(t: int, first: bool) -> list[float]:
        """All that env step `t` of an environment returned; an agent of the first one joins."""
        there = [t <= 2, t <= 4, (t > 0 or not first) and t <= 3]
        return [x for i in range(3) for x in (seen(i, t) if there[i] else zeros)]

    opened = env.reset()
    assert opened["all_agents"][0].tolist() == everybody(0, first=True)
    assert opened["all_agents"][3].tolist() == everybody(0, first=False)
    *rows, last = play(env, 4)
    for t, row in enumerate(rows, 1):
        for i in range(6):
            assert row["obs", "all_agents"][i].tolist() == everybody(t, first=i < 3), (t, i)
        for i in (0, 3):
            done = bool(row["terminated"][i] | row["truncated"][i])
            assert done is (t == 2)
    assert last["first"].all()
    for i in (1, 4):
        assert last["final_obs", "all_agents"][i].tolist() == zeros + seen(1, 4) + zeros
    assert last["obs", "all_agents"][0].tolist() == everybody(0, first=True)
    assert last["obs", "observation"][4].tolist() == seen(1, 0)


def test_a_policy_for_each_agent_trains_where_agents_join_and_end() -> None:
    env = PettingZooEnv([Team(TEAM, {"b_0": 1}) for _ in range(4)], all_agents=True)
    options: dict[str, Any] = {"policies": "agent", "horizon": 16, "run_dir": None, "seed": 0}
    trainer = Trainer(env, **options)
    stats: Any = [trainer.step() for _ in range(3)][-1]
    assert stats["a_0/env/steps"] < stats["a_1/env/steps"]
    team = Team(TEAM)
    obs, _ = team.reset()
    actions, _ = trainer.algorithm.policy.predict(obs)
    assert list(actions) == list(TEAM)
    team.step(actions)


def test_observations_that_cannot_be_joined_are_refused() -> None:
    class Choices(Team):
        def observation_space(self, agent: str) -> Any:
            return spaces.Discrete(3)

    with pytest.raises(AdapterError, match="choices"):
        PettingZooEnv(Choices(TEAM), all_agents=True)


class Lacking(Team):
    """A team whose `step` or `reset` leaves out the observation of an agent, at its env step."""

    agent, at = "a_0", 2

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        return self.without(super().reset(seed, options))

    def step(self, actions: Any) -> Any:
        return self.without(super().step(actions))

    def without(self, returned: Any) -> Any:
        obs, *rest = returned
        kept = {x: y for x, y in obs.items() if (x, self.t) != (self.agent, self.at)}
        return kept, *rest


@pytest.mark.parametrize(
    ("at", "end", "message"),
    [
        (0, T, r"lacks agents \['a_0'\]: `reset` must return an observation of each agent"),
        (2, T, "lacks agent 'a_0', which goes on: `step` must return an observation"),
        (4, U, "lacks agent 'a_0', which was truncated: `step` must return an observation"),
    ],
)
def test_an_observation_that_is_needed_and_missing_is_named(
    at: int, end: Any, message: str
) -> None:
    """The agent's last one would be taken for it, also as the final observation."""
    task = Lacking({"a_0": (4, end), "b_0": (6, T)})
    task.at = at
    with pytest.raises(EnvError, match=message):
        play(everstep.wrap(task), 6)


def test_an_agent_that_was_terminated_needs_no_observation() -> None:
    task = Lacking({"a_0": (2, T), "b_0": (4, T)})
    assert column(play(everstep.wrap(task), 4), "terminated", 0) == [False, True, False, False]


def test_observations_of_other_keys_or_shapes_are_named_with_their_agent() -> None:
    class Wrong(Team):
        def observation_space(self, agent: str) -> Any:
            return spaces.Dict({"x": spaces.Box(-9.0, 9.0, (3,), np.float32)})

        def seen(self, agent: str) -> Any:
            return {"x": np.zeros(3, np.float32), "y": 1}

    with pytest.raises(EnvError, match=r"`obs\['a_0'\]` must have the keys \['x'\].*\['x', 'y'\]"):
        play(everstep.wrap(Wrong(TEAM)), 1)


def test_environments_that_differ_are_refused() -> None:
    """Spaces of the first one were taken for all, and further agents acted at random."""
    for other, message in (
        (Team({"a_0": (3, T)}), r"0 and 1 differ: `possible_agents` is \['a_0', 'b_0'\] and"),
        (Team({"a_0": (3, T), "b_0": (3, T)}, wide=("b_0",)), r"`observation_space\('b_0'\)` is"),
    ):
        with pytest.raises(AdapterError, match=message):
            everstep.wrap([Team({"a_0": (3, T), "b_0": (3, T)}), other])


def test_a_limit_of_episodes_is_the_environments_own() -> None:
    """The refusal advised an option that these environments do not have."""
    message = r"`max_episode_steps` of PettingZoo's.*got 5\..*`max_cycles=5`\.$"
    for make in (everstep.wrap, PettingZooEnv):
        with pytest.raises(AdapterError, match=message):
            make([Team(TEAM), Team(TEAM)], max_episode_steps=5)
    with pytest.raises(AdapterError, match=message):
        PettingZooEnv.make(lambda: Team(TEAM), 4, max_episode_steps=5)
