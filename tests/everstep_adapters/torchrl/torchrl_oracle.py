"""Rows of a wrapped environment beside TorchRL's own, and the deeds that errors advise."""

import re
from ast import literal_eval
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, Transform, TransformedEnv

from everstep.errors import AdapterError
from everstep_adapters import TorchRLEnv

Make = Callable[[], EnvBase]

#: Env steps of a comparison. The mocks' episodes have 5 or 6.
STEPS = 20


class Pad(Transform):
    """The leaf of a key with the shape of one row; the rest of it is zero.

    Actions of several agents are cut back to those of each.
    """

    def __init__(self, key: tuple[str, ...], shape: tuple[int, ...]) -> None:
        super().__init__(in_keys=[key], out_keys=[key])
        self.key, self.shape = key, shape

    def _pad(self, data: TensorDictBase) -> TensorDictBase:
        values = data.get(self.key, None)
        if values is None:  # an action, whose zeros at the end the environment may see
            return data
        padded = values.new_zeros(*data.batch_size, *self.shape)
        padded[tuple(map(slice, values.shape))] = values
        return data.set(self.key, padded)

    _call = _pad

    def _reset(self, tensordict: Any, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._pad(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        if self.key in map(tuple_of, observation_spec.keys(True, True)):
            shape = torch.Size([*observation_spec.shape, *self.shape])
            observation_spec[self.key] = Bounded(-1e3, 1e3, shape)
        return observation_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        actions = input_spec["full_action_spec"]
        if self.key in map(tuple_of, actions.keys(True, True)):
            shape = torch.Size([*actions.shape, *self.shape])
            group = Composite(action=Bounded(-1, 1, shape), shape=shape[:-1])
            input_spec["full_action_spec"] = Composite({self.key[0]: group}, shape=actions.shape)
        return input_spec


class SumRewards(Transform):
    """One reward a row: the sum of a key that has more."""

    def __init__(self, key: tuple[str, ...]) -> None:
        super().__init__(in_keys=[key], out_keys=["reward"])
        self.key = key

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        shape = (*next_tensordict.batch_size, -1)
        summed = next_tensordict.get(self.key).reshape(shape).sum(-1, keepdim=True)
        return next_tensordict.set("reward", summed)

    def _reset(self, tensordict: Any, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        shape = reward_spec.shape
        return Composite(reward=Unbounded((*shape, 1)), shape=shape)


class RootDone(Transform):
    """A flag at the root: whether any of a key's flags is set. Resets are passed on to them."""

    def __init__(self, key: tuple[str, ...]) -> None:
        super().__init__(in_keys=[key], out_keys=["done"])
        self.key = key

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        flags = next_tensordict.get(self.key)
        done = flags.reshape(*next_tensordict.batch_size, -1).any(-1, keepdim=True)
        return next_tensordict.set("done", done)

    def _reset(self, tensordict: Any, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _reset_env_preprocess(self, tensordict: Any) -> Any:
        if tensordict is not None and "_reset" in tensordict.keys():  # noqa: SIM118
            reset = tensordict.pop("_reset")
            shape = self.parent.full_done_spec[self.key].shape
            tensordict.set((*self.key[:-1], "_reset"), reset.unsqueeze(-1).expand(shape))
        return tensordict

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        shape = torch.Size([*done_spec.shape, 1])
        done_spec["done"] = Categorical(2, shape, dtype=torch.bool)
        return done_spec


class Numbers(Transform):
    """The length of a text that is observed, and one of three texts that an action chooses."""

    def __init__(self, key: tuple[str, ...]) -> None:
        super().__init__(in_keys=[key], out_keys=[key], in_keys_inv=[key], out_keys_inv=[key])
        self.key = key

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        text = next_tensordict.get(self.key, None)
        if text is None:  # an action
            return next_tensordict
        return next_tensordict.set(self.key, torch.tensor([float(len(text))]))

    def _reset(self, tensordict: Any, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.key not in map(tuple_of, self.parent.action_keys):
            return tensordict
        return tensordict.set(self.key, "abc"[int(tensordict[self.key])])

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        if self.key in map(tuple_of, observation_spec.keys(True, True)):
            observation_spec[self.key] = Unbounded(1)
        return observation_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        if self.key in map(tuple_of, input_spec["full_action_spec"].keys(True, True)):
            input_spec["full_action_spec"][self.key] = Categorical(3, ())
        return input_spec


def tuple_of(key: Any) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def pad(make: Make, key: tuple[str, ...]) -> EnvBase:
    """An observation that grows to 6 rows in 3 groups of 2, or the actions of 3 agents."""
    shape = (3, 8, 2) if key == ("observation",) else (3, 3)
    return TransformedEnv(make(), Pad(key, shape))


def give_options(make: Make, key: tuple[str, ...]) -> EnvBase:
    env = make()
    spec = env.full_action_spec[key]
    env.full_action_spec = Composite({key: Categorical(3, spec.shape, dtype=spec.dtype)})
    return env


#: Deeds on the environment, by the words that advise them; the key is the error's first word.
DEEDS: dict[str, Callable[[Make, tuple[str, ...]], EnvBase]] = {
    "Pad it in a transform": pad,
    "Give its spec a number of options": give_options,
    "Make it numbers in a transform": lambda make, key: TransformedEnv(make(), Numbers(key)),
    "Add them up in a transform": lambda make, key: TransformedEnv(make(), SumRewards(key)),
    "dd one at the root in a transform": lambda make, key: TransformedEnv(make(), RootDone(key)),
}


class Outcome(NamedTuple):
    """How an environment was wrapped, or why it was refused for good."""

    env: None | TorchRLEnv
    make: Make
    options: dict[str, Any]
    #: Errors, all but the last of which were followed.
    errors: list[str]


def follow(make: Make, batched: Callable[[Make], EnvBase]) -> Outcome:
    """The wrapped environment, after doing what each error advised."""
    options: dict[str, Any] = {}
    errors: list[str] = []
    while len(errors) < 8:
        torch.manual_seed(0)
        env = batched(make)
        try:
            return Outcome(TorchRLEnv(env, **options), make, options, errors)
        except AdapterError as error:
            env.close(raise_if_closed=False)
            errors.append(str(error))
        text = errors[-1]
        named = re.search(r"`(\w+_keys?)=([^`]+)`", text)
        deed = next((deed for words, deed in DEEDS.items() if words in text), None)
        if named is not None:
            options[named[1]] = literal_eval(named[2])  # as a reader would write it
        elif deed is not None:
            make = partial(deed, make, tuple(text.split("`")[1].split(".")))
        else:
            return Outcome(None, make, options, errors)
    raise AssertionError(errors)


def check_beside(env: TorchRLEnv, own: EnvBase, steps: int = STEPS) -> int:
    """Play both with the same seed and actions, compare every element; the number of ends.

    Args:
        env: The wrapped environment.
        own: Another one of the same kind, which TorchRL steps.
        steps: Env steps.

    """
    actions = [env.action_spec.rand(torch.Size([env.num_envs])) for _ in range(steps)]
    sent: list[TensorDictBase] = []
    step = env.env.step_and_maybe_reset

    def record(data: TensorDictBase) -> Any:
        sent.append(data.select(*env.env.action_keys).clone())
        torch.manual_seed(len(sent))
        return step(data)

    env.env.step_and_maybe_reset = record
    for one in (env, own):  # starts processes, which make environments
        torch.manual_seed(0)
        (one.seed if one is env else own.set_seed)(1)
        one.reset()
    torch.manual_seed(1)
    env.seed(1)
    first = env.reset().clone()
    rows = [env.step(action).clone() for action in actions]
    torch.manual_seed(1)
    own.set_seed(1)
    data = own.reset()
    compare_obs(env, first, data)
    absent = torch.zeros(env.num_envs, 1, dtype=torch.bool)
    ends = 0
    for t, (action, row) in enumerate(zip(sent, rows, strict=True)):
        torch.manual_seed(t + 1)
        stepped, data = own.step_and_maybe_reset(data.copy().update(action))
        outcome = stepped["next"]
        compare_obs(env, row["obs"], data)
        if "final_obs" in row.keys():  # noqa: SIM118  a TensorDict
            compare_obs(env, row["final_obs"], outcome)
        absent = compare_flags(env, row, outcome, own, absent)
        valid = row.get("valid", torch.ones_like(absent))
        rewards = spread(outcome[env._group._reward.key], row["rewards"], env) * valid
        torch.testing.assert_close(row["rewards"], rewards.to(row["rewards"].dtype))
        ends += int((row["terminated"] | row["truncated"]).sum())
    return ends


def spread(value: torch.Tensor, like: torch.Tensor, env: TorchRLEnv) -> torch.Tensor:
    """Values as rows like `like`; those of an environment are all its agents'."""
    if value.numel() == like.numel():
        return value.reshape(like.shape)
    batch = env._layout.batch.numel()
    value = value.reshape(batch, 1, *like.shape[1:])
    return value.expand(-1, env.num_envs // batch, *like.shape[1:]).reshape(like.shape)


def compare_obs(env: TorchRLEnv, obs: Any, data: TensorDictBase) -> None:
    for path, leaf in env._group._leaves.items():
        got = obs[path] if path else obs
        assert got.shape == (env.num_envs, *leaf.spec.shape)
        assert got.dtype == leaf.spec.dtype
        expected = spread(data[leaf.key], got, env).to(got.dtype)
        torch.testing.assert_close(got, expected, equal_nan=True)


def compare_flags(
    env: TorchRLEnv, row: TensorDictBase, outcome: TensorDictBase, own: EnvBase, absent: Any
) -> torch.Tensor:
    """Compare the flags of the rows; those that are absent afterwards."""
    like = torch.zeros(env.num_envs, 1, dtype=torch.bool)
    levels = {tuple_of(key)[:-1] for key in own.done_keys}
    group = env._layout.group

    def read(level: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Terminated, and any end."""
        flags = {
            tuple_of(key)[-1]: spread(outcome[key], like, env).bool()
            for key in own.done_keys
            if tuple_of(key)[:-1] == level
        }
        ended = torch.stack([*flags.values()]).any(0)
        default = ended & ~flags.get("truncated", like)
        return flags.get("terminated", default), ended

    level = () if () in levels else group if group in levels else min(levels)
    terminated, ended = first = read(level)
    if level != group and group and group in levels:
        own_terminated, own_ended = read(group)
        valid = ~absent
        terminated = (own_terminated | (ended & ~own_ended & terminated)) & valid
        absent = (absent | own_ended) & ~ended
        ended = (own_ended | ended) & valid
        assert torch.equal(row["valid"], valid)
    assert torch.equal(row["first"], first[1])
    assert torch.equal(row["terminated"], terminated)
    assert torch.equal(row["terminated"] | row["truncated"], ended)
    return absent
