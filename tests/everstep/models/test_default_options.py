"""Options of default models: initialisation, shared layers, and what policy and values see."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded

from everstep import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.errors import ConfigError
from everstep.models import (
    DefaultContinuousModel,
    DefaultContinuousRecurrentModel,
    DefaultDiscreteModel,
)
from everstep.policies import Policy, RecurrentPolicy
from tests.everstep.core.fast.test_rollout import env_of

VECTOR = Unbounded(5)
NUMBERS = Unbounded(2)
GROUPS = Composite(policy=Unbounded(3), critic=Unbounded(4), both=Unbounded(2))
ASYMMETRIC = {"actor_obs": ["policy", "both"], "critic_obs": ["critic", "both"]}

MODELS = pytest.mark.parametrize("cls", [DefaultContinuousModel, DefaultContinuousRecurrentModel])
POLICIES = pytest.mark.parametrize("cls", [Policy, RecurrentPolicy])


def linears(network: torch.nn.Module) -> list[torch.nn.Linear]:
    return [x for x in network.modules() if isinstance(x, torch.nn.Linear)]


def singular_values(layer: torch.nn.Linear) -> torch.Tensor:
    return torch.linalg.svdvals(layer.weight.detach().double())


# ---- initialisation ---------------------------------------------------------------------------


@MODELS
def test_weights_are_orthogonal_with_the_gains_of_the_options(cls: Any) -> None:
    """All singular values of a layer are its gain."""
    gains = {"hidden_gain": 0.7, "policy_gain": 0.2, "value_gain": 3.0}
    model = cls(VECTOR, NUMBERS, hiddens=[16, 8], **gains)
    for network, head_gain in ((model.policy, 0.2), (model.vf_model, 3.0)):
        *hidden, head = linears(network)
        for layer, gain in (*((x, 0.7) for x in hidden), (head, head_gain)):
            expected = torch.full_like(singular_values(layer), gain)
            torch.testing.assert_close(singular_values(layer), expected, rtol=1e-5, atol=0)
            assert not layer.bias.any()


@MODELS
def test_without_ortho_init_pytorch_initialises_the_weights(cls: Any) -> None:
    """Uniform within ±1/√width, weights and biases."""
    model = cls(VECTOR, NUMBERS, hiddens=[64], ortho_init=False)
    for layer in (*linears(model.policy), *linears(model.vf_model)):
        bound = layer.in_features**-0.5
        assert 0.8 * bound < layer.weight.abs().max() <= bound
        assert layer.bias.any()


@MODELS
def test_the_standard_deviation_is_a_parameter_with_an_initial_value(cls: Any) -> None:
    model = cls(VECTOR, NUMBERS, log_std_init=-2)
    assert model.outputs.log_std.tolist() == [-2.0, -2.0]


# ---- layers -----------------------------------------------------------------------------------


def test_a_shared_trunk_has_gradients_of_both_heads_and_is_in_the_policy() -> None:
    model = DefaultDiscreteModel(VECTOR, Categorical(3, shape=(1,)), hiddens=[8, 4], shared=True)
    assert [x.out_features for x in linears(model)] == [8, 4, 3, 1]
    features: Any = model(TensorDict(obs=torch.randn(6, 5), batch_size=[6]))
    trunk = list(model.trunk.parameters())
    for output in (features["logits"], model.value_function()):
        found = torch.autograd.grad(output.square().sum(), trunk, retain_graph=True)
        assert all(gradient.any() for gradient in found)


@MODELS
def test_values_may_have_other_layers(cls: Any) -> None:
    model = cls(VECTOR, NUMBERS, hiddens=[16, 8], vf_hiddens=[32])
    assert [x.out_features for x in linears(model.policy)] == [16, 8, 2]
    assert [x.out_features for x in linears(model.vf_model)] == [32, 1]


def test_a_separate_lstm_of_the_values_has_states_of_its_own() -> None:
    model = DefaultContinuousRecurrentModel(VECTOR, NUMBERS, hidden_size=6, shared=False)
    assert list(model.state_spec.keys()) == [
        *("hidden_states", "cell_states", "critic_hidden_states", "critic_cell_states"),
    ]
    features, _ = model(TensorDict(obs=torch.randn(2, 3, 5), batch_size=[2, 3]), zeros(model, 2))
    own = torch.autograd.grad(
        model.value_function().sum(), list(model.lstm.parameters()), allow_unused=True
    )
    assert all(gradient is None for gradient in own)
    assert features["mean"].shape == (6, 2)


def zeros(model: Any, rows: int) -> TensorDict:
    states: TensorDict = model.init_states(rows).unsqueeze(1)
    return states


# ---- what policy and values see ---------------------------------------------------------------


def groups(*size: int) -> TensorDict:
    return GROUPS.rand(list(size)).double()


def outputs_of(model: Any, obs: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and values."""
    batch = TensorDict({"obs": obs}, obs.batch_size)
    is_recurrent = isinstance(model, DefaultContinuousRecurrentModel)
    features = model(batch, zeros(model, obs.shape[0]))[0] if is_recurrent else model(batch)
    return features["mean"], model.value_function()


