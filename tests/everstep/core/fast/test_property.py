"""Drawn networks in drawn situations: training on the fast way equals training by autograd."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.nn.modules import module as global_hooks
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import is_parametrized
from torch.optim import optimizer as global_optimizer_hooks
from torchrl.data import Categorical, Unbounded

from everstep import AlgorithmConfig, Env
from everstep.core.fast import NativeActor, actor, eligible
from everstep.models import DefaultContinuousModel, DefaultDiscreteModel, DefaultModel
from everstep.models._defaults import Gaussian, Logits

pytestmark = pytest.mark.slow

UPDATES = 3
NUM_ENVS, HORIZON = 5, 12

# ---- environments -----------------------------------------------------------------------------


class DrawnEnv(Env):
    """Random observations; episodes end at random.

    Args:
        action_spec: Spec of one action.
        resets: None without episodes, "next" for a reset in a row of its own that is not valid,
            "same" for a reset in the row that ends an episode, whose final observation is lost
            every other time.

    """

    def __init__(self, action_spec: Any, resets: None | str) -> None:
        super().__init__(NUM_ENVS, HORIZON)
        self.observation_spec, self.action_spec = Unbounded(3), action_spec
        flags = {"terminated", "truncated", "first"}
        keys = {None: set(), "next": flags | {"valid"}, "same": flags | {"final_obs"}}[resets]
        self.episode_keys, self.resets = frozenset(keys), resets
        self.has_ended = torch.zeros(NUM_ENVS, 1, dtype=torch.bool)

    def reset(self, *, config: Any = None) -> Any:
        self.has_ended = torch.zeros(NUM_ENVS, 1, dtype=torch.bool)
        return torch.randn(NUM_ENVS, 3)

    def step(self, action: Any) -> TensorDict:
        ends, terminates, loses = torch.rand(3, NUM_ENVS, 1) < torch.tensor([0.3, 0.5, 0.5]).view(
            3, 1, 1
        )
        valid = ~self.has_ended
        done = ends & valid if self.resets == "next" else ends
        final = torch.where(loses, torch.nan, torch.randn(NUM_ENVS, 3))
        row = {
            "obs": torch.randn(NUM_ENVS, 3),
            "rewards": torch.randn(NUM_ENVS, 1),
            "terminated": done & terminates,
            "truncated": done & ~terminates,
            "first": ~valid if self.resets == "next" else done,
            "valid": valid,
            "final_obs": final,
        }
        if self.resets == "next":
            self.has_ended = done
            row["rewards"].masked_fill_(~valid, 1e9)
        keys = {"obs", "rewards", *self.episode_keys}
        return TensorDict({key: row[key] for key in keys}, [NUM_ENVS])


# ---- situations -------------------------------------------------------------------------------


@dataclass
class Subject:
    """A model, its algorithm once it is built, and calls of whatever was put into it."""

    model: Any
    env: Any
    algorithm: Any = None
    was_fast: bool = False
    calls: dict[str, int] = field(default_factory=dict)

    def count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1


Undo = None | Callable[[], None]


class OwnLinear(nn.Linear):
    """Doubles its outputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class OwnDiscrete(DefaultDiscreteModel):
    """A model with a `forward` of its own."""

    def forward(self, batch: Any, /) -> Any:
        return {"logits": 0.5 * super().forward(batch)["logits"]}


class OwnContinuous(DefaultContinuousModel):
    """A model with a `forward` of its own."""

    def forward(self, batch: Any, /) -> Any:
        features = super().forward(batch)
        return {**features, "mean": 0.5 * features["mean"]}


class OwnLogits(Logits):
    """Sharper than their outputs."""

    def forward(self, outputs: torch.Tensor) -> Any:
        return {"logits": 3 * super().forward(outputs)["logits"]}


class OwnGaussian(Gaussian):
    """Bounded means."""

    def forward(self, outputs: torch.Tensor) -> Any:
        features = super().forward(outputs)
        return {**features, "mean": features["mean"].tanh()}


