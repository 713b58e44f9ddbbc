"""An asset is bought and sold: whoever sees the price's history knows where it goes."""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded

from everstep.data import DataKeys, Device
from everstep.env import Env

#: Keys of the observation, beside `"action_mask"` and `"invested"`.
CHANGE, GAIN = "LOG_CHANGE(price)", "LOG_CHANGE(price, position)"


class Action(IntEnum):
    """Actions of the agent."""

    HOLD = 0
    BUY = 1
    SELL = 2


@dataclass(frozen=True)
class AlgoTradingConfig:
    """Options of a reset: how different assets are from each other."""

    f_bounds: float = math.pi
    """Frequencies of the cycle are uniform from 0 to this, in radians an env step."""

    k_cyclic_bounds: float = 0.05
    """Amplitudes of the cycle are uniform up to this, of either sign."""

    k_market_bounds: float = 0.05
    """Growth an env step is uniform up to this, of either sign."""


class AlgoTrading(Env):
    """Hold, buy or sell one asset, whose price follows a trend and a cycle.

        price[t + 1] = (1 + k_market) · (1 + k_cyclic · sin(f · (t + 1))) · price[t]

    Every environment draws `k_market`, `k_cyclic`, `f` and the phase of its cycle at a reset, and
    observes none of them. It observes whether the asset is owned (`"invested"`), what can be done
    (`"action_mask"`), and the logarithms of two ratios: of the price to the one before, and to
    the one that was paid, or to the one before where nothing is owned.

    Holding an asset that is owned earns the last change, selling it the gain since it was bought,
    and everything else nothing. What cannot be done is held instead.

    Only ratios of prices are ever seen or paid, so prices themselves are not kept.
    """

    max_horizon = 128

    #: Observation of every environment, written in place.
    obs: TensorDict

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Composite(
            {
                "action_mask": Categorical(2, shape=torch.Size([3]), dtype=torch.bool),
                "invested": Categorical(2, shape=torch.Size([1]), dtype=torch.long),
                CHANGE: Unbounded(1),
                GAIN: Unbounded(1),
            }
        ).to(device)
        self.action_spec = Categorical(3, shape=torch.Size([1]), device=device)
        self.obs = self.observation_spec.zero([num_envs])
        self.frequency = torch.zeros(num_envs, 1, device=device)
        self.cyclic = torch.zeros_like(self.frequency)
        self.growth = torch.zeros_like(self.frequency)  # of the price's logarithm
        self.time = torch.zeros_like(self.frequency)  # env steps, with the phase of the cycle

    def reset(self, *, config: None | dict[str, Any] = None) -> TensorDict:
        """New assets, none of them owned; `config` holds fields of `AlgoTradingConfig`."""
        settings = AlgoTradingConfig(**(config or {}))
        self.frequency.uniform_(0, settings.f_bounds)
        self.cyclic.uniform_(-settings.k_cyclic_bounds, settings.k_cyclic_bounds)
        self.growth.uniform_(-settings.k_market_bounds, settings.k_market_bounds).log1p_()
        self.time.random_(0, 10)
        self.obs.zero_()
        self._show_actions(self.obs["invested"])
        return self.obs

    def step(self, action: torch.Tensor) -> TensorDict:
        """Trade at the present price, which then changes."""
        owned = self.obs["invested"].bool()
        change, gain = self.obs[CHANGE], self.obs[GAIN]
        buys = ~owned & (action == Action.BUY)
        sells = owned & (action == Action.SELL)
        keeps = owned & ~sells
        rewards = torch.where(sells, gain, torch.where(keeps, change, 0.0))
        self.time += 1
        cycle = (self.cyclic * (self.time * self.frequency).sin()).log1p()
        change.copy_(self.growth + cycle)
        gain.copy_(change + torch.where(keeps, gain, 0.0))
        self.obs["invested"].copy_(keeps | buys)
        self._show_actions(self.obs["invested"])
        return TensorDict(
            {DataKeys.OBS: self.obs, DataKeys.REWARDS: rewards},
            batch_size=[self.num_envs],
            device=self.device,
        )

    def _show_actions(self, invested: torch.Tensor) -> None:
        """Say what can be done: an asset is bought once, and sold once it is owned."""
        owned = invested.bool()
        self.obs["action_mask"].copy_(torch.cat([torch.ones_like(owned), ~owned, owned], -1))
