"""Advantages against a per-episode oracle, through the adapter, in every autoreset mode."""

import pytest
import torch
from gymnasium.vector import AutoresetMode

from everstep import AlgorithmConfig
from everstep_adapters.gymnasium import GymnasiumEnv
from tests.toys import (
    BOTH,
    TERMINATED,
    TRUNCATED,
    Episode,
    KnownValue,
    Script,
    oracle_advantages,
    scripted_vector_env,
    stream,
)

HORIZON, ROLLOUTS, GAMMA, LAMBDA = 6, 4, 0.9, 0.8
NEVER = 10**6

SCRIPTS: dict[str, list[Script]] = {
    "terminations": [[Episode(4, TERMINATED)], [Episode(3, TERMINATED)]],
    "truncations": [[Episode(4, TRUNCATED)], [Episode(5, TRUNCATED)]],
    "both at once": [[Episode(3, BOTH)], [Episode(5, BOTH)]],
    "one-step episodes": [
        [Episode(1, TERMINATED)],
        [Episode(1, TRUNCATED)],
        [Episode(1, TRUNCATED), Episode(3, TERMINATED)],
    ],
    "done on the first and last rows": [
        [Episode(1, TRUNCATED), Episode(5, TRUNCATED)],
        [Episode(6, TRUNCATED)],
        [Episode(6, TERMINATED), Episode(1, TERMINATED)],
        [Episode(7, TRUNCATED)],
    ],
    "all done together": [[Episode(4, TRUNCATED)]] * 3,
    "none done": [[Episode(NEVER, TERMINATED)]] * 2,
    "mixed": [
        [Episode(2, TRUNCATED), Episode(5, TERMINATED), Episode(1, BOTH)],
        [Episode(NEVER, TERMINATED)],
        [Episode(3, TERMINATED), Episode(4, TRUNCATED)],
    ],
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("scripts", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_advantages_equal_the_oracle(scripts: list[Script], mode: AutoresetMode) -> None:
    env = GymnasiumEnv(scripted_vector_env(scripts, mode), horizon=HORIZON)
    algorithm = AlgorithmConfig(
        model_cls=KnownValue,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        normalize_advantages=False,
        normalize_observations=False,
        normalize_rewards=False,
        critic_warmup=0,
        horizons_per_env_reset=-1,
    ).build(env)
    next_step = mode is AutoresetMode.NEXT_STEP
    streams = [stream(s, HORIZON * ROLLOUTS, with_reset_rows=next_step) for s in scripts]
    for rollout in range(ROLLOUTS):
        algorithm.collect()
        algorithm.step()
        window = slice(rollout * HORIZON, (rollout + 1) * HORIZON)
        for n, script in enumerate(scripts):
            expected = torch.tensor(
                oracle_advantages(n, script, streams[n][window], gamma=GAMMA, gae_lambda=LAMBDA)
            )
            valid = ~expected.isnan()
            assert torch.equal(algorithm.rollout.valid[:, n, 0], valid)
            found = algorithm.buffer["advantages"][n, :-1, 0]
            torch.testing.assert_close(found[valid], expected[valid], rtol=0, atol=1e-12)
            torch.testing.assert_close(
                algorithm.buffer["returns"][n, :-1, 0][valid],
                (expected + algorithm.buffer["values"][n, :-1, 0])[valid],
                rtol=0,
                atol=1e-12,
            )