def freezing(*names: str) -> Callable[[Subject], Undo]:
    def apply(subject: Subject) -> Undo:
        things = [thing for name in names if (thing := found(subject.model, name)) is not None]
        for thing in things:
            thing.requires_grad_(False)
        return lambda: [thing.requires_grad_(True) for thing in things] and None

    return apply


def found(model: Any, name: str) -> Any:
    if name == "log_std":
        return getattr(model.outputs, "log_std", None)
    if name == "layer":
        return model.policy[0]
    if name == "head":
        return model.policy[-1]
    return model if name == "model" else getattr(model, name)


def patching(name: str, gain: float = 0.7) -> Callable[[Subject], Undo]:
    """`forward` of an instance, replaced; a model's features stay as they are."""

    def apply(subject: Subject) -> Undo:
        module = found(subject.model, name)
        original = module.forward

        def forward(x: Any) -> Any:
            subject.count(f"patch of {name}")
            out = original(x)
            return gain * out if isinstance(out, torch.Tensor) else out

        module.forward = forward
        return lambda: delattr(module, "forward")

    return apply


def patching_class(cls: Any) -> Callable[[Subject], Undo]:
    def apply(subject: Subject) -> Undo:
        original = cls.forward

        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            subject.count("class")
            return 0.8 * original(self, x)

        cls.forward = forward
        return lambda: setattr(cls, "forward", original)

    return apply


def hooking(name: str, register: str) -> Callable[[Subject], Undo]:
    def apply(subject: Subject) -> Undo:
        target = found(subject.model, name)

        def hook(*_: Any) -> None:
            subject.count(register)

        return getattr(target, register)(hook).remove  # type: ignore[no-any-return]

    return apply


def hooking_weight(register: str) -> Callable[[Subject], Undo]:
    def apply(subject: Subject) -> Undo:
        weight = subject.model.vf_model[-1].weight
        if not weight.requires_grad:
            subject.count(register)
            return None

        def hook(*_: Any) -> None:
            subject.count(register)

        return getattr(weight, register)(hook).remove  # type: ignore[no-any-return]

    return apply


def hooking_all(owner: Any, register: str) -> Callable[[Subject], Undo]:
    def apply(subject: Subject) -> Undo:
        def hook(*_: Any) -> None:
            subject.count(register)

        return getattr(owner, register)(hook).remove  # type: ignore[no-any-return]

    return apply


def converting(*dtypes: torch.dtype) -> Callable[[Subject], Undo]:
    def apply(subject: Subject) -> Undo:
        for dtype in dtypes:
            subject.model.type(dtype)
        return None

    return apply


def converting_back(subject: Subject) -> Undo:
    own = torch.get_default_dtype()
    subject.model.type(torch.float32 if own is torch.float64 else torch.float64).type(own)
    return None


def converting_twice(subject: Subject) -> Undo:
    """Exact, as the comparison is of two algorithms that are converted."""
    subject.model.double()
    return converting(torch.get_default_dtype())(subject)


def moving(subject: Subject) -> Undo:
    subject.model.to("cpu") if subject.algorithm is None else subject.algorithm.policy.to("cpu")
    return None


def removing_gradients(subject: Subject) -> Undo:
    subject.model.zero_grad(set_to_none=True)
    return None


def subclassing_layer(subject: Subject) -> Undo:
    subject.model.policy[0].__class__ = OwnLinear
    return None


def sharing_layer(subject: Subject) -> Undo:
    if len(subject.model.policy) > 1:
        subject.model.vf_model[0] = subject.model.policy[0]
    return None


def tying_weights(subject: Subject) -> Undo:
    if len(subject.model.policy) > 1 and not is_parametrized(subject.model.policy[0]):
        subject.model.vf_model[0].weight = subject.model.policy[0].weight
    return None


