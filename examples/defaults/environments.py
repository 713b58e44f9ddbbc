"""Small Gymnasium environments that `tasks.py` has beside those of Gymnasium."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

Step = tuple[Any, float, bool, bool, dict[str, Any]]


def vector(size: int) -> Box:
    """The space of `size` real numbers."""
    return Box(-np.inf, np.inf, (size,), np.float32)


class Small(gym.Env):
    """An environment that counts its env steps; `start` and `move` are what differs."""

    #: Env steps of an episode; 0: it never ends.
    length = 0

    def reset(self, *, seed: None | int = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.start()
        return self.look(), {}

    def step(self, action: Any) -> Step:
        reward, is_over = self.move(action)
        self.t += 1
        return self.look(), float(reward), is_over, 0 < self.length <= self.t, {}

    def start(self) -> None:
        """Draw the first state of an episode."""

    def look(self) -> Any:
        """Observation of the state."""
        raise NotImplementedError

    def move(self, action: Any) -> tuple[float, bool]:
        """Reward of an action, and whether the episode has come to its end."""
        raise NotImplementedError


# ---- the choosing set -------------------------------------------------------------------------


class PointToHold(Small):
    """A point on a line, pushed by noise, is to be held at 0. Nothing ever ends."""

    observation_space, action_space = vector(2), Box(-1.0, 1.0, (1,), np.float32)

    def start(self) -> None:
        self.position, self.velocity = self.np_random.uniform(-1, 1), 0.0

    def look(self) -> Any:
        return np.array([self.position, self.velocity], np.float32)

    def move(self, action: Any) -> tuple[float, bool]:
        force = float(np.clip(action[0], -1, 1)) + self.np_random.normal(0, 0.1)
        self.velocity = 0.95 * self.velocity + 0.1 * force
        self.position = float(np.clip(self.position + 0.1 * self.velocity, -5, 5))
        return -abs(self.position), False


class DictGoal(Small):
    """A point in the plane is moved to a goal; both are entries of a `Dict`."""

    length = 50
    observation_space = Dict({"position": vector(2), "goal": vector(2)})
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def start(self) -> None:
        self.position, self.goal = self.np_random.uniform(-2, 2, (2, 2))

    def look(self) -> Any:
        return {"position": np.float32(self.position), "goal": np.float32(self.goal)}

    def move(self, action: Any) -> tuple[float, bool]:
        self.position = self.position + 0.1 * np.clip(action, -1, 1)
        return -float(np.linalg.norm(self.position - self.goal)), False


class Bits(Small):
    """Ten bits are observed and are to be repeated; the reward is the share that is right."""

    length = 10
    observation_space, action_space = MultiBinary(10), MultiBinary(10)

    def look(self) -> Any:
        self.bits = self.np_random.integers(0, 2, 10, dtype=np.int8)
        return self.bits

    def move(self, action: Any) -> tuple[float, bool]:
        return float(np.mean(np.asarray(action) == self.bits)), False


class TwoChoices(Small):
    """One env step: two choices of four, each right for one of four contexts."""

    length = 1
    observation_space, action_space = Discrete(4), MultiDiscrete([4, 4])

    def look(self) -> Any:
        self.context = int(self.np_random.integers(4))
        return self.context

    def move(self, action: Any) -> tuple[float, bool]:
        right = np.asarray(action) == [self.context, 3 - self.context]
        return float(np.mean(right)), True


class Bandit(Small):
    """One env step: which of five fixed directions a drawn vector is closest to."""

    length = 1
    observation_space, action_space = vector(3), Discrete(5)
    directions = np.random.default_rng(0).normal(size=(5, 3))

    def look(self) -> Any:
        self.context = self.np_random.normal(size=3)
        return np.float32(self.context)

    def move(self, action: Any) -> tuple[float, bool]:
        values = self.directions @ self.context
        return float(values[int(action)] - values.max()), True


class TMaze(Small):
    """A corridor whose first cell shows which way to turn at its end, ten cells later."""

    length, cells = 40, 10
    observation_space, action_space = vector(3), Discrete(3)

    def start(self) -> None:
        self.cell, self.side = 0, int(self.np_random.integers(2))

    def look(self) -> Any:
        cue = (2 * self.side - 1) * (self.cell == 0)
        return np.array([cue, self.cell == self.cells, 1], np.float32)

    def move(self, action: Any) -> tuple[float, bool]:
        if self.cell == self.cells:
            return (1.0 if int(action) == self.side else -0.1), int(action) < 2
        is_ahead = int(action) == 2
        self.cell += is_ahead
        return -0.01 if is_ahead else -0.1, False


class Queues(Small):
    """Customers arrive in three queues, one of which is served in each env step. Nothing ends."""

    observation_space, action_space = vector(3), Discrete(3)
    arrivals, served = np.array([0.15, 0.2, 0.4]), np.array([2, 1, 1])

    def start(self) -> None:
        self.lengths = self.np_random.integers(0, 10, 3)

    def look(self) -> Any:
        return np.float32(self.lengths)

    def move(self, action: Any) -> tuple[float, bool]:
        self.lengths[int(action)] -= min(self.lengths[int(action)], self.served[int(action)])
        arrived = self.np_random.random(3) < self.arrivals
        self.lengths = np.minimum(self.lengths + arrived, 50)
        return -float(self.lengths.sum()) / 10, False


class Room(Small):
    """A room is heated to the temperature that is wanted; the weather wanders. Nothing ends."""

    observation_space, action_space = vector(3), Box(0.0, 1.0, (1,), np.float32)

    def start(self) -> None:
        self.inside, self.outside = self.np_random.uniform([10, -5], [25, 10])
        self.wanted = 20.0

    def look(self) -> Any:
        return np.array([self.inside, self.outside, self.wanted], np.float32)

    def move(self, action: Any) -> tuple[float, bool]:
        if self.np_random.random() < 0.02:
            self.wanted = self.np_random.uniform(16, 24)
        self.outside = np.clip(self.outside + self.np_random.normal(0, 0.2), -10, 15)
        heat = 3 * float(np.clip(action[0], 0, 1))
        self.inside += heat - 0.05 * (self.inside - self.outside)
        return -abs(self.inside - self.wanted), False


class Balloon(Small):
    """A balloon with inertia sinks, and follows a height that wanders. Nothing ever ends."""

    observation_space, action_space = vector(3), Box(-1.0, 1.0, (1,), np.float32)

    def start(self) -> None:
        self.height, self.speed = self.np_random.uniform(0, 20), 0.0
        self.wanted = 10.0

    def look(self) -> Any:
        return np.array([self.height, self.speed, self.wanted], np.float32)

    def move(self, action: Any) -> tuple[float, bool]:
        self.wanted = float(np.clip(self.wanted + self.np_random.normal(0, 0.1), 5, 15))
        push = 0.05 * float(np.clip(action[0], -1, 1))
        self.speed = 0.95 * self.speed + push - 0.01 + self.np_random.normal(0, 0.01)
        self.height = float(np.clip(self.height + self.speed, 0, 20))
        return -abs(self.height - self.wanted) / 10, False


class Reservoir(Small):
    """One of four gates is opened; water comes by the season, and gates wear. Nothing ever ends."""

    observation_space, action_space = vector(4), Discrete(4)

    def start(self) -> None:
        self.level, self.season, self.gate = self.np_random.uniform(20, 80), 0.0, 0

    def look(self) -> Any:
        season = np.sin(self.season), np.cos(self.season)
        return np.array([self.level, *season, self.gate], np.float32)

    def move(self, action: Any) -> tuple[float, bool]:
        self.season += 0.02
        wear, self.gate = 0.05 * abs(int(action) - self.gate), int(action)
        inflow = max(0.0, 1.5 + np.sin(self.season) + self.np_random.normal(0, 0.5))
        self.level = float(np.clip(self.level + inflow - self.gate, 0, 100))
        return -abs(self.level - 50) / 50 - wear, False


class Quadrant(Small):
    """One env step: which quarter of a noisy picture in colours is the brightest."""

    length, size = 1, 40
    observation_space, action_space = Box(0, 255, (40, 40, 3), np.uint8), Discrete(4)

    def look(self) -> Any:
        picture = self.np_random.integers(0, 160, (self.size, self.size, 3), np.uint8)
        self.brightest, half = int(self.np_random.integers(4)), self.size // 2
        row, column = half * (self.brightest // 2), half * (self.brightest % 2)
        picture[row : row + half, column : column + half] += 40
        return picture

    def move(self, action: Any) -> tuple[float, bool]:
        return float(int(action) == self.brightest), True


class DotToReach(Small):
    """One dot walks to another one, seen in 48x48 pixels."""

    length, cells = 24, 8
    observation_space, action_space = Box(0, 255, (48, 48, 1), np.uint8), Discrete(5)
    moves = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])

    def start(self) -> None:
        self.place, self.goal = self.np_random.integers(0, self.cells, (2, 2))

    def look(self) -> Any:
        cells = np.zeros((self.cells, self.cells), np.uint8)
        cells[tuple(self.goal)] = 120
        cells[tuple(self.place)] += 135
        return np.kron(cells, np.ones((6, 6), np.uint8))[..., None]

    def move(self, action: Any) -> tuple[float, bool]:
        self.place = np.clip(self.place + self.moves[int(action)], 0, self.cells - 1)
        return -float(np.abs(self.place - self.goal).sum()) / (2 * self.cells), False


class Stripes(Small):
    """A bright stripe is moved up and down to where a faint one is, seen in 40x40 pixels."""

    length, rows = 20, 8
    observation_space, action_space = Box(0, 255, (40, 40, 1), np.uint8), Discrete(3)

    def start(self) -> None:
        self.row, self.wanted = (int(x) for x in self.np_random.integers(0, self.rows, 2))

    def look(self) -> Any:
        picture = np.zeros((40, 40, 1), np.uint8)
        picture[5 * self.wanted : 5 * self.wanted + 5, :20] = 100
        picture[5 * self.row : 5 * self.row + 5, 20:] = 255
        return picture

    def move(self, action: Any) -> tuple[float, bool]:
        self.row = int(np.clip(self.row + int(action) - 1, 0, self.rows - 1))
        return 1 - abs(self.row - self.wanted) / 4, False


class Gauge(Small):
    """The pointer of a gauge in a picture is brought to the angle that a number asks for."""

    length, size = 30, 36
    observation_space = Dict({"gauge": Box(0, 255, (36, 36, 1), np.uint8), "wanted": vector(1)})
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def start(self) -> None:
        self.angle, self.wanted = self.np_random.uniform(-1, 1, 2)

    def look(self) -> Any:
        picture = np.zeros((self.size, self.size, 1), np.uint8)
        lengths = np.linspace(0, self.size / 2 - 1, self.size)
        middle, turn = self.size // 2, self.angle * np.pi / 2
        rows = np.int64(middle - lengths * np.cos(turn))
        picture[rows, np.int64(middle + lengths * np.sin(turn))] = 255
        return {"gauge": picture, "wanted": np.array([self.wanted], np.float32)}

    def move(self, action: Any) -> tuple[float, bool]:
        self.angle = float(np.clip(self.angle + 0.2 * np.clip(action[0], -1, 1), -1, 1))
        return -abs(self.angle - self.wanted), False


class Dice(Small):
    """A die is thrown again or what was thrown is kept; a one loses all of it."""

    observation_space, action_space = Discrete(41), Discrete(2)

    def start(self) -> None:
        self.thrown = 0

    def look(self) -> Any:
        return self.thrown

    def move(self, action: Any) -> tuple[float, bool]:
        if int(action) == 0:
            return float(self.thrown), True
        die = int(self.np_random.integers(1, 7))
        self.thrown = 0 if die == 1 else min(self.thrown + die, 40)
        return 0.0, die == 1


class NoisyArms(Small):
    """One env step: an arm whose reward is a number of what is seen, and as much noise."""

    length = 1
    observation_space, action_space = vector(4), Discrete(6)
    weights = np.random.default_rng(1).normal(size=(6, 4)) / 2

    def look(self) -> Any:
        self.seen = self.np_random.normal(size=4)
        return np.float32(self.seen)

    def move(self, action: Any) -> tuple[float, bool]:
        return float(self.weights[int(action)] @ self.seen + self.np_random.normal()), True


class Fishery(Small):
    """A share of the fish is caught each year; years differ, and few fish do not come back."""

    length = 50
    observation_space, action_space = vector(2), Discrete(5)

    def start(self) -> None:
        self.fish, self.last = self.np_random.uniform(0.3, 1.0), 0.0

    def look(self) -> Any:
        return np.array([self.fish, self.t / self.length], np.float32)

    def move(self, action: Any) -> tuple[float, bool]:
        catch = self.fish * int(action) / 8
        self.fish -= catch
        growth = 0.5 * self.fish * (1 - self.fish) * np.exp(self.np_random.normal(0, 0.5))
        self.fish += float(growth) - 0.02
        return catch, self.fish < 0.05


class ShakingHand(Small):
    """Eight shots at a target in the plane with a hand that shakes: a hit has reward 1."""

    length = 8
    observation_space, action_space = vector(2), Box(-1.0, 1.0, (2,), np.float32)

    def look(self) -> Any:
        self.target = self.np_random.uniform(-0.8, 0.8, 2)
        return np.float32(self.target)

    def move(self, action: Any) -> tuple[float, bool]:
        shot = np.clip(action, -1, 1) + self.np_random.normal(0, 0.15, 2)
        return float(np.linalg.norm(shot - self.target) < 0.3), False


class Ferry(Small):
    """A ferry crosses a river in gusts that drive it down, and is to land at a pier."""

    length = 60
    observation_space, action_space = Discrete(80), Discrete(3)

    def start(self) -> None:
        self.x, self.y = 0, int(self.np_random.integers(2, 6))

    def look(self) -> Any:
        return self.x * 8 + self.y

    def move(self, action: Any) -> tuple[float, bool]:
        driven = self.np_random.random() < 0.3
        y = self.y + int(action) - 1 - int(driven)
        self.x = min(self.x + int(self.np_random.random() < 0.6), 9)
        self.y = min(max(y, 0), 7)
        if y != self.y:
            return -1.0, True
        if self.x == 9:
            return (2.0 if self.y == 6 else 0.0), True
        return -0.02, False


class Road(Small):
    """A car on a winding road, seen from above in 40x40 pixels, is to stay in its middle."""

    length = 60
    observation_space, action_space = Box(0, 255, (40, 40, 1), np.uint8), Box(-1.0, 1.0, (1,))

    def start(self) -> None:
        self.phases, self.at = self.np_random.uniform(0, 2 * np.pi, 2), 0.0
        self.place = self.middle(0.0) + self.np_random.uniform(-4, 4)

    def middle(self, ahead: Any) -> Any:
        x = self.at + ahead
        return 20 + 7 * np.sin(x / 13 + self.phases[0]) + 4 * np.sin(x / 7 + self.phases[1])

    def look(self) -> Any:
        picture = np.zeros((40, 40, 1), np.uint8)
        far = np.abs(np.arange(40)[None] - self.middle(np.arange(39, -1, -1))[:, None])
        picture[far < 4] = 120
        column = int(np.clip(self.place, 1, 38))
        picture[37:, column - 1 : column + 2] = 255
        return picture

    def move(self, action: Any) -> tuple[float, bool]:
        self.at += 1.0
        self.place = float(np.clip(self.place + 2 * np.clip(action[0], -1, 1), 0, 39))
        distance = abs(self.place - self.middle(0.0))
        return 1 - distance / 4, distance > 8


class Berries(Small):
    """Ripe berries are to be gathered and others to be left, on a field of 42x42 pixels."""

    length = 40
    observation_space, action_space = Box(0, 255, (42, 42, 1), np.uint8), Discrete(5)

    def start(self) -> None:
        places = self.np_random.permutation(49)[:9]
        self.berries = {int(x): bool(i < 4) for i, x in enumerate(places[1:])}
        self.place = np.array(divmod(int(places[0]), 7))

    def look(self) -> Any:
        field = np.zeros((7, 7), np.uint8)
        for place, is_ripe in self.berries.items():
            field[divmod(place, 7)] = 170 if is_ripe else 80
        field[tuple(self.place)] = 255
        return np.kron(field, np.ones((6, 6), np.uint8))[..., None]

    def move(self, action: Any) -> tuple[float, bool]:
        step = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)][int(action)]
        self.place = np.clip(self.place + step, 0, 6)
        found = self.berries.pop(int(self.place[0] * 7 + self.place[1]), None)
        reward = 0.0 if found is None else 1.0 if found else -1.0
        return reward, not any(self.berries.values())


class Worm(Small):
    """Three links swim by the area that their two joints enclose; bent ones go in a circle."""

    observation_space, action_space = vector(7), Box(-1.0, 1.0, (2,), np.float32)

    def start(self) -> None:
        self.joints, self.rates = self.np_random.uniform(-0.1, 0.1, (2, 2))
        self.heading = self.np_random.uniform(-0.1, 0.1)
        self.pace = np.zeros(2)

    def look(self) -> Any:
        heading = np.cos(self.heading), np.sin(self.heading)
        return np.float32([*self.joints, *self.rates, *heading, np.linalg.norm(self.pace)])

    def move(self, action: Any) -> tuple[float, bool]:
        before = self.joints
        self.rates = 0.9 * self.rates + 0.04 * np.clip(action, -1, 1)
        self.joints = np.clip(before + self.rates, -1.5, 1.5)
        way = before[0] * self.joints[1] - before[1] * self.joints[0]
        self.heading += 0.02 * self.joints.sum() * np.abs(self.rates).sum() + 0.01 * before.sum()
        self.pace = way * np.array([np.cos(self.heading), np.sin(self.heading)])
        return float(10 * self.pace[0]), False


class Year(Small):
    """A house is kept warm through a year of a thousand env steps."""

    observation_space, action_space = vector(4), Box(-1.0, 1.0, (1,), np.float32)

    def start(self) -> None:
        self.inside, self.weather = self.np_random.uniform(15, 25), 0.0

    def look(self) -> Any:
        season = 2 * np.pi * self.t / 1000
        self.outside = 10 - 15 * np.cos(season) + self.weather
        return np.float32([self.inside, self.outside, np.sin(season), np.cos(season)])

    def move(self, action: Any) -> tuple[float, bool]:
        heat = float(np.clip(action[0], -1, 1))
        self.weather = 0.95 * self.weather + self.np_random.normal(0, 1)
        self.inside += 0.1 * (self.outside - self.inside) + 3 * heat
        return -abs(self.inside - 20) / 10 - 0.05 * abs(heat), False


class Voyage(Small):
    """A boat is steered through a calm, rapids, and a lake with wind: 1,000 env steps."""

    observation_space, action_space = vector(5), Discrete(3)

    def start(self) -> None:
        self.offset, self.drift, self.wind = self.np_random.uniform(-1, 1), 0.0, 0.0

    def look(self) -> Any:
        stage = (self.t < 300, 300 <= self.t < 650)
        return np.float32([self.offset, self.drift, self.wind, *stage])

    def move(self, action: Any) -> tuple[float, bool]:
        calm, rapids = self.t < 300, 300 <= self.t < 650
        self.wind = 0.0 if calm or rapids else 0.98 * self.wind + self.np_random.normal(0, 0.1)
        push = (int(action) - 1) * (0.05 if rapids else 0.02)
        rolls = 0.02 * self.offset + self.np_random.normal(0, 0.02) if rapids else 0.0
        self.drift = 0.95 * self.drift + push + rolls + 0.02 * self.wind
        self.offset = float(np.clip(self.offset + self.drift, -5, 5))
        return -abs(self.offset), False


class Camera(Small):
    """A camera on a rail is turned towards a walker who goes to and fro. Nothing ever ends."""

    observation_space, action_space = vector(4), Box(-1.0, 1.0, (1,), np.float32)

    def start(self) -> None:
        self.angle, self.rate = self.np_random.uniform(-1, 1), 0.0
        self.walker, self.pace = self.np_random.uniform(-1, 1), 0.0

    def look(self) -> Any:
        return np.float32([self.angle, self.rate, self.walker, self.pace])

    def move(self, action: Any) -> tuple[float, bool]:
        self.pace = 0.95 * self.pace - 0.005 * self.walker + self.np_random.normal(0, 0.01)
        self.walker += self.pace
        self.rate = 0.85 * self.rate + 0.03 * float(np.clip(action[0], -1, 1))
        self.angle = float(np.clip(self.angle + self.rate, -2, 2))
        return -((self.angle - self.walker) ** 2), False


class Shepherd(Small):
    """A dog of five ways runs beside a flock that moves on in a field. Nothing ever ends."""

    observation_space, action_space = vector(6), Discrete(5)
    ways = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)])

    def start(self) -> None:
        self.dog, self.flock = self.np_random.uniform(-5, 5, (2, 2))
        self.run = np.zeros(2)

    def look(self) -> Any:
        return np.float32([*self.dog, *self.run, *self.flock])

    def move(self, action: Any) -> tuple[float, bool]:
        self.run = 0.7 * self.run + 0.15 * self.ways[int(action)]
        self.dog = np.clip(self.dog + self.run, -8, 8)
        self.flock = np.clip(self.flock + self.np_random.normal(0, 0.15, 2), -6, 6)
        return -float(np.linalg.norm(self.dog - self.flock)) / 4, False


class Belt(Small):
    """A belt's speed is to be that of parcels, which changes by leaps. Nothing ever ends."""

    observation_space, action_space = vector(3), Discrete(3)

    def start(self) -> None:
        self.speed, self.parcels = self.np_random.uniform(0, 4, 2)
        self.motor = 0.0

    def look(self) -> Any:
        return np.float32([self.speed, self.motor, self.parcels])

    def move(self, action: Any) -> tuple[float, bool]:
        if self.np_random.random() < 0.02:
            self.parcels = self.np_random.uniform(0, 4)
        self.motor = 0.8 * self.motor + 0.1 * (int(action) - 1)
        self.speed = float(np.clip(self.speed + self.motor, 0, 6))
        return -abs(self.speed - self.parcels), False


