"""The same parameters as rl8 1.0.0 after three updates, in float64.

The numbers were recorded by `oracles/record_rl8.py`. Observations, rewards and actions are
replayed; weights start equal; everything that is computed is ours.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Categorical as Discrete
from torchrl.data import Composite, Unbounded

from everstep import (
    Algorithm,
    AlgorithmConfig,
    RecurrentAlgorithm,
    RecurrentAlgorithmConfig,
)
from everstep.algorithms import recording
from everstep.data import DataKeys
from everstep.distributions import Categorical, Distribution, Normal
from everstep.env import Env
from everstep.models import Model, RecurrentModel

HERE = Path(__file__).parent / "oracles"
RECORD = np.load(HERE / "rl8_updates.npz")


def _options() -> dict[str, dict[str, Any]]:
    """The cases' options, read from the script that recorded them; rl8 itself is not imported."""
    source = (HERE / "record_rl8.py").read_text()
    wanted = source[source.index("COMMON:") : source.index("UPDATES =")]
    scope: dict[str, Any] = {"Any": Any, "DiscreteDummyEnv": "d", "ContinuousDummyEnv": "c"}
    exec(wanted, scope)
    return {name: {**scope["COMMON"], **options} for name, (_, options) in scope["CASES"].items()}


OPTIONS = _options()


class Replay(Env):
    """Gives the recorded observations and rewards, whatever is done."""

    def __init__(self, case: str, num_envs: int, horizon: int, discrete: bool) -> None:
        super().__init__(num_envs, horizon)
        self.observation_spec = Unbounded(1)
        self.action_spec = Discrete(2, shape=torch.Size([1])) if discrete else Unbounded(1)
        self.case, self.update, self.t = case, -1, horizon

    def _recorded(self, key: str, t: int) -> torch.Tensor:
        return torch.from_numpy(RECORD[f"{self.case}/{self.update}/{key}"][:, t])

    def reset(self, *, config: Any = None) -> torch.Tensor:
        self.update, self.t = self.update + 1, 0
        return self._recorded("obs", 0)

    def step(self, action: Any) -> TensorDict:
        if self.t == self.horizon:  # carried over without a reset
            self.update, self.t = self.update + 1, 0
        torch.testing.assert_close(action, self._recorded("actions", self.t), rtol=0, atol=0)
        rewards = self._recorded("rewards", self.t)
        if not OPTIONS[self.case].get("normalize_rewards", True):
            rewards = rewards / (1.0 + 1e-8)  # rl8 divides by a scale of 1 plus its epsilon
        self.t += 1
        return TensorDict(
            {"obs": self._recorded("obs", self.t), "rewards": rewards},
            batch_size=[self.num_envs],
        )


class RecordedModel(Model):
    """rl8's default networks, by its parameters' names."""

    def __init__(self, observation_spec: Any, action_spec: Any, /, *, hiddens: Any) -> None:
        super().__init__(observation_spec, action_spec)
        self.discrete = isinstance(action_spec, Discrete)
        hidden = hiddens[-1]
        body = self._body(hiddens)
        if self.discrete:
            self.feature_model = nn.Sequential(*body, nn.Linear(hidden, 2))
        else:
            self.latent_model = nn.Sequential(*body)
            self.action_mean = nn.Linear(hidden, 1)
            self.action_log_std = nn.Linear(hidden, 1)
        self.vf_model = nn.Sequential(*self._body(hiddens), nn.Linear(hidden, 1))

    @staticmethod
    def _body(hiddens: Any) -> list[nn.Module]:
        first, second = hiddens
        return [
            nn.Sequential(nn.Linear(1, first), nn.ReLU(), nn.Linear(first, second)),
            nn.ReLU(),
        ]

    def forward(self, batch: TensorDict, /) -> TensorDict:
        obs = batch["obs"]
        self._value = self.vf_model(obs)
        if self.discrete:
            features = {"logits": self.feature_model(obs).reshape(-1, 1, 2)}
        else:
            latents = self.latent_model(obs)
            log_std = torch.tanh(self.action_log_std(latents))
            features = {"mean": self.action_mean(latents), "log_std": log_std}
        return TensorDict(features, batch_size=batch.batch_size)

    def value_function(self) -> torch.Tensor:
        return self._value


STATES = (DataKeys.HIDDEN_STATES, DataKeys.CELL_STATES)