def repeating_layer(subject: Subject) -> Undo:
    """The same hidden layer twice in a row, and the same activation."""
    for name in ("policy", "vf_model"):
        modules = list(getattr(subject.model, name))
        if len(modules) < 3:
            return None
        width, activation = modules[0].out_features, modules[1]
        again = nn.Linear(width, width)
        nn.init.eye_(again.weight)
        nn.init.constant_(again.bias, 0.1)
        middle = [again, activation, again, activation]
        setattr(subject.model, name, nn.Sequential(*modules[:2], *middle, *modules[2:]))
    return None


def normalizing_weight(subject: Subject) -> Undo:
    weight_norm(subject.model.policy[0])
    return None


def compiling(subject: Subject) -> Undo:
    """As `nn.Module.compile` does; compiling itself takes seconds."""
    network = subject.model.policy

    def call(*args: Any) -> Any:
        subject.count("compiled")
        return network._call_impl(*args)

    network._compiled_call_impl = call
    return lambda: setattr(network, "_compiled_call_impl", None)


@dataclass(frozen=True)
class Situation:
    """A change of a model or of its algorithm.

    Args:
        apply: Does it.
        is_fast: Whether the fast way stays eligible.
        calls: What must have been called afterwards.
        before_build: Whether it can only be done to a model that is handed over.
        frozen: Parameters that stay what they are.

    """

    apply: Callable[[Subject], Undo]
    is_fast: bool = True
    calls: None | str = None
    before_build: bool = False
    frozen: tuple[str, ...] = ()


SITUATIONS: dict[str, Situation] = {
    "nothing": Situation(lambda subject: None),
    **{
        f"frozen {name}": Situation(freezing(name), frozen=(name,))
        for name in ("policy", "vf_model", "layer", "head", "log_std")
    },
    "patched layer": Situation(patching("layer"), False, "patch of layer"),
    "patched sequential": Situation(patching("policy"), False, "patch of policy"),
    "patched values": Situation(patching("vf_model"), False, "patch of vf_model"),
    "patched outputs": Situation(patching("outputs"), False, "patch of outputs"),
    "patched model": Situation(patching("model"), False, "patch of model"),
    "patched class": Situation(patching_class(nn.Linear), False, "class"),
    "patched sequentials": Situation(patching_class(nn.Sequential), False, "class"),
    **{
        f"{register} of {name}": Situation(hooking(name, register), False, register)
        for name, register in (
            ("policy", "register_forward_hook"),
            ("layer", "register_forward_pre_hook"),
            ("outputs", "register_forward_hook"),
            ("vf_model", "register_full_backward_hook"),
            ("vf_model", "register_full_backward_pre_hook"),
        )
    },
    "parameter hook": Situation(hooking_weight("register_hook"), False, "register_hook"),
    "accumulation hook": Situation(
        hooking_weight("register_post_accumulate_grad_hook"),
        False,
        "register_post_accumulate_grad_hook",
    ),
    **{
        register: Situation(hooking_all(global_hooks, register), False, register)
        for register in (
            "register_module_forward_hook",
            "register_module_forward_pre_hook",
            "register_module_full_backward_hook",
        )
    },
    **{
        register: Situation(hooking_all(global_optimizer_hooks, register), True, register)
        for register in (
            "register_optimizer_step_pre_hook",
            "register_optimizer_step_post_hook",
        )
    },
    "subclassed layer": Situation(subclassing_layer, False),
    "subclassed model": Situation(lambda subject: None, False, before_build=True),
    "own outputs": Situation(lambda subject: None, False, before_build=True),
    "double": Situation(converting(torch.float64), False),
    "float": Situation(converting(torch.float32), False),
    "half": Situation(converting(torch.float16), False),
    "bfloat16": Situation(converting(torch.bfloat16), False),
    "converted back": Situation(converting_back),
    "converted twice": Situation(converting_twice),
    "moved": Situation(moving),
    "no gradients": Situation(removing_gradients),
    "shared layer": Situation(sharing_layer),
    "tied weights": Situation(tying_weights),
    "repeated layer": Situation(repeating_layer, before_build=True),
    "weight norm": Situation(normalizing_weight, False, before_build=True),
    "compiled": Situation(compiling, False, "compiled"),
}