# ---- the held-out set -------------------------------------------------------------------------


class Tracking(Small):
    """A cart of three pushes follows a target that wanders on a circle. Nothing ever ends."""

    observation_space, action_space = vector(4), Discrete(3)

    def start(self) -> None:
        self.place, self.speed = self.np_random.uniform(-1, 1), 0.0
        self.phase = self.np_random.uniform(0, 2 * np.pi)

    def look(self) -> Any:
        target = np.sin(self.phase), np.cos(self.phase)
        return np.array([self.place, self.speed, *target], np.float32)

    def move(self, action: Any) -> tuple[float, bool]:
        self.phase += 0.03 + self.np_random.normal(0, 0.02)
        self.speed = 0.9 * self.speed + 0.03 * (int(action) - 1)
        self.place = float(np.clip(self.place + self.speed, -3, 3))
        return -((self.place - np.sin(self.phase)) ** 2), False


class Corridor(Small):
    """A corridor of 16 cells with one reward, at its end; a random walk seldom gets there."""

    length, cells = 60, 16
    observation_space, action_space = Discrete(16), Discrete(2)

    def start(self) -> None:
        self.cell = 0

    def look(self) -> Any:
        return self.cell

    def move(self, action: Any) -> tuple[float, bool]:
        self.cell = max(0, self.cell + (1 if int(action) else -1))
        is_found = self.cell == self.cells - 1
        return float(is_found), is_found


