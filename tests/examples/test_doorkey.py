"""DoorKey: what its observations say, what the bonus sees of them, and that it trains."""

from pathlib import Path
from typing import Any

import pytest
import torch

from everstep.loggers import read_metrics

pytest.importorskip("envpool")

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def views(env: Any, env_steps: int) -> torch.Tensor:
    """Observations under random actions, `[R, 50]`."""
    torch.manual_seed(0)
    seen = [env.reset()]
    for _ in range(env_steps):
        seen.append(env.step(env.action_spec.rand([env.num_envs]))["obs"])
    return torch.cat(seen)


def test_observations_are_choices_of_what_minigrid_shows() -> None:
    from examples.doorkey.env import OWN, THINGS, DoorKey

    from everstep_lab.recipes.envs.minigrid import CELLS

    env = DoorKey(16)
    env.seed(3)
    raw, kinds = env.pool.reset(), list(THINGS.values())
    env.seed(3)
    obs = env.reset()
    for n in range(16):
        cells = raw["image"][n].flatten(0, 1)
        for i in range(CELLS):
            assert kinds[obs[n, i]] == (int(cells[i, 0]), int(cells[i, 2]))
    assert torch.equal(obs[:, CELLS:].long(), raw["direction"].long())
    assert env.observation_spec.is_in(obs[0])
    seen = views(env, 300)
    numbers = {name: i for i, name in enumerate(THINGS)}
    found = set(seen[:, :CELLS].unique().tolist())
    assert {numbers[name] for name in ("wall", "locked door", "key", "goal")} <= found
    # Nothing but a key is carried.
    assert set(seen[:, OWN].tolist()) <= {numbers["empty"], numbers["key"]}
    env.close()


def test_the_bonus_sees_what_there_is_and_not_where() -> None:
    from examples.doorkey.env import AHEAD, OWN, THINGS, DoorKey
    from examples.doorkey.networks import ThingsInView

    from everstep_lab.recipes.envs.minigrid import CELLS

    env = DoorKey(2)
    network = ThingsInView(env.observation_spec, hiddens=[16])
    env.close()
    key = list(THINGS).index("key")
    view = torch.ones(5, CELLS + 1, dtype=torch.uint8)
    for row, place in enumerate((0, 8, AHEAD, OWN)):
        view[row, place] = key
    in_view, elsewhere, ahead, carried, none = network((view,))
    torch.testing.assert_close(in_view, elsewhere)
    found = torch.stack([in_view, ahead, carried, none])
    assert torch.pdist(found).min() > 1e-3


@pytest.mark.few(1)
@pytest.mark.parametrize("which", ["rnd", "whole", "ppo"])
def test_it_trains(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.doorkey import train

    small = {"num_envs": 8, "horizon": 8, "sgd_minibatch_size": 32, "num_sgd_iters": 1}
    monkeypatch.setattr(train, "SETTINGS", {**train.SETTINGS, **small})
    run_dir = tmp_path / "run"
    found = train.train(which, 0, [64, 128], run_dir)
    assert len(found["returns"]) == 2
    assert found["seconds"] > 0
    records = read_metrics(run_dir / "metrics.jsonl")
    assert [("losses/rnd" in record) for record in records] == 2 * [which != "ppo"]
    assert [record["step"] for record in records] == [64, 128]