DTYPES = {"double", "float", "half", "bfloat16"}

# ---- cases ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Options, and situations with the updates they are applied before and undone before."""

    dtype: torch.dtype
    discrete: bool
    actions: int
    resets: None | str
    network: dict[str, Any]
    options: dict[str, Any]
    #: (name, moment, end): -1 is before the algorithm is built.
    situations: list[tuple[str, int, int]]


def drawn(seed: int) -> Case:
    rng = random.Random(seed)
    names = list(SITUATIONS)
    chosen = [names[seed % len(names)]]
    chosen += rng.sample(names, 1) if rng.random() < 0.3 else []
    situations = []
    for name in dict.fromkeys(chosen):
        moment = -1 if SITUATIONS[name].before_build else rng.choice([-1, 0, 1])
        situations.append((name, moment, rng.choice([2, UPDATES])))
    resets = rng.choice([None, "next", "same"])
    if resets == "same" and DTYPES & set(chosen):
        resets = "next"  # see `test_values_of_final_observations_in_another_dtype`
    discrete = rng.random() < 0.5
    many = resets is not None and not discrete and rng.random() < 0.5
    dtype = torch.float64 if rng.random() < 0.8 else torch.float32
    network: dict[str, Any] = {
        "hiddens": [rng.choice([1, 4, 9])] * rng.choice([0, 1, 1, 2, 3]),
        "activation_fn": rng.choice(["relu", "tanh", "sigmoid", "elu", "swish", "gelu", "selu"]),
        "bias": rng.random() < 0.7,
        "shared": rng.random() < 0.2,
    }
    if not network["hiddens"] and "patched class" in chosen:
        network["hiddens"] = [4]  # see `test_a_head_alone_follows_a_patched_linear_layer`
    if not discrete:
        network["log_std_init"] = -4.0 if many else rng.choice([0.0, -0.5])
    size = rng.choice([None, 10, 15])
    eps = 1e-8 if dtype is torch.float64 and "half" not in chosen else 1e-2
    return Case(
        dtype=dtype,
        discrete=discrete,
        # Log-probabilities of so many actions, 3 nats each, overflow as ratios against 0.
        actions=(250 if dtype is torch.float64 else 38) if many else rng.choice([1, 3]),
        resets=resets,
        network=network,
        options={
            "objective": rng.choice(["ppo", "ppo", "a2c"]),
            "entropy_coeff": rng.choice([0.0, 0.05]),
            "vf_loss": rng.choice(["smooth_l1", "mse"]),
            "vf_clip_param": rng.choice([None, 0.05, 5.0]),
            "vf_coeff": rng.choice([1.0, 0.5]),
            "clip_param": rng.choice([0.02, 0.2]),
            "dual_clip_param": rng.choice([None, 1.5]),
            "normalize_observations": rng.random() < 0.3,
            "normalize_values": rng.random() < 0.3,
            "bounds_loss_coeff": 0.0 if discrete else rng.choice([0.0, 0.2]),
            "normalize_rewards": rng.choice([True, False, "running"]),
            "sgd_minibatch_size": size,
            "num_sgd_iters": rng.choice([1, 3]),
            "accumulate_grads": rng.random() < 0.2 and size is not None,
            "max_grad_norm": rng.choice([None, 0.5]),
            "on_missing_final": rng.choice(["mask", "approximate", "terminate"]),
            # With a large `eps` a step changes by no more than its gradient does; float16 has none
            # below 1e-7.
            "optimizer_config": {
                "lr": 1e-4 if many else 3e-3,
                "eps": eps,
            },
        },
        situations=situations,
    )