class PictureAndPlace(Small):
    """The target is seen in a picture, one's own place is a number; both are in a `Dict`."""

    length, size = 20, 36
    observation_space = Dict({"picture": Box(0, 255, (36, 36, 1), np.uint8), "place": vector(1)})
    action_space = Discrete(3)

    def start(self) -> None:
        self.place, self.target = self.np_random.integers(0, 9, 2)

    def look(self) -> Any:
        picture = np.zeros((self.size, self.size, 1), np.uint8)
        picture[14:22, 4 * self.target : 4 * self.target + 4] = 255
        return {"picture": picture, "place": np.array([self.place / 4 - 1], np.float32)}

    def move(self, action: Any) -> tuple[float, bool]:
        self.place = np.clip(self.place + int(action) - 1, 0, 8)
        return -abs(float(self.place - self.target)) / 8, False


class ManyChoices(Small):
    """Five choices of 16 at once: each is to be the number observed for it."""

    length = 10
    observation_space, action_space = vector(5), MultiDiscrete([16] * 5)

    def look(self) -> Any:
        self.numbers = self.np_random.integers(0, 16, 5)
        return np.float32(self.numbers)

    def move(self, action: Any) -> tuple[float, bool]:
        return -float(np.mean(np.abs(np.asarray(action) - self.numbers))) / 15, False