@pytest.mark.usefixtures("float64")
@MODELS
def test_policy_and_values_depend_on_their_keys_alone(cls: Any) -> None:
    model = cls(GROUPS, NUMBERS, **ASYMMETRIC)
    obs = groups(4, 3) if cls is DefaultContinuousRecurrentModel else groups(4)
    mean, values = outputs_of(model, obs)
    for key, moves in (("policy", (True, False)), ("critic", (False, True)), ("both", (True,) * 2)):
        other = obs.clone()
        other[key] = other[key] + 1
        changed = outputs_of(model, other)
        for before, after, expected in zip((mean, values), changed, moves, strict=True):
            assert (not torch.equal(before, after)) is expected


@pytest.mark.usefixtures("float64")
def test_an_asymmetric_model_computes_the_formula_of_two_networks() -> None:
    """Written out with the weights: W2·tanh(W1·[own keys] + b1) + b2."""
    model = DefaultContinuousModel(
        GROUPS, NUMBERS, hiddens=[7], activation_fn="tanh", policy_gain=1.0, **ASYMMETRIC
    )
    obs = groups(9)
    for (network, keys), found in zip(
        ((model.policy, ("policy", "both")), (model.vf_model, ("critic", "both"))),
        outputs_of(model, obs),
        strict=True,
    ):
        first, last = linears(network)
        # Leaves are in the order of the spec.
        x = torch.cat([obs[key] for key in GROUPS.keys() if key in keys], -1)  # noqa: SIM118
        expected = (x @ first.weight.T + first.bias).tanh() @ last.weight.T + last.bias
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@POLICIES
def test_predict_needs_the_keys_of_the_policy_alone(cls: Any, tmp_path: Path) -> None:
    policy = cls(GROUPS, NUMBERS, model_config=ASYMMETRIC)
    policy.save(tmp_path / "policy")
    loaded = cls.load(tmp_path / "policy")
    obs = {key: GROUPS[key].rand([6]).numpy() for key in GROUPS.keys()}  # noqa: SIM118
    own = {key: obs[key] for key in ASYMMETRIC["actor_obs"]}
    states: list[Any] = [None, None]
    for _ in range(3):
        whole, states[0] = policy.predict(obs, states[0])
        part, states[1] = loaded.predict(own, states[1])
        assert (whole == part).all()
    single, _ = policy.predict({key: x[0] for key, x in own.items()})
    assert single.shape == (2,)
    with pytest.raises(ValueError, match="both"):
        policy.predict({"policy": own["policy"]})


@pytest.mark.slow
@POLICIES
def test_an_exported_policy_needs_the_keys_of_the_policy_alone(cls: Any, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    policy = cls(GROUPS, NUMBERS, model_config=ASYMMETRIC)
    policy.export(tmp_path / "exported")
    model = mlflow.pyfunc.load_model(str(tmp_path / "exported"))
    obs = {f"obs.{key}": GROUPS[key].rand([6]).numpy() for key in ASYMMETRIC["actor_obs"]}
    states = {} if cls is Policy else {"hidden_states", "cell_states"}
    inputs = {name: torch.zeros(6, 1, 256).numpy() for name in states}
    assert {x.name for x in model.metadata.signature.inputs} == {*obs, *states}
    found = model.predict({**obs, **inputs})
    outputs = {name for name in found if not name.startswith("distribution.")}
    assert outputs == {"actions", "logp", *states}
    expected, _ = policy.predict({key.removeprefix("obs."): x for key, x in obs.items()})
    torch.testing.assert_close(torch.tensor(found["actions"]), torch.tensor(expected))


# ---- training and errors ----------------------------------------------------------------------

TRAINED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "shared": (AlgorithmConfig, VECTOR, {"shared": True}),
    "asymmetric": (AlgorithmConfig, GROUPS, ASYMMETRIC),
    "recurrent": (RecurrentAlgorithmConfig, GROUPS, {**ASYMMETRIC, "hiddens": [8]}),
    "recurrent, separate": (RecurrentAlgorithmConfig, VECTOR, {"shared": False}),
}


