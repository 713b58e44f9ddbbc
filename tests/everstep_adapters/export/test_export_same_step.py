"""Next-step environments exported to libraries that have no rows without an action."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as vector_wrappers
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import everstep
from everstep.adapters import to_gymnasium, to_torchrl
from everstep_adapters import GymnasiumEnv
from tests.everstep_adapters.export.export_toys import play, random_actions
from tests.everstep_adapters.gymnasium.gymnasium_toys import SCRIPTS, Scripted

STEPS = 60


def replay(env: Any, actions: list[torch.Tensor], seed: int = 3) -> Any:
    """Rollout of TorchRL's own loop with these actions."""
    upcoming = iter(actions)
    env.set_seed(seed)
    return env.rollout(
        len(actions),
        lambda tensordict: tensordict.set("action", next(upcoming)),
        break_when_any_done=False,
    )


def scripted(script: str, mode: str, **options: Any) -> GymnasiumEnv:
    makers = [partial(Scripted, one, i) for i, one in enumerate(SCRIPTS[script])]
    return GymnasiumEnv(SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode]), **options)


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("script", SCRIPTS)
def test_rows_are_those_of_same_step_resets(script: str, limit: None | int) -> None:
    next_step, same_step = (
        scripted(script, mode, max_episode_steps=limit) for mode in ("NEXT_STEP", "SAME_STEP")
    )
    actions = random_actions(same_step, STEPS)
    one, other = replay(to_torchrl(next_step), actions), replay(to_torchrl(same_step), actions)
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert (one == other).all()
    ended = one["next", "done"].sum()
    assert ended > 0 or (script == "none done" and limit is None)


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_worlds_with_random_numbers_too(mode: str) -> None:
    make = partial(everstep.make, "gymnasium:CartPole-v1", 3, vectorization_mode=mode)
    envs = [make(autoreset_mode=name) for name in ("NEXT_STEP", "SAME_STEP")]
    actions = random_actions(envs[0], STEPS)
    one, other = (replay(to_torchrl(env), actions) for env in envs)
    assert (one == other).all()
    assert one["next", "done"].sum() > 3
    for env in envs:
        env.close()