class Switches(Small):
    """Eight switches turn lamps over, each its own lamp and the next one; all are to be lit."""

    length = 16
    observation_space, action_space = MultiBinary(8), MultiBinary(8)

    def start(self) -> None:
        switches = self.np_random.integers(0, 2, 8)
        self.lamps = 1 - (switches ^ np.roll(switches, 1))

    def look(self) -> Any:
        return self.lamps.astype(np.int8)

    def move(self, action: Any) -> tuple[float, bool]:
        pressed = np.asarray(action).astype(int)
        self.lamps = self.lamps ^ pressed ^ np.roll(pressed, 1)
        return float(np.mean(self.lamps)), False


class Catch(Small):
    """A ball falls through ten rows and is to be caught, seen in 40x40 pixels."""

    observation_space, action_space = Box(0, 255, (40, 40, 1), np.uint8), Discrete(3)

    def start(self) -> None:
        self.ball, self.paddle = int(self.np_random.integers(10)), 5

    def look(self) -> Any:
        cells = np.zeros((10, 10), np.uint8)
        cells[self.t, self.ball] = cells[9, self.paddle] = 255
        return np.kron(cells, np.ones((4, 4), np.uint8))[..., None]

    def move(self, action: Any) -> tuple[float, bool]:
        self.paddle = int(np.clip(self.paddle + int(action) - 1, 0, 9))
        is_down = self.t == 8
        return (1.0 if self.ball == self.paddle else -1.0) * is_down, is_down


class RecallTheFirst(Small):
    """One of four cues is shown first and asked for after seven env steps of noise."""

    length = 8
    observation_space, action_space = vector(6), Discrete(4)

    def start(self) -> None:
        self.cue = int(self.np_random.integers(4))

    def look(self) -> Any:
        seen = np.zeros(6, np.float32)
        seen[self.cue] = self.t == 0
        seen[4:] = self.t == 7, self.np_random.normal()
        return seen

    def move(self, action: Any) -> tuple[float, bool]:
        return float(self.t == 7 and int(action) == self.cue), self.t == 7


class OneThrow(Small):
    """One env step: a throw at a target that is seen, with an angle and a strength."""

    length = 1
    observation_space, action_space = vector(2), Box(-1.0, 1.0, (2,), np.float32)

    def look(self) -> Any:
        self.target = self.np_random.uniform(-1, 1, 2)
        return np.float32(10 * self.target)

    def move(self, action: Any) -> tuple[float, bool]:
        angle, strength = np.clip(action, -1, 1)
        lands = (strength + 1) * np.array([np.sin(angle * np.pi), np.cos(angle * np.pi)])
        return -float(np.linalg.norm(lands - self.target)), True


# ---- the second held-out set ------------------------------------------------------------------


class Ring(Small):
    """Twelve places in a ring; one of them, a quarter of the ring away, has the reward."""

    length, places = 30, 12
    observation_space, action_space = Discrete(12), Discrete(3)

    def start(self) -> None:
        self.place = int(self.np_random.integers(self.places))

    def look(self) -> Any:
        return self.place

    def move(self, action: Any) -> tuple[float, bool]:
        self.place = (self.place + int(action) - 1) % self.places
        return float(self.place == 3), False


class Inventory(Small):
    """A stock is refilled by orders that arrive two env steps later. Nothing ever ends."""

    observation_space, action_space = vector(4), Discrete(5)

    def start(self) -> None:
        self.stock, self.orders, self.season = 5, [0, 0], 0.0

    def look(self) -> Any:
        return np.array([self.stock, *self.orders, np.sin(self.season)], np.float32)

    def move(self, action: Any) -> tuple[float, bool]:
        self.season += 0.05
        self.orders = [int(action), *self.orders]
        demand = int(self.np_random.poisson(1.5 + np.sin(self.season)))
        self.stock = min(self.stock + self.orders.pop() - demand, 30)
        missed, self.stock = max(0, -self.stock), max(0, self.stock)
        return -0.1 * self.stock - float(missed), False


class Buoy(Small):
    """A buoy is held at its place against a current that turns slowly. Nothing ever ends."""

    observation_space, action_space = vector(4), Box(-1.0, 1.0, (2,), np.float32)

    def start(self) -> None:
        self.place, self.angle = self.np_random.uniform(-1, 1, 2), self.np_random.uniform(0, 6.3)

    def look(self) -> Any:
        return np.float32([*self.place, np.cos(self.angle), np.sin(self.angle)])

    def move(self, action: Any) -> tuple[float, bool]:
        self.angle += self.np_random.normal(0, 0.1)
        current = 0.05 * np.array([np.cos(self.angle), np.sin(self.angle)])
        self.place = np.clip(self.place + current + 0.1 * np.clip(action, -1, 1), -4, 4)
        return -float(np.linalg.norm(self.place)), False


class Levers(Small):
    """Four levers of three positions follow the one of eight signals that is shown."""

    length = 5
    observation_space, action_space = Discrete(8), MultiDiscrete([3] * 4)
    positions = np.random.default_rng(1).integers(0, 3, (8, 4))

    def look(self) -> Any:
        self.signal = int(self.np_random.integers(8))
        return self.signal

    def move(self, action: Any) -> tuple[float, bool]:
        return float(np.mean(np.asarray(action) == self.positions[self.signal])), False


class Signs(Small):
    """Six real numbers are seen; switches tell which of them are above the mean of all."""

    length = 10
    observation_space, action_space = vector(6), MultiBinary(6)

    def look(self) -> Any:
        self.numbers = self.np_random.normal(size=6)
        return np.float32(self.numbers)

    def move(self, action: Any) -> tuple[float, bool]:
        above = self.numbers > self.numbers.mean()
        return float(np.mean(np.asarray(action, bool) == above)), False


class Tanks(Small):
    """Two levels are brought to what a mode asks for; numbers and a choice in a `Dict`."""

    length = 40
    observation_space = Dict({"levels": vector(2), "mode": Discrete(3)})
    action_space = Box(-1.0, 1.0, (2,), np.float32)
    asked = np.array([[2.0, 8.0], [5.0, 5.0], [8.0, 2.0]])

    def start(self) -> None:
        self.levels, self.mode = self.np_random.uniform(0, 10, 2), int(self.np_random.integers(3))

    def look(self) -> Any:
        return {"levels": np.float32(self.levels), "mode": self.mode}

    def move(self, action: Any) -> tuple[float, bool]:
        self.levels = np.clip(self.levels + np.clip(action, -1, 1), 0, 10)
        return -float(np.mean(np.abs(self.levels - self.asked[self.mode]))), False


class Bar(Small):
    """A bar is to be under a light that is elsewhere in each episode, seen in 36x36 pixels."""

    length = 16
    observation_space, action_space = Box(0, 255, (36, 36, 3), np.uint8), Discrete(3)

    def start(self) -> None:
        self.light, self.bar = (int(x) for x in self.np_random.integers(0, 9, 2))

    def look(self) -> Any:
        picture = np.zeros((36, 36, 3), np.uint8)
        picture[:8, 4 * self.light : 4 * self.light + 4, 0] = 255
        picture[28:, 4 * self.bar : 4 * self.bar + 4, 1] = 255
        return picture

    def move(self, action: Any) -> tuple[float, bool]:
        self.bar = int(np.clip(self.bar + int(action) - 1, 0, 8))
        return float(self.bar == self.light), False


class WhichCameFirst(Small):
    """Two of three lamps flash, one after the other; at the end the first of them is asked for."""

    length = 7
    observation_space, action_space = vector(4), Discrete(3)

    def start(self) -> None:
        self.first, self.second = self.np_random.permutation(3)[:2]

    def look(self) -> Any:
        seen = np.zeros(4, np.float32)
        seen[self.first] = self.t == 1
        seen[self.second] = self.t == 3
        seen[3] = self.t == 6
        return seen

    def move(self, action: Any) -> tuple[float, bool]:
        return float(self.t == 6 and int(action) == self.first), self.t == 6


class Aim(Small):
    """One env step: three numbers are to be the products of pairs of those that are seen."""

    length = 1
    observation_space, action_space = vector(3), Box(-1.0, 1.0, (3,), np.float32)

    def look(self) -> Any:
        self.seen = self.np_random.uniform(-1, 1, 3)
        return np.float32(100 * self.seen)

    def move(self, action: Any) -> tuple[float, bool]:
        wanted = self.seen * np.roll(self.seen, 1)
        return -float(np.mean(np.abs(np.clip(action, -1, 1) - wanted))), True


# ---- the third held-out set -------------------------------------------------------------------