class RecordedRecurrentModel(RecurrentModel):
    """rl8's default recurrent networks, by its parameters' names."""

    def __init__(self, observation_spec: Any, action_spec: Any, /, *, hidden_size: int) -> None:
        super().__init__(observation_spec, action_spec)
        self.discrete = isinstance(action_spec, Discrete)
        shape = torch.Size([1, hidden_size])
        self.state_spec = Composite({key: Unbounded(shape) for key in STATES})
        self.lstm = nn.LSTM(1, hidden_size, batch_first=True)
        if self.discrete:
            self.feature_head = nn.Linear(hidden_size, 2)
            self.vf_head = nn.Linear(hidden_size, 1)
        else:
            self.action_mean = nn.Linear(hidden_size, 1)
            self.action_log_std = nn.Linear(hidden_size, 1)
            self.vf_model = nn.Linear(hidden_size, 1)

    def forward(self, batch: TensorDict, states: TensorDict, /) -> Any:
        before = tuple(states[key][:, 0].transpose(0, 1).contiguous() for key in STATES)
        latents, after = self.lstm(batch["obs"], before)
        latents = latents.flatten(0, 1)
        if self.discrete:
            self._value = self.vf_head(latents)
            features = {"logits": self.feature_head(latents).reshape(-1, 1, 2)}
        else:
            self._value = self.vf_model(latents)
            log_std = torch.tanh(self.action_log_std(latents))
            features = {"mean": self.action_mean(latents), "log_std": log_std}
        left = {key: x.transpose(0, 1) for key, x in zip(STATES, after, strict=True)}
        return TensorDict(features, [len(latents)]), TensorDict(left, [batch.batch_size[0]])

    def value_function(self) -> torch.Tensor:
        return self._value


def replaying(base: type[Distribution], case: str) -> type[Distribution]:
    """`base` whose samples are the recorded actions, in order."""
    actions = iter(
        torch.from_numpy(RECORD[f"{case}/{update}/actions"][:, t])
        for update in range(3)
        for t in range(OPTIONS[case]["horizon"])
    )

    class Replaying(base):  # type: ignore[misc, valid-type]
        def sample(self) -> torch.Tensor:
            return next(actions)

    return Replaying


@pytest.mark.few(3)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", OPTIONS)
def test_parameters_after_three_updates(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(OPTIONS[case])
    discrete = RECORD[f"{case}/0/actions"].dtype == np.int64
    env = Replay(case, options.pop("num_envs"), options.pop("horizon"), discrete)
    recurrent = "seq_len" in options
    config = (RecurrentAlgorithmConfig if recurrent else AlgorithmConfig)(
        **options | {"vf_clip_param": None, "shuffle_minibatches": True},
        model_cls=RecordedRecurrentModel if recurrent else RecordedModel,
        distribution_cls=replaying(Categorical if discrete else Normal, case),
    )
    # `build` would try the policy, and use up an action.
    algorithm = (RecurrentAlgorithm if recurrent else Algorithm)(env, config)
    sequences = algorithm.config.horizon // algorithm.policy.seq_len
    order = _rl8_order(env.num_envs, sequences)
    monkeypatch.setattr(recording.torch, "randperm", lambda n, device: order(n))
    model = algorithm.policy.model

    def recorded(update: int) -> dict[str, torch.Tensor]:
        prefix = f"{case}/{update}/weights/"
        names = [key for key in RECORD.files if key.startswith(prefix)]
        return {key.removeprefix(prefix): torch.from_numpy(RECORD[key]) for key in names}

    model.load_state_dict(recorded(0))
    for update in range(3):
        algorithm.collect()
        for key in ("logp", "values"):
            stored = torch.from_numpy(RECORD[f"{case}/{update}/{key}"])
            rows = slice(None) if key == "values" else slice(-1)
            torch.testing.assert_close(
                algorithm.buffer[key][:, rows], stored[:, rows], rtol=0, atol=1e-9
            )
        stats = algorithm.step()
        for key in ("losses/policy", "losses/vf", "losses/total", "monitors/kl_div"):
            assert stats[key] == pytest.approx(
                float(RECORD[f"{case}/{update}/stats/{key}"]), abs=1e-9
            )
        for name, weight in recorded(update + 1).items():
            torch.testing.assert_close(model.state_dict()[name], weight, rtol=0, atol=1e-9)


def _rl8_order(num_envs: int, sequences: int) -> Any:
    """ "Shuffles" sequences, which we keep as s·N + n, into rl8's order n·S + s."""
    rows = torch.arange(sequences * num_envs).view(sequences, num_envs)
    return lambda n: rows.T.flatten()


def test_the_record_moves() -> None:
    """The oracle's weights change in every update, so that standing still would be seen."""
    for case in OPTIONS:
        names = ("vf_model.2.weight", "vf_head.weight", "vf_model.weight")
        [name] = [n for n in names if f"{case}/0/weights/{n}" in RECORD.files]
        for update in range(3):
            before, after = (RECORD[f"{case}/{u}/weights/{name}"] for u in (update, update + 1))
            assert np.abs(after - before).max() > 1e-4
