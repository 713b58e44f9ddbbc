"""A maze whose halves are mirror images, and the env steps that it takes to learn it.

`python examples/symmetry/maze.py` prints, for each way, the env steps until the policy's most
likely actions lead from nine cells of ten to the goal: for each seed, and their mean with Student's
95 % interval.
"""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np

from everstep import Policy, Trainer
from everstep.core.intervals import mean_interval

#: `#` is a wall, `G` the goal; the rows read the same from both sides.
MAP = (
    "...#.G.#...",
    ".#.#.#.#.#.",
    ".#...#...#.",
    ".###.#.###.",
    ".....#.....",
    ".###.#.###.",
    "...#...#...",
)
WIDTH, HEIGHT = len(MAP[0]), len(MAP)

#: Rows and columns that each action moves by: left, right, up, down.
MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))

#: The symmetry: cells to the left are exchanged with those to the right, and so are both moves.
SYMMETRY: dict[str, Any] = {
    "observation": [row * WIDTH + WIDTH - 1 - x for row in range(HEIGHT) for x in range(WIDTH)],
    "action": [1, 0, 2, 3],
}

#: Cells that an episode may begin in.
FREE = [(y, x) for y, row in enumerate(MAP) for x, mark in enumerate(row) if mark == "."]

#: Settings of each way. With mirrored rows, half of the environments make minibatches as large.
WAYS: dict[str, dict[str, Any]] = {
    "without": {"num_envs": 16, "sgd_minibatch_size": 64},
    "half": {"num_envs": 8, "sgd_minibatch_size": 32},
    "augment": {"num_envs": 8, "sgd_minibatch_size": 32, "symmetry": SYMMETRY},
    "both": {
        "num_envs": 8,
        "sgd_minibatch_size": 32,
        "symmetry": {**SYMMETRY, "mirror_coeff": 1.0},
    },
}


def moved(place: tuple[int, int], action: int) -> tuple[int, int]:
    """The cell that an action leads to: the same if there is a wall."""
    y, x = (a + b for a, b in zip(place, MOVES[action], strict=True))
    is_free = 0 <= y < HEIGHT and 0 <= x < WIDTH and MAP[y][x] != "#"
    return (y, x) if is_free and MAP[place[0]][place[1]] != "G" else place


def solved(policy: Policy) -> float:
    """Share of cells from which the policy's most likely actions lead to the goal."""
    chosen, _ = policy.predict(np.arange(WIDTH * HEIGHT), deterministic=True)
    found = 0
    for place in FREE:
        for _ in range(len(FREE)):
            place = moved(place, int(chosen[place[0] * WIDTH + place[1]]))
        found += MAP[place[0]][place[1]] == "G"
    return found / len(FREE)


class Maze(gym.Env[np.int64, np.int64]):
    """An episode begins in any free cell, and ends at the goal, which gives 1, or after 100 moves.

    Each move costs 0.01. The observation is the number of the cell.
    """

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Discrete(WIDTH * HEIGHT)
        self.action_space = gym.spaces.Discrete(len(MOVES))

    def reset(
        self, *, seed: None | int = None, options: None | dict[str, Any] = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._place, self._moves = FREE[self.np_random.integers(len(FREE))], 0
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Move, unless there is a wall."""
        self._place = moved(self._place, int(action))
        self._moves += 1
        found = MAP[self._place[0]][self._place[1]] == "G"
        return self._seen(), float(found) - 0.01, found, self._moves == 100, {}

    def _seen(self) -> np.int64:
        return np.int64(self._place[0] * WIDTH + self._place[1])


def steps_to_goal(settings: dict[str, Any], seed: int, budget: int = 400_000) -> int:
    """Env steps until the maze is solved from nine cells of ten; the budget if it never is."""
    trainer = Trainer(
        "gymnasium:maze-v0",
        seed=seed,
        horizon=64,
        lr_schedule=None,
        num_sgd_iters=10,
        run_dir=None,
        **settings,
    )
    steps = 0
    while steps < budget:
        steps += trainer.step()["env/steps"]
        if solved(trainer.algorithm.policy) >= 0.9:
            break
    trainer.close()
    return steps


gym.register("maze-v0", Maze, max_episode_steps=None)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    given = parser.parse_args()
    for way in given.ways:
        found = [steps_to_goal(WAYS[way], seed) for seed in range(given.seeds)]
        value, low, high = mean_interval(found)
        print(f"{way}: {found}: {value:,.0f} ({low:,.0f} to {high:,.0f})", flush=True)