class KeyAndDoor(Small):
    """A key lies in one corner of 5x5 cells and a door in another; the door needs the key."""

    length, size = 60, 5
    observation_space, action_space = Discrete(50), Discrete(4)
    moves = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])

    def start(self) -> None:
        self.place, self.has_key = np.array([2, 2]), False

    def look(self) -> Any:
        return int(self.place @ [self.size, 1]) + 25 * self.has_key

    def move(self, action: Any) -> tuple[float, bool]:
        self.place = np.clip(self.place + self.moves[int(action)], 0, self.size - 1)
        self.has_key |= tuple(self.place) == (0, 0)
        is_out = self.has_key and tuple(self.place) == (4, 0)
        return float(is_out), is_out


class Spring(Small):
    """A weight on a spring that gusts set moving is to be calmed. Nothing ever ends."""

    observation_space, action_space = vector(2), Box(-1.0, 1.0, (1,), np.float32)

    def start(self) -> None:
        self.place, self.speed = self.np_random.uniform(-2, 2, 2)

    def look(self) -> Any:
        return np.array([self.place, self.speed], np.float32)

    def move(self, action: Any) -> tuple[float, bool]:
        push = 0.05 * float(np.clip(action[0], -1, 1)) - 0.02 * self.place
        if self.np_random.random() < 0.03:
            push += self.np_random.normal(0, 0.5)
        self.speed = 0.995 * self.speed + push
        self.place += self.speed
        return -(self.place**2) - self.speed**2, False


class Greenhouse(Small):
    """Heater, window or water: warmth and moisture are kept by day and night. Nothing ever ends."""

    observation_space, action_space = vector(4), Discrete(4)

    def start(self) -> None:
        self.warmth, self.moisture = self.np_random.uniform([10, 30], [30, 90])
        self.hour = self.np_random.uniform(0, 24)

    def look(self) -> Any:
        hour = np.sin(self.hour * np.pi / 12), np.cos(self.hour * np.pi / 12)
        return np.array([self.warmth, self.moisture, *hour], np.float32)

    def move(self, action: Any) -> tuple[float, bool]:
        self.hour = (self.hour + 0.25) % 24
        outside = 12 - 8 * np.cos(self.hour * np.pi / 12) + self.np_random.normal()
        heat, air, water = (int(action) == x for x in (1, 2, 3))
        self.warmth += heat + (0.02 + 0.1 * air) * (outside - self.warmth)
        self.moisture += 3 * water - 0.02 * self.warmth - 2 * air
        self.moisture = float(np.clip(self.moisture, 0, 100))
        return -abs(self.warmth - 22) / 10 - abs(self.moisture - 60) / 40, False


class Largest(Small):
    """One env step: which of six numbers is the largest."""

    length = 1
    observation_space, action_space = vector(6), Discrete(6)

    def look(self) -> Any:
        self.numbers = self.np_random.normal(size=6)
        return np.float32(self.numbers)

    def move(self, action: Any) -> tuple[float, bool]:
        return float(int(action) == self.numbers.argmax()), False


class Pairs(Small):
    """Eight bits are seen; switches tell which of four pairs of them differ."""

    length = 10
    observation_space, action_space = MultiBinary(8), MultiBinary(4)

    def look(self) -> Any:
        self.bits = self.np_random.integers(0, 2, 8).astype(np.int8)
        return self.bits

    def move(self, action: Any) -> tuple[float, bool]:
        return float(np.mean(np.asarray(action) == self.bits[:4] ^ self.bits[4:])), False


class Dials(Small):
    """Three dials are turned by one mark, to where three numbers say."""

    length = 20
    observation_space, action_space = vector(6), MultiDiscrete([3, 3, 3])

    def start(self) -> None:
        self.dials, self.wanted = self.np_random.integers(0, 10, (2, 3))

    def look(self) -> Any:
        return np.float32([*self.dials, *self.wanted])

    def move(self, action: Any) -> tuple[float, bool]:
        self.dials = np.clip(self.dials + np.asarray(action) - 1, 0, 9)
        return -float(np.abs(self.dials - self.wanted).mean()) / 10, False


class Parcel(Small):
    """A parcel is fetched and brought away; heavy ones are slow. Places and a load in a `Dict`."""

    length = 50
    observation_space = Dict({"place": vector(2), "goal": vector(2), "load": Discrete(3)})
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def start(self) -> None:
        self.place, self.goal = self.np_random.uniform(-5, 5, (2, 2))
        self.load = 0

    def look(self) -> Any:
        return {"place": np.float32(self.place), "goal": np.float32(self.goal), "load": self.load}

    def move(self, action: Any) -> tuple[float, bool]:
        self.place = self.place + np.clip(action, -1, 1) / (1 + self.load)
        distance = float(np.linalg.norm(self.place - self.goal))
        if distance > 0.7:
            return -0.02 * distance, False
        is_brought, self.load = self.load > 0, int(self.np_random.integers(1, 3))
        self.goal = self.np_random.uniform(-5, 5, 2)
        return 2.0 if is_brought else 1.0, is_brought


class Flashes(Small):
    """A lamp flashes up to three times; then their number is asked for."""

    length = 8
    observation_space, action_space = vector(2), Discrete(4)

    def start(self) -> None:
        self.number = int(self.np_random.integers(4))
        self.times = self.np_random.permutation(6)[: self.number]

    def look(self) -> Any:
        return np.float32([self.t in self.times, self.t == 7])

    def move(self, action: Any) -> tuple[float, bool]:
        return float(self.t == 7 and int(action) == self.number), self.t == 7


class WalkToGoal(Small):
    """A walk to a goal around a wall with one gap, seen in 42x42 pixels in colours."""

    length, cells = 30, 7
    observation_space, action_space = Box(0, 255, (42, 42, 3), np.uint8), Discrete(4)
    moves = KeyAndDoor.moves

    def start(self) -> None:
        self.gap = int(self.np_random.integers(self.cells))
        self.place, self.goal = self.np_random.integers([0, 4], [self.cells, 7], (2, 2))
        self.place[1] = self.np_random.integers(3)

    def look(self) -> Any:
        cells = np.zeros((self.cells, self.cells, 3), np.uint8)
        cells[:, 3, 2] = 255
        cells[self.gap, 3, 2] = 0
        cells[tuple(self.place)][0] = cells[tuple(self.goal)][1] = 255
        return np.kron(cells, np.ones((6, 6, 1), np.uint8))

    def move(self, action: Any) -> tuple[float, bool]:
        there = np.clip(self.place + self.moves[int(action)], 0, self.cells - 1)
        if there[1] != 3 or there[0] == self.gap:
            self.place = there
        is_there = tuple(self.place) == tuple(self.goal)
        return 1.0 if is_there else -0.03, is_there


class Dodge(Small):
    """Blocks fall, and the one below is not to be hit, seen in 36x36 pixels."""

    length, cells = 40, 9
    observation_space, action_space = Box(0, 255, (36, 36, 1), np.uint8), Discrete(3)

    def start(self) -> None:
        self.place, self.blocks = 4, np.zeros((self.cells, self.cells), np.uint8)

    def look(self) -> Any:
        cells = self.blocks * 120
        cells[-1, self.place] += 135
        return np.kron(cells, np.ones((4, 4), np.uint8))[..., None]

    def move(self, action: Any) -> tuple[float, bool]:
        self.place = int(np.clip(self.place + int(action) - 1, 0, self.cells - 1))
        self.blocks = np.roll(self.blocks, 1, 0)
        self.blocks[0] = self.np_random.random(self.cells) < 0.3 * (self.t % 2)
        is_hit = bool(self.blocks[-1, self.place])
        return 0.0 if is_hit else 1.0, is_hit


# ---- the fourth held-out set ------------------------------------------------------------------


class Ladder(Small):
    """Twelve rungs: a step is nearly safe, a leap is as likely to miss as not and may fall."""

    length = 40
    observation_space, action_space = Discrete(13), Discrete(2)

    def start(self) -> None:
        self.rung = 0

    def look(self) -> Any:
        return self.rung

    def move(self, action: Any) -> tuple[float, bool]:
        chance = self.np_random.random()
        if int(action) == 0:
            self.rung += int(chance < 0.3)
        elif chance < 0.4:
            self.rung = min(self.rung + 2, 12)
        elif chance > 0.8:
            self.rung = 0
        return float(self.rung == 12), self.rung == 12