def built(case: Case, seed: int) -> Subject:
    """A model in the situations of before the build; its algorithm is not built yet."""
    torch.manual_seed(seed)
    action_spec: Any = Unbounded(case.actions)
    if case.discrete:
        action_spec = Categorical(max(2, case.actions), shape=torch.Size([1]))
    env = DrawnEnv(action_spec, case.resets)
    names = [name for name, *_ in case.situations]
    config = dict(case.network)
    if "own outputs" in names:
        init = config.pop("log_std_init", 0.0)
        outputs: Any = OwnLogits(action_spec) if case.discrete else None
        outputs = outputs or OwnGaussian(action_spec, init, state_dependent_std=False)
        model: Any = DefaultModel(env.observation_spec, action_spec, outputs=outputs, **config)
    elif "subclassed model" in names:
        cls: Any = OwnDiscrete if case.discrete else OwnContinuous
        model = cls(env.observation_spec, action_spec, **config)
    else:
        cls = DefaultDiscreteModel if case.discrete else DefaultContinuousModel
        model = cls(env.observation_spec, action_spec, **config)
    for name, p in model.named_parameters():
        if not name.endswith("log_std"):
            nn.init.normal_(p, std=0.4)
    return Subject(model, env)


#: What a case does not draw.
FIXED = {"gamma": 0.95}


def finish(subject: Subject, case: Case, seed: int) -> None:
    options = {**FIXED, **case.options, "model": subject.model, "seed": seed}
    subject.algorithm = AlgorithmConfig(**options).build(subject.env)


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [x for leaf in value for x in tensors_of(leaf)] if isinstance(value, tuple) else []


def copy_rollout(to: Any, source: Any) -> None:
    """Everything that an update reads of a rollout."""
    for key, value in vars(source.rollout).items():
        pairs = zip(tensors_of(vars(to.rollout)[key]), tensors_of(value), strict=True)
        for own, other in pairs:
            own.copy_(other)
    to._reward_scale, to._rows_to_learn = source._reward_scale, source._rows_to_learn


def state_of(algorithm: Any, p: Any) -> dict[str, torch.Tensor]:
    return {k: x.clone() for k, x in algorithm.optimizer.state.get(p, {}).items()}


def check_rows(algorithm: Any) -> None:
    """Log-probabilities and values are stored as the policy, called, computes them."""
    rollout, policy = algorithm.rollout, algorithm.policy
    obs = tuple(leaf.flatten(0, 1) for leaf in rollout.obs)
    with torch.no_grad():
        distribution, values, _ = policy._respond(obs, ())
        logp = distribution.latents_logp(rollout.actions[0].flatten(0, 1))
    rows = len(logp) - rollout.num_envs
    tolerance = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(rollout.values.flatten(0, 1), values.to(rollout.dtype), **tolerance)
    torch.testing.assert_close(rollout.logp[:-1].flatten(0, 1), logp[:rows], **tolerance)


def check(seed: int) -> None:
    """Train twice, and compare after each update."""
    case = drawn(seed)
    one, other = subjects = [built(case, seed) for _ in range(2)]
    active: dict[str, list[Undo]] = {}
    with ExitStack() as stack:

        def apply(moment: int) -> None:
            for name in [n for n, _, end in case.situations if end == moment and n in active]:
                for undo in reversed(active.pop(name)):
                    if undo is not None:
                        undo()
            for name, start, _ in case.situations:
                if start == moment:
                    active[name] = []
                    for subject in subjects:
                        undo = SITUATIONS[name].apply(subject)
                        active[name].append(undo)

        def undo_all() -> None:
            for undos in reversed(active.values()):
                for undo in reversed(undos):
                    if undo is not None:
                        undo()

        stack.callback(undo_all)
        apply(-1)
        for subject in subjects:
            finish(subject, case, seed)
        for update in range(UPDATES):
            apply(update)
            check_update(case, one, other, active, seed + update)