@pytest.mark.parametrize("case", list(TRAINED))
def test_such_models_train(case: str) -> None:
    config, observation, model_config = TRAINED[case]
    env = env_of(NUMBERS, observation)
    algorithm = config(num_envs=4, horizon=8, model_config=model_config).build(env)
    if "recurrent" in case:  # others are computed natively, where there is the library
        assert algorithm.params["native"] is not True
    before = [p.detach().clone() for p in algorithm.policy.model.parameters()]
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    after = algorithm.policy.model.parameters()
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (VECTOR, {"actor_obs": ["a"]}, "`model_config.actor_obs` chooses keys of .* a mapping"),
        (GROUPS, {"critic_obs": ["crtic"]}, "a list of keys among .*; got .'crtic'."),
        (GROUPS, {"critic_obs": "critic"}, "a list of keys among"),
        (GROUPS, {"critic_obs": []}, "a list of keys among"),
        (GROUPS, {**ASYMMETRIC, "shared": True}, "`model_config.shared` needs policy and values"),
        (VECTOR, {"vf_hiddens": [8], "shared": True}, "Drop one"),
        (VECTOR, {"policy_gain": 0}, "`model_config.policy_gain` expected float > 0"),
        (VECTOR, {"vf_hiddens": 8}, "`model_config.vf_hiddens` expected a list of int > 0"),
    ],
)
def test_options_that_do_not_fit_are_told(spec: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AlgorithmConfig(num_envs=4, model_config=options).build(env_of(NUMBERS, spec))


# ---- frames -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
def test_a_stack_of_frames_is_the_last_observations_of_the_episode() -> None:
    """Newest last, zeros before the first; what an environment that stacks itself would give."""
    env = episodes_of_numbers()
    options: dict[str, Any] = {"model_config": {"frame_stack": 3}, "normalize_observations": False}
    algorithm: Any = AlgorithmConfig(**options, seed=0).build(env)
    seen: list[torch.Tensor] = []
    algorithm.policy.model.policy[0].register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].clone())
    )
    algorithm.collect()
    rollout = algorithm.rollout
    (obs,), first = rollout.obs, rollout.first
    assert first.any()
    assert obs.shape == (9, 2, 3)  # every observation is stored once
    for n in range(2):
        frames = [torch.zeros(3)] * 3
        for t in range(8):
            opens = t == 0 or bool(first[t - 1, n])
            frames = [*([torch.zeros(3)] * 2 if opens else frames[1:]), obs[t, n]]
            torch.testing.assert_close(seen[t][n], torch.cat(frames), rtol=0, atol=0)
    algorithm.step()


def episodes_of_numbers() -> Any:
    import gymnasium as gym

    from everstep import wrap

    class Counting(gym.Env):  # type: ignore[type-arg]
        """Observations count up; an episode has four env steps."""

        observation_space = gym.spaces.Box(-1e6, 1e6, (3,), dtype=float)
        action_space = gym.spaces.Discrete(2)
        count = 0

        def _obs(self) -> Any:
            self.count += 1
            return torch.arange(3).numpy() + 10.0 * self.count

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.left = 4
            return self._obs(), {}

        def step(self, action: Any) -> Any:
            self.left -= 1
            return self._obs(), 1.0, self.left == 0, False, {}

    vector = gym.vector.SyncVectorEnv([Counting] * 2, autoreset_mode="SameStep")
    return wrap(vector, horizon=8)


def test_stacked_images_go_through_convolutions_and_predict_remembers() -> None:
    spec = Unbounded((84, 84), dtype=torch.uint8)
    policy = Policy(spec, Categorical(3, shape=(1,)), model_config={"frame_stack": 4})
    (encoder,) = policy.model.encoder.encoders  # type: ignore[union-attr]
    assert encoder.layout.channels == 4
    state, obs = None, torch.randint(0, 255, (2, 84, 84), dtype=torch.uint8).numpy()
    for _ in range(2):
        actions, state = policy.predict(obs, state)
    assert actions.shape[0] == 2
    assert state is not None
    assert state[0].shape == (2, 3, 84, 84)


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (VECTOR, 0, "expected int > 0; got 0"),
        (GROUPS, 4, "of one tensor of numbers; got Composite"),
    ],
)
def test_frames_that_do_not_fit_are_told(spec: Any, value: int, message: str) -> None:
    with pytest.raises(ConfigError, match=f"`model_config.frame_stack` .*{message}"):
        AlgorithmConfig(num_envs=4, model_config={"frame_stack": value}).build(
            env_of(NUMBERS, spec)
        )