class Cruise(Small):
    """A car in hills is to keep a speed that is asked for. Nothing ever ends."""

    observation_space, action_space = vector(3), Box(-1.0, 1.0, (1,), np.float32)

    def start(self) -> None:
        self.speed, self.place = self.np_random.uniform(0, 10), self.np_random.uniform(0, 100)
        self.asked = self.np_random.uniform(5, 25)

    def look(self) -> Any:
        return np.array([self.speed, self.asked, np.sin(self.place / 20)], np.float32)

    def move(self, action: Any) -> tuple[float, bool]:
        if self.np_random.random() < 0.01:
            self.asked = self.np_random.uniform(5, 25)
        push = 3 * float(np.clip(action[0], -1, 1)) - np.sin(self.place / 20)
        self.speed = max(0.0, self.speed + 0.3 * (push - 0.003 * self.speed**2))
        self.place += 0.3 * self.speed
        return -abs(self.speed - self.asked) / 10, False


class Chase(Small):
    """A hunter with inertia stays with a prey that wanders in a square. Nothing ever ends."""

    observation_space, action_space = vector(6), Box(-1.0, 1.0, (2,), np.float32)

    def start(self) -> None:
        self.hunter, self.prey = self.np_random.uniform(-3, 3, (2, 2))
        self.speed = np.zeros(2)

    def look(self) -> Any:
        return np.float32([*self.hunter, *self.speed, *self.prey])

    def move(self, action: Any) -> tuple[float, bool]:
        self.speed = 0.8 * self.speed + 0.1 * np.clip(action, -1, 1)
        self.hunter = np.clip(self.hunter + self.speed, -4, 4)
        self.prey = np.clip(self.prey + self.np_random.normal(0, 0.1, 2), -3, 3)
        return -float(np.linalg.norm(self.hunter - self.prey)), False


class Junction(Small):
    """Cars wait in two streets; to change the light costs two env steps. Nothing ever ends."""

    observation_space, action_space = vector(4), Discrete(2)

    def start(self) -> None:
        self.cars, self.light, self.waits = self.np_random.integers(0, 8, 2), 0, 0

    def look(self) -> Any:
        return np.float32([*self.cars, self.light, self.waits])

    def move(self, action: Any) -> tuple[float, bool]:
        if int(action) != self.light and not self.waits:
            self.light, self.waits = int(action), 3
        self.waits = max(0, self.waits - 1)
        if not self.waits:
            self.cars[self.light] = max(0, self.cars[self.light] - 2)
        arrived = self.np_random.random(2) < [0.5, 0.25]
        self.cars = np.minimum(self.cars + arrived, 40)
        return -float(self.cars.sum()) / 10, False


class Mixer(Small):
    """Three colours are changed by up to two steps each, to a colour that is shown."""

    length = 20
    observation_space, action_space = vector(6), MultiDiscrete([5, 5, 5])

    def start(self) -> None:
        self.colour, self.wanted = self.np_random.uniform(-1, 1, (2, 3))

    def look(self) -> Any:
        return np.float32([*self.colour, *self.wanted])

    def move(self, action: Any) -> tuple[float, bool]:
        self.colour = self.colour + 0.1 * (np.asarray(action) - 2)
        return -float(np.abs(self.colour - self.wanted).mean()), False


class Slopes(Small):
    """Seven numbers are seen; switches tell where they rise."""

    length = 8
    observation_space, action_space = vector(7), MultiBinary(6)

    def look(self) -> Any:
        self.numbers = self.np_random.normal(size=7)
        return np.float32(self.numbers)

    def move(self, action: Any) -> tuple[float, bool]:
        return float(np.mean(np.asarray(action) == (np.diff(self.numbers) > 0))), False


class Oven(Small):
    """An oven is brought to the heat of a dish, and burns it above; both in a `Dict`."""

    length = 40
    observation_space = Dict({"heat": vector(2), "dish": Discrete(4)})
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def start(self) -> None:
        self.heat, self.trend = self.np_random.uniform(0, 0.5), 0.0
        self.dish = int(self.np_random.integers(4))

    def look(self) -> Any:
        return {"heat": np.float32([self.heat, self.trend]), "dish": self.dish}

    def move(self, action: Any) -> tuple[float, bool]:
        self.trend = 0.8 * self.trend + 0.05 * float(np.clip(action[0], -1, 1))
        self.heat += self.trend + self.np_random.normal(0, 0.01)
        distance = self.heat - (0.8 + 0.4 * self.dish)
        return 1 - min(1.0, abs(distance)), distance > 0.3


class Offer(Small):
    """One env step: a price for a thing whose worth is seen in part; it is paid, or it is not."""

    length = 1
    observation_space, action_space = vector(3), Box(0.0, 3.0, (1,), np.float32)

    def look(self) -> Any:
        self.signs = self.np_random.uniform(0, 1, 3)
        return np.float32(self.signs)

    def move(self, action: Any) -> tuple[float, bool]:
        price = float(np.clip(action[0], 0, 3))
        worth = self.signs.sum() + self.np_random.normal(0, 0.3)
        return price if price < worth else 0.0, True


class TwoAgo(Small):
    """Four symbols come one after the other; the one of two env steps ago is to be named."""

    length = 16
    observation_space, action_space = Discrete(4), Discrete(4)

    def start(self) -> None:
        self.shown: list[int] = []

    def look(self) -> Any:
        self.shown.append(int(self.np_random.integers(4)))
        return self.shown[-1]

    def move(self, action: Any) -> tuple[float, bool]:
        return float(len(self.shown) > 2 and int(action) == self.shown[-3]), False


class Crosshair(Small):
    """A cross is moved onto a bright spot that drifts, seen in 40x40 pixels."""

    length = 25
    observation_space, action_space = Box(0, 255, (40, 40, 1), np.uint8), MultiDiscrete([3, 3])

    def start(self) -> None:
        self.cross, self.spot = self.np_random.integers(4, 36, (2, 2))

    def look(self) -> Any:
        picture = np.zeros((40, 40, 1), np.uint8)
        row, column = self.spot
        picture[row - 3 : row + 4, column - 3 : column + 4] = 100
        picture[self.cross[0], :] += 100
        picture[:, self.cross[1]] += 50
        return picture

    def move(self, action: Any) -> tuple[float, bool]:
        self.cross = np.clip(self.cross + 3 * (np.asarray(action) - 1), 0, 39)
        self.spot = np.clip(self.spot + self.np_random.integers(-1, 2, 2), 3, 36)
        return -float(np.abs(self.cross - self.spot).sum()) / 40, False


class Fuller(Small):
    """One env step: which half of a picture in 36x36 pixels has more dots."""

    length = 1
    observation_space, action_space = Box(0, 255, (36, 36, 1), np.uint8), Discrete(2)

    def look(self) -> Any:
        dots = self.np_random.random((36, 36, 1)) < 0.1
        more = int(self.np_random.integers(2))
        dots[:, 18 * more : 18 * more + 18] |= self.np_random.random((36, 18, 1)) < 0.05
        self.fuller = int(dots[:, 18:].sum() > dots[:, :18].sum())
        return dots.astype(np.uint8) * 200

    def move(self, action: Any) -> tuple[float, bool]:
        return float(int(action) == self.fuller), True


# ---- the fifth held-out set -------------------------------------------------------------------


class Bridge(Small):
    """A bridge of ten planks in the wind: to walk is quick, to crawl is safe from falling off."""

    length = 30
    observation_space, action_space = Discrete(11), Discrete(3)

    def start(self) -> None:
        self.plank = 0

    def look(self) -> Any:
        return self.plank

    def move(self, action: Any) -> tuple[float, bool]:
        if int(action) == 0:  # stand
            return 0.0, False
        chance = self.np_random.random()
        if int(action) == 1:
            self.plank += int(chance < 0.5)
        elif chance < 0.15:
            return -1.0, True
        else:
            self.plank += 1
        return float(self.plank == 10), self.plank == 10


class Boiler(Small):
    """Steam is drawn from a boiler; fire and valve keep its pressure. Nothing ever ends."""

    observation_space, action_space = vector(3), Box(-1.0, 1.0, (2,), np.float32)

    def start(self) -> None:
        self.pressure, self.heat, self.drawn = self.np_random.uniform(2, 8), 1.0, 1.0

    def look(self) -> Any:
        return np.float32([self.pressure, self.heat, self.drawn])

    def move(self, action: Any) -> tuple[float, bool]:
        fire, valve = np.clip(action, -1, 1)
        self.heat = 0.9 * self.heat + 0.1 * (1 + fire)
        self.drawn = float(np.clip(self.drawn + self.np_random.normal(0, 0.1), 0, 2))
        self.pressure += 0.5 * self.heat - 0.4 * self.drawn - 0.2 * max(0.0, valve)
        self.pressure = float(np.clip(self.pressure, 0, 20))
        return -abs(self.pressure - 5) - 0.1 * max(0.0, valve), False