def check_update(
    case: Case, one: Subject, other: Subject, active: dict[str, Any], seed: int
) -> None:
    a, b = one.algorithm, other.algorithm
    frozen = [p for p in a.policy.model.parameters() if not p.requires_grad]
    before = [(p.clone(), state_of(a, p)) for p in frozen]
    one.calls.clear()
    # Which way it takes depends on nothing but the situation.
    is_fast = eligible(a.policy, a.objective) is None
    one.was_fast |= is_fast  # from then on, they differ by rounding
    dtypes = {p.dtype for p in a.policy.model.parameters()}
    for name in active:
        if name in DTYPES and dtypes == {case.dtype}:  # as it was, or converted back since
            continue
        assert SITUATIONS[name].is_fast or not is_fast, name
    acts = actor(a.policy, a.rollout, deterministic=False)
    assert isinstance(acts, NativeActor) is (eligible(a.policy) is None)
    torch.manual_seed(seed)
    a.collect()
    with pytest.MonkeyPatch.context() as general:
        general.setattr("everstep.algorithms.algorithm.actor", lambda *_, **__: None)
        torch.manual_seed(seed)
        b.collect()
    if case.dtype is torch.float64 and dtypes == {torch.float64}:
        check_rows(a)
    copy_rollout(b, a)
    copy_moments(b, a)
    torch.manual_seed(seed)
    stats = a.step()
    assert (a._fast is not None) is is_fast
    with pytest.MonkeyPatch.context() as general:
        general.setattr("everstep.algorithms.algorithm.learner", lambda *_: None)
        torch.manual_seed(seed)
        expected = b.step()
    for name in active:
        calls = SITUATIONS[name].calls
        assert calls is None or one.calls.get(calls, 0) > 0, name
    compare(a, b, case.dtype, exact=not one.was_fast)
    for key, value in expected.items():
        if not key.startswith("profiling"):
            bound = 1e-9 if case.dtype is torch.float64 else 1e-3
            assert stats[key] == pytest.approx(value, rel=bound, abs=bound, nan_ok=True), key
    for p, (weight, state) in zip(frozen, before, strict=True):
        assert torch.equal(p, weight)
        assert all(torch.equal(x, a.optimizer.state[p][k]) for k, x in state.items())
        assert state or p not in a.optimizer.state


def copy_moments(to: Any, source: Any) -> None:
    """Moments of rewards, which a rollout of its own has updated."""
    for own, its in zip(
        to.discounted_returns.buffers(), source.discounted_returns.buffers(), strict=True
    ):
        own.copy_(its)


def compare(a: Any, b: Any, dtype: torch.dtype, *, exact: bool) -> None:
    named = dict(b.policy.model.named_parameters())
    for name, p in a.policy.model.named_parameters():
        assert p.isfinite().all(), name
        if exact:
            assert torch.equal(p, named[name]), name
            continue
        # In float32, gradients of some hundred rows are off by 1e-6 of their sum of magnitudes,
        # and each of up to 12 steps by lr/eps = 0.3 of that.
        bound = 1e-9 if p.dtype is dtype is torch.float64 else 2e-5
        torch.testing.assert_close(p, named[name], rtol=bound, atol=bound, msg=name)
    if a.policy.normalizer is not None:
        pairs = zip(a.policy.normalizer.buffers(), b.policy.normalizer.buffers(), strict=True)
        assert all(torch.equal(x, y) for x, y in pairs)


@pytest.fixture
def default_dtype() -> Any:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("default_dtype")
@pytest.mark.filterwarnings("ignore:.*backward hook:UserWarning")
@pytest.mark.parametrize("seed", range(6 * len(SITUATIONS)))
def test_training_is_that_of_autograd(seed: int) -> None:
    torch.set_default_dtype(drawn(seed).dtype)
    check(seed)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("default_dtype")
@pytest.mark.filterwarnings("ignore:.*backward hook:UserWarning")
@pytest.mark.parametrize("seed", range(6 * len(SITUATIONS), 12 * len(SITUATIONS)))
def test_training_is_that_of_autograd_in_many_situations(seed: int) -> None:
    torch.set_default_dtype(drawn(seed).dtype)
    check(seed)