def cart_poles(obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Observations after an env step of Gymnasium's single environment, row by row."""
    env: Any = gym.make("CartPole-v1").unwrapped
    rows = []
    for state, action in zip(obs, actions, strict=True):
        env.reset()
        env.state = state.double().numpy()
        rows.append(torch.as_tensor(env.step(int(action))[0]))
    return torch.stack(rows)


def test_the_default_cart_pole_makes_real_transitions_only() -> None:
    env = everstep.make("gymnasium:CartPole-v1", 4)
    assert type(env.env).__name__ == "CartPoleVectorEnv"  # type: ignore[attr-defined]
    rollout = replay(to_torchrl(env), random_actions(env, STEPS))
    flat_rows = rollout.reshape(-1)
    expected = cart_poles(flat_rows["observation"], flat_rows["action"])
    torch.testing.assert_close(flat_rows["next", "observation"], expected)
    assert (flat_rows["next", "reward"] == 1).all()
    done = rollout["next", "done"].squeeze(-1)
    assert done.sum() > 6
    opening = rollout["observation"][:, 1:][done[:, :-1]]
    assert opening.abs().max() <= 0.05
    going_on = rollout["observation"][:, 1:][~done[:, :-1]]
    assert torch.equal(going_on, rollout["next", "observation"][:, :-1][~done[:, :-1]])
    lengths = [rollout["next", "reward"][i].sum() for i in range(4)]
    assert lengths == [STEPS] * 4


def test_time_limits_of_the_default_cart_pole_start_again() -> None:
    options = {"max_episode_steps": 4, "vectorization_mode": "vector_entry_point"}
    env = everstep.make("gymnasium:CartPole-v1", 2, **options)
    rollout = replay(to_torchrl(env), [torch.tensor([[t % 2], [t % 2]]) for t in range(12)])
    assert rollout["next", "truncated"][0, :, 0].tolist() == [False, False, False, True] * 3


def test_envpools_rows() -> None:
    pytest.importorskip("envpool")
    make = partial(everstep.make, "envpool:CartPole-v1", 4, seed=3)
    actions = random_actions(make(), STEPS)
    rollout = to_torchrl(make()).rollout(
        STEPS, lambda td: td.set("action", actions.pop()), break_when_any_done=False
    )
    rows = rollout.reshape(-1)
    expected = cart_poles(rows["observation"], rows["action"])
    torch.testing.assert_close(rows["next", "observation"], expected, rtol=1e-3, atol=1e-4)
    done = rollout["next", "done"].squeeze(-1)
    assert done.sum() > 6
    assert rollout["observation"][:, 1:][done[:, :-1]].abs().max() <= 0.05


def test_gymnasium_in_the_same_step_on_request() -> None:
    envs = [
        to_gymnasium(scripted("mixed", mode), autoreset_mode="SAME_STEP")
        for mode in ("NEXT_STEP", "SAME_STEP")
    ]
    actions = random_actions(envs[0].env, STEPS)
    rows = [play(everstep.wrap(env), actions) for env in envs]
    for one, other in zip(*rows, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_what_an_env_step_returned_is_not_written_to_by_the_reset() -> None:
    env = to_torchrl(scripted("all done, always", "NEXT_STEP"))
    data = env.reset()
    stored = []
    for _ in range(5):
        data, upcoming = env.step_and_maybe_reset(env.rand_action(data))
        stored.append((data, data.clone()))
        data = upcoming
    assert all((one == copy).all() for one, copy in stored)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torchrl's own, in its import
def test_collectors() -> None:
    from torchrl.collectors import Collector

    env = to_torchrl(everstep.make("gymnasium:CartPole-v1", 4))
    collector = Collector(env, None, frames_per_batch=80, total_frames=320)
    batches = list(collector)
    collector.shutdown()
    assert [batch.numel() for batch in batches] == [80] * 4
    assert all((batch["next", "reward"] == 1).all() for batch in batches)
    assert sum(int(batch["next", "done"].sum()) for batch in batches) > 4


def one_file_ppo(envs: Any, updates: int, horizon: int) -> tuple[list[float], torch.Tensor]:
    """Episodes' returns, and weights, of a loop in one file on Gymnasium's interface.

    The order of calls is that of scripts in the manner of CleanRL: what the infos of
    `RecordEpisodeStatistics` hold, `next_done` that masks values, one optimizer.
    """
    torch.manual_seed(0)
    network = torch.nn.Linear(envs.single_observation_space.shape[0], 3)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    next_obs, _ = envs.reset(seed=1)
    next_done, returns = torch.zeros(envs.num_envs), []
    for _ in range(updates):
        stored = []
        for _ in range(horizon):
            logits, value = network(torch.as_tensor(next_obs)).split([2, 1], -1)
            policy = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            next_obs, rewards, terminated, truncated, infos = envs.step(action.numpy())
            row = (policy.log_prob(action), value[:, 0], torch.as_tensor(rewards), next_done)
            stored.append(row)
            next_done = torch.as_tensor(terminated | truncated).float()
            returns += (
                infos["episode"]["r"][infos["_episode"]].tolist() if "episode" in infos else []
            )
        with torch.no_grad():
            later = network(torch.as_tensor(next_obs))[:, 2]
        loss, done = torch.zeros(()), next_done
        for logp, value, reward, done_before in reversed(stored):
            later = reward.float() + 0.99 * (1 - done) * later
            loss = loss + ((later - value.detach()) * -logp + (later - value) ** 2).mean()
            done = done_before
        optimizer.zero_grad()
        (loss / horizon).backward()
        optimizer.step()
    return returns, network.weight.detach()


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_a_loop_in_one_file_takes_exports_as_it_takes_gymnasiums_own(mode: str) -> None:
    def make() -> Any:
        makers = [lambda: gym.make("CartPole-v1")] * 3
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode])

    exported = to_gymnasium(everstep.wrap(make()))
    assert exported.metadata["autoreset_mode"] is AutoresetMode[mode]
    one, other = (one_file_ppo(RecordEpisodeStatistics(x), 6, 16) for x in (exported, make()))
    assert one[0] == other[0]
    assert len(one[0]) > 3
    torch.testing.assert_close(one[1], other[1], rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("made", ["vector_entry_point", "sync"])
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_record_video_writes_a_film(tmp_path: Path, mode: str, made: str) -> None:
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")
    if not hasattr(vector_wrappers, "RecordVideo"):
        pytest.skip("this version of Gymnasium records no vector environments")
    env = everstep.make(
        "gymnasium:CartPole-v1", 2, render_mode="rgb_array", vectorization_mode=made
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = to_gymnasium(env, autoreset_mode=mode)
        recorded = vector_wrappers.RecordVideo(
            exported, str(tmp_path), episode_trigger=lambda _: True
        )
    assert (exported.render_mode, exported.metadata["render_fps"]) == ("rgb_array", 50)
    recorded.reset(seed=0)
    for _ in range(60):
        recorded.step(recorded.action_space.sample())
    recorded.close()
    films = sorted(tmp_path.glob("*.mp4"))
    assert len(films) > 1
    assert all(film.stat().st_size > 1000 for film in films)