class Satellite(Small):
    """A satellite is kept in a direction by jets that push or do not. Nothing ever ends."""

    observation_space, action_space = vector(3), Discrete(3)

    def start(self) -> None:
        self.angle, self.turn = self.np_random.uniform(-np.pi, np.pi), 0.0

    def look(self) -> Any:
        return np.float32([np.cos(self.angle), np.sin(self.angle), self.turn])

    def move(self, action: Any) -> tuple[float, bool]:
        push = int(action) - 1
        self.turn += 0.05 * push + self.np_random.normal(0, 0.005)
        self.turn = float(np.clip(self.turn, -0.5, 0.5))
        self.angle += self.turn
        return float(np.cos(self.angle)) - 1 - 0.05 * abs(push), False


class Lift(Small):
    """A lift with room for all serves five floors. Nothing ever ends."""

    observation_space, action_space = vector(11), Discrete(3)

    def start(self) -> None:
        self.waiting, self.inside, self.floor = np.zeros(5), np.zeros(5), 0

    def look(self) -> Any:
        return np.float32([*self.waiting, *self.inside, self.floor])

    def move(self, action: Any) -> tuple[float, bool]:
        self.floor = int(np.clip(self.floor + int(action) - 1, 0, 4))
        self.inside[self.floor] = 0
        for _ in range(int(self.waiting[self.floor])):
            self.inside[self.np_random.integers(5)] += 1
        self.waiting[self.floor] = self.inside[self.floor] = 0
        if self.np_random.random() < 0.3:
            place = self.np_random.integers(5)
            self.waiting[place] = min(9, self.waiting[place] + 1)
        return -float(self.waiting.sum() + self.inside.sum()) / 10, False


class Panel(Small):
    """Four sliders of seven places each are to add up to a number, without moving them far."""

    length = 12
    observation_space, action_space = vector(5), MultiDiscrete([7, 7, 7, 7])

    def start(self) -> None:
        self.places, self.wanted = self.np_random.uniform(-3, 3, 4), self.np_random.uniform(-6, 6)

    def look(self) -> Any:
        return np.float32([*self.places, self.wanted])

    def move(self, action: Any) -> tuple[float, bool]:
        places = np.asarray(action) - 3.0
        moved, self.places = np.abs(places - self.places).mean(), places
        return -abs(float(places.sum()) - self.wanted) / 6 - 0.1 * float(moved), False


class Votes(Small):
    """Nine numbers are seen; switches tell which of them are among the four largest."""

    length = 8
    observation_space, action_space = vector(9), MultiBinary(9)

    def look(self) -> Any:
        self.numbers = self.np_random.normal(size=9)
        return np.float32(self.numbers)

    def move(self, action: Any) -> tuple[float, bool]:
        largest = self.numbers >= np.sort(self.numbers)[-4]
        return float(np.mean(np.asarray(action, bool) == largest)), False


class Pilot(Small):
    """A boat is brought to one of three harbours across a current; both in a `Dict`."""

    length = 50
    observation_space = Dict({"boat": vector(4), "harbour": Discrete(3)})
    action_space = Discrete(5)

    def start(self) -> None:
        self.place, self.speed = self.np_random.uniform(-1, 1, 2), np.zeros(2)
        self.harbour = int(self.np_random.integers(3))

    def look(self) -> Any:
        return {"boat": np.float32([*self.place, *self.speed]), "harbour": self.harbour}

    def move(self, action: Any) -> tuple[float, bool]:
        push = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)][int(action)])
        self.speed = 0.85 * self.speed + 0.04 * push
        current = np.array([0.0, 0.02 * np.sin(3 * self.place[0])])
        self.place = np.clip(self.place + self.speed + current, -2, 2)
        goal = np.array([(1.5, 0.0), (-1.0, 1.2), (-1.0, -1.2)][self.harbour])
        distance = float(np.linalg.norm(self.place - goal))
        return 2.0 if distance < 0.2 else -0.02 * distance, distance < 0.2


class Span(Small):
    """One env step: an interval around a number that is seen with noise; narrow ones pay more."""

    length = 1
    observation_space, action_space = vector(2), Box(-3.0, 3.0, (2,), np.float32)

    def look(self) -> Any:
        self.number, spread = self.np_random.uniform(-2, 2), self.np_random.uniform(0.1, 1)
        self.hidden = self.number + self.np_random.normal(0, spread)
        return np.float32([self.number, spread])

    def move(self, action: Any) -> tuple[float, bool]:
        low, high = np.sort(np.clip(action, -3, 3))
        return (2 - float(high - low) / 2 if low <= self.hidden <= high else 0.0), True


class Parity(Small):
    """Bits come one after the other; whether the ones so far are odd is to be told each time."""

    length = 12
    observation_space, action_space = Discrete(2), Discrete(2)

    def start(self) -> None:
        self.odd = 0

    def look(self) -> Any:
        bit = int(self.np_random.integers(2))
        self.odd ^= bit
        return bit

    def move(self, action: Any) -> tuple[float, bool]:
        return float(int(action) == self.odd), False


class Basket(Small):
    """A basket goes to where a ball will land that flies in an arc, seen in 40x40 pixels."""

    length = 60
    observation_space, action_space = Box(0, 255, (40, 40, 2), np.uint8), Discrete(3)

    def start(self) -> None:
        self.basket = 20
        self.throw()

    def throw(self) -> None:
        self.ball = np.array([30.0, self.np_random.uniform(5, 35)])
        self.speed = np.array([-2.6, self.np_random.uniform(-1, 1)])
        self.before = self.picture()

    def picture(self) -> Any:
        picture = np.zeros((40, 40, 1), np.uint8)
        row, column = np.clip(self.ball, 1, 38).astype(int)
        picture[row - 1 : row + 2, column - 1 : column + 2] = 255
        picture[38:, max(0, self.basket - 4) : self.basket + 5] = 150
        return picture

    def look(self) -> Any:
        now = self.picture()
        both, self.before = np.concatenate([now, self.before], -1), now
        return both

    def move(self, action: Any) -> tuple[float, bool]:
        self.basket = int(np.clip(self.basket + 3 * (int(action) - 1), 4, 35))
        self.speed[0] += 0.25
        self.ball += self.speed
        self.ball[1] = np.clip(self.ball[1], 1, 38)
        if self.ball[0] < 37:
            return 0.0, False
        reward = 1.0 if abs(self.ball[1] - self.basket) <= 4 else -1.0
        self.throw()
        return reward, False


class Tilt(Small):
    """One env step: the slope of a bar in 36x36 pixels, by one of five numbers."""

    length = 1
    observation_space, action_space = Box(0, 255, (36, 36, 1), np.uint8), Discrete(5)

    def look(self) -> Any:
        self.slope = int(self.np_random.integers(5))
        angle = (self.slope - 2) * np.pi / 5 + self.np_random.uniform(-0.15, 0.15)
        rows, columns = np.mgrid[-18:18, -18:18] - self.np_random.uniform(-4, 4, (2, 1, 1))
        bar = np.abs(rows * np.cos(angle) - columns * np.sin(angle)) < 2.5
        return (bar[..., None] * 200 + self.np_random.integers(0, 40, (36, 36, 1))).astype(np.uint8)

    def move(self, action: Any) -> tuple[float, bool]:
        return -abs(int(action) - self.slope) / 4, True


# ---- the sixth held-out set -------------------------------------------------------------------


class Shafts(Small):
    """A mine with a little ore at the near end of a gallery, and much at the far end."""

    length = 40
    observation_space, action_space = Discrete(14), Discrete(2)

    def start(self) -> None:
        self.place = 4

    def look(self) -> Any:
        return self.place

    def move(self, action: Any) -> tuple[float, bool]:
        slips = self.np_random.random() < 0.1
        self.place += 1 if bool(action) != slips else -1
        return {0: 0.2, 13: 1.0}.get(self.place, 0.0), self.place in (0, 13)


class Kite(Small):
    """A kite in a wind that changes is kept at a height by line and tilt. Nothing ever ends."""

    observation_space, action_space = vector(4), Box(-1.0, 1.0, (2,), np.float32)

    def start(self) -> None:
        self.height, self.climb = self.np_random.uniform(0, 20), 0.0
        self.tilt, self.wind = 0.0, self.np_random.uniform(0.5, 1.5)

    def look(self) -> Any:
        return np.float32([self.height, self.climb, self.tilt, self.wind])

    def move(self, action: Any) -> tuple[float, bool]:
        line, tilt = np.clip(action, -1, 1)
        self.wind = 1 + 0.97 * (self.wind - 1) + self.np_random.normal(0, 0.05)
        self.tilt = float(np.clip(self.tilt + 0.1 * tilt, -1, 1))
        lift = self.wind * (0.5 + 0.5 * self.tilt) - 0.5
        self.climb = 0.9 * self.climb + 0.2 * lift + 0.1 * line
        self.height = float(np.clip(self.height + self.climb, 0, 30))
        return -abs(self.height - 12) / 10 - 0.02 * line**2, False


class Crane(Small):
    """A load that swings is held over a ship that heaves to and fro. Nothing ever ends."""

    observation_space, action_space = vector(6), Discrete(3)

    def start(self) -> None:
        self.trolley, self.phase = (
            self.np_random.uniform(-2, 2),
            self.np_random.uniform(0, 2 * np.pi),
        )
        self.speed, self.swing, self.rate = 0.0, 0.0, 0.0

    def look(self) -> Any:
        self.ship = np.sin(self.phase)
        ship = self.ship, np.cos(self.phase)
        return np.float32([self.trolley, self.speed, self.swing, self.rate, *ship])

    def move(self, action: Any) -> tuple[float, bool]:
        push = 0.03 * (int(action) - 1)
        self.phase += 0.04 + self.np_random.normal(0, 0.01)
        self.speed = 0.92 * self.speed + push
        self.trolley = float(np.clip(self.trolley + self.speed, -3, 3))
        self.rate = 0.97 * self.rate - 0.1 * self.swing - push
        self.swing += self.rate
        return -abs(self.trolley + self.swing - self.ship), False


class Battery(Small):
    """A battery is charged and sold by a price that follows the day. Nothing ever ends."""

    observation_space, action_space = vector(4), Discrete(3)

    def start(self) -> None:
        self.level, self.noise = self.np_random.uniform(0, 10), 0.0
        self.hour = self.np_random.uniform(0, 24)

    def look(self) -> Any:
        day = 2 * np.pi * self.hour / 24
        self.price = 3 + 2 * np.sin(day) + self.noise
        return np.float32([self.level, self.price, np.sin(day), np.cos(day)])

    def move(self, action: Any) -> tuple[float, bool]:
        flow = min(max(float(int(action) - 1), -self.level), 10 - self.level)
        self.level += flow
        reward = -self.price * flow * (1.1 if flow > 0 else 0.9) / 3
        self.noise = 0.9 * self.noise + self.np_random.normal(0, 0.3)
        self.hour += 0.5
        return reward, False


class Watches(Small):
    """Three watches are turned to a time that is shown, an hour to and fro or not at all."""

    length = 20
    observation_space, action_space = vector(8), MultiDiscrete([3, 3, 3])

    def start(self) -> None:
        self.hours, self.time = self.np_random.integers(0, 12, 3), self.np_random.integers(12)

    def look(self) -> Any:
        angles = 2 * np.pi * np.array([*self.hours, self.time]) / 12
        return np.float32([*np.cos(angles), *np.sin(angles)])

    def move(self, action: Any) -> tuple[float, bool]:
        self.hours = (self.hours + np.asarray(action) - 1) % 12
        apart = np.abs(self.hours - self.time)
        return -float(np.minimum(apart, 12 - apart).sum()) / 6, False


class Lanterns(Small):
    """Eight lanterns stand in a circle; those near a walker are to be lit, and no other one."""

    length = 20
    observation_space, action_space = vector(3), MultiBinary(8)

    def start(self) -> None:
        self.angle, self.reach = self.np_random.uniform(0, 2 * np.pi), 1.0

    def look(self) -> Any:
        return np.float32([np.cos(self.angle), np.sin(self.angle), self.reach])

    def move(self, action: Any) -> tuple[float, bool]:
        apart = np.cos(self.angle - np.arange(8) * np.pi / 4)
        reward = float(np.mean(np.asarray(action, bool) == (apart > np.cos(self.reach))))
        self.angle += self.np_random.normal(0.2, 0.2)
        self.reach = self.np_random.uniform(0.3, 1.5)
        return reward, False


class Garden(Small):
    """Three plants dry, faster in the sun; a can waters one of them and is filled again."""

    length = 60
    observation_space = Dict({"dry": vector(3), "can": vector(1), "weather": Discrete(2)})
    action_space = Discrete(5)

    def start(self) -> None:
        self.dry, self.can, self.sun = self.np_random.uniform(0, 1, 3), 2, 1

    def look(self) -> Any:
        return {"dry": np.float32(self.dry), "can": np.float32([self.can]), "weather": self.sun}

    def move(self, action: Any) -> tuple[float, bool]:
        chosen = int(action)
        if chosen < 3 and self.can:
            self.dry[chosen], self.can = max(0.0, self.dry[chosen] - 0.6), self.can - 1
        if chosen == 3:
            self.can = 3
        if self.np_random.random() < 0.1:
            self.sun = 1 - self.sun
        self.dry = np.minimum(self.dry + np.array([0.05, 0.08, 0.12]) * (0.5 + self.sun), 2)
        return -float((self.dry**2).sum()) / 3, False


class Lens(Small):
    """One env step: focus and aperture for a distance, in a light that is dim or bright."""

    length = 1
    observation_space, action_space = vector(2), Box(0.0, 4.0, (2,), np.float32)

    def look(self) -> Any:
        self.distance, self.light = self.np_random.uniform(0.5, 3.5), self.np_random.uniform(0.2, 1)
        return np.float32([self.distance, self.light])

    def move(self, action: Any) -> tuple[float, bool]:
        focus, aperture = np.clip(action, 0, 4)
        blur = abs(float(focus) - self.distance) * float(aperture)
        return 1 - blur - abs(float(aperture) * self.light - 1), True


class Bell(Small):
    """Colours come one after the other; the one at which a bell rang is to be named at the end."""

    length = 8
    observation_space, action_space = vector(5), Discrete(3)

    def start(self) -> None:
        self.rings = int(self.np_random.integers(self.length - 1))

    def look(self) -> Any:
        colour, rings = int(self.np_random.integers(3)), self.t == self.rings
        if rings:
            self.named = colour
        return np.float32([*np.eye(3)[colour], rings, self.t == self.length - 1])

    def move(self, action: Any) -> tuple[float, bool]:
        return float(self.t == self.length - 1 and int(action) == self.named), False


class Pointer(Small):
    """A pointer is turned to a mark that wanders round its dial, seen in 40x40 pixels."""

    length = 25
    observation_space, action_space = Box(0, 255, (40, 40, 1), np.uint8), Discrete(3)

    def start(self) -> None:
        self.pointer, self.mark = self.np_random.uniform(0, 2 * np.pi, 2)

    def look(self) -> Any:
        picture = np.zeros((40, 40, 1), np.uint8)
        for length in np.linspace(0, 12, 25):
            row = 20 + length * np.sin(self.pointer)
            picture[int(row), int(20 + length * np.cos(self.pointer))] = 255
        row, column = int(20 + 16 * np.sin(self.mark)), int(20 + 16 * np.cos(self.mark))
        picture[row - 2 : row + 3, column - 2 : column + 3] = 150
        return picture

    def move(self, action: Any) -> tuple[float, bool]:
        self.pointer += 0.35 * (int(action) - 1)
        self.mark += self.np_random.normal(0, 0.15)
        return float(np.cos(self.pointer - self.mark)), False


class Blobs(Small):
    """One env step: how many blobs, one to four, are in a picture of 36x36 pixels."""

    length = 1
    observation_space, action_space = Box(0, 255, (36, 36, 1), np.uint8), Discrete(4)

    def look(self) -> Any:
        picture = self.np_random.integers(0, 40, (36, 36, 1), dtype=np.uint8)
        self.count = int(self.np_random.integers(1, 5))
        for cell in self.np_random.permutation(9)[: self.count]:
            row, column = 12 * np.array(divmod(int(cell), 3)) + self.np_random.integers(0, 6, 2)
            picture[row : row + 6, column : column + 6] = 200
        return picture

    def move(self, action: Any) -> tuple[float, bool]:
        return float(int(action) + 1 == self.count), True
