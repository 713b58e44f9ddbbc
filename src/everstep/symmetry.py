"""Symmetry: a mirrored env step is as good an experience as the one that was made.

A reflection maps observations and actions, and is its own inverse. Minibatches are learned from
twice, as they are and mirrored (`augment`), or the policy is pulled towards one that acts on a
mirrored observation as it would in the mirror (`mirror_coeff`), or both.

Source: arXiv 2403.04359 (both ways, for legged robots); their parameters are those of rsl_rl.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torchrl.data import Binary, Bounded, MultiOneHot, OneHot, TensorSpec

from .core.losses import weighted_sum
from .core.rollouts import Minibatch, Rollout
from .core.validation import unknown_name
from .data import REFLECTED, DataKeys
from .distributions import Distribution, Normal
from .env.specs import (
    Leaves,
    Path,
    Structure,
    described,
    is_choice,
    leaf_specs,
    options,
    random_values,
)
from .errors import ConfigError
from .policies import Follower, PolicyCore, RecurrentPolicy

#: Keys of a table.
_KEYS = ("permutation", "signs", "options")

#: Features of distributions that can be mirrored, all others describe noise of one sample.
_FEATURES = ("mean", "log_std", "logits", DataKeys.ACTION_MASK)

#: Rows of drawn observations that a function is tried on.
_TRIED = 16


class Symmetry:
    """A reflection of observations and actions, and what is done with it.

    Element `i` of a mirrored leaf is `signs[i] · x[permutation[i]]`, or for choices
    `options[i][x[permutation[i]]]`. A table is a mapping with these keys; what is left out changes
    nothing. A list alone is `signs`, or for choices `options`. Of observations or actions that are
    mappings, each leaf has a table by its name; `{}` changes nothing. Observations are mirrored as
    the environment returns them, before they are normalised; the mask of actions is mirrored with
    them, and has no table.

    Args:
        observation: Tables, or a function from observations `[B, …]` (a tensor, or nested dicts of
            tensors) to mirrored ones.
        action: Tables, or a function of actions that changes signs and order alone, or the options
            of one choice.
        augment: Whether mirrored rows are learned from with half of the weight.
        mirror_coeff: Weight of the mirror loss. For normal distributions it is the mean squared
            difference between the mean for the mirrored observation and the mirrored mean, else
            KL(mirrored ‖ for the mirrored observation). Gradients flow through the second
            observation alone.

    Raises:
        ConfigError: If it would do nothing, or a number is out of range.

    """

    def __init__(
        self,
        observation: Any,
        action: Any,
        *,
        augment: bool = True,
        mirror_coeff: float = 0.0,
    ) -> None:
        is_number = isinstance(mirror_coeff, int | float) and not isinstance(mirror_coeff, bool)
        if not is_number or not 0 <= mirror_coeff < float("inf"):
            raise ConfigError(
                f"`symmetry.mirror_coeff` must be a finite number of at least 0; got "
                f"{mirror_coeff!r}. Try 0.5."
            )
        if not isinstance(augment, bool):
            raise ConfigError(f"`symmetry.augment` must be true or false; got {augment!r}.")
        if not augment and not mirror_coeff:
            raise ConfigError(
                "`symmetry` has no effect: `augment` is off and `mirror_coeff` 0. Set one of them, "
                "or drop `symmetry`."
            )
        self.observation, self.action = _listed(observation), _listed(action)
        self.augment, self.mirror_coeff = augment, float(mirror_coeff)

    def __repr__(self) -> str:
        return f"Symmetry(augment={self.augment}, mirror_coeff={self.mirror_coeff})"

    def as_config(self) -> dict[str, Any]:
        """Description for a file, which makes the same symmetry."""
        return dict(vars(self))


def _listed(tables: Any) -> Any:
    """Tables without arrays and tensors, as a file can hold them."""
    if isinstance(tables, Mapping):
        return {key: _listed(value) for key, value in tables.items()}
    return tables.tolist() if hasattr(tables, "tolist") else tables


def make_symmetry(chosen: Any) -> None | Symmetry:
    """The symmetry of an object or of its description, such as `{"observation": …, "action": …}`.

    Raises:
        ConfigError: If it is neither.

    """
    if chosen is None or isinstance(chosen, Symmetry):
        return chosen
    known = (*REFLECTED, "augment", "mirror_coeff")
    if not isinstance(chosen, Mapping):
        raise ConfigError(
            "`symmetry` expected an everstep.symmetry.Symmetry, or a mapping with `observation` "
            f"and `action`; got {chosen!r}."
        )
    problems = [f"`symmetry.{x}`: {unknown_name('key', x, known)}." for x in {*chosen} - {*known}]
    missing = [key for key in REFLECTED if key not in chosen]
    problems += [f"`symmetry.{key}`: required, and missing; give its table." for key in missing]
    if problems:
        raise ConfigError(problems)
    return Symmetry(**chosen)


class Mirror:
    """A symmetry, for the observations and actions of one policy.

    Args:
        symmetry: The symmetry.
        policy: The policy that learns.
        rollout: Where its experience is stored.

    Raises:
        ConfigError: If the symmetry does not fit, or is not its own inverse.

    """

    def __init__(self, symmetry: Symmetry, policy: PolicyCore[Any], rollout: Rollout) -> None:
        self.augment, self.mirror_coeff = symmetry.augment, symmetry.mirror_coeff
        self.policy, device = policy, rollout.device
        specs = [spec.to("cpu") for spec in policy._spec]
        self._observation, self._action = (Structure.of(spec) for spec in specs)
        tables = _tables("action", _tabled(symmetry.action, specs[1]), specs[1])
        self._actions = [table.to(device) for table in tables]
        has_mask = (DataKeys.ACTION_MASK,) in self._observation.paths
        self._function = None
        self._leaves: list[None | _Map] = []
        if callable(symmetry.observation):
            self._function = symmetry.observation
            self._try(specs[0], device)
        else:
            mask = self._mask() if has_mask else None
            found = _tables("observation", symmetry.observation, specs[0], mask)
            self._leaves = [table.to(device) for table in found]
        self._check_distribution()
        self._follower: None | Follower = None
        #: Recurrent states of the mirrored env steps before each sequence, `[S, N, …]`; empty if
        #: the policy has none, or mirrored ones are the same.
        self.states: Leaves = ()
        if isinstance(policy, RecurrentPolicy):
            self._follower = Follower(policy, self.obs)
            self.states = tuple(x.clone() for x in rollout.states)

    @property
    def followers(self) -> list[Follower]:
        """Policies that remember something from one rollout to the next."""
        return [] if self._follower is None else [self._follower]

    # ---- what is mirrored -----------------------------------------------------------------------

    def obs(self, leaves: Leaves) -> Leaves:
        """Mirrored observations, `[…, *shape]` each."""
        if self._function is None:
            return tuple(f(x) for f, x in zip(self._leaves, leaves, strict=True) if f is not None)
        lead = leaves[0].shape[: leaves[0].ndim - len(self._observation.shapes[0])]
        shapes = self._observation.shapes
        flat = [x.reshape(-1, *shape) for x, shape in zip(leaves, shapes, strict=True)]
        found = self._function(self._observation.nest(flat))
        try:
            mirrored = self._observation.flatten(found)
        except (AssertionError, AttributeError, KeyError, TypeError) as error:
            name = getattr(self._function, "__name__", repr(self._function))
            form = type(self._observation.nest(flat)).__name__
            raise ConfigError(
                f"`symmetry.observation`: {name} must return observations of the form that it "
                f"gets, {form}; got {type(found).__name__}."
            ) from error
        return tuple(x.reshape(*lead, *shape) for x, shape in zip(mirrored, shapes, strict=True))

    def actions(self, actions: Any) -> Any:
        """Mirrored actions `[B, …]`, as distributions take them."""
        leaves = zip(self._actions, self._action.flatten(actions), strict=True)
        return self._action.unflatten(tuple(f(x) for f, x in leaves), [len(actions)])

    def features(self, features: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Features of the mirrored distribution, from those of a distribution."""
        (table,) = self._actions
        mirrors = {"mean": table, "log_std": table.unsigned, "logits": table.of_options}
        mirrors[DataKeys.ACTION_MASK] = table.of_options
        names = {*features.keys()}
        return {name: mirrors[name](features[name]) for name in _FEATURES if name in names}

    def minibatch(self, minibatch: Minibatch, labels: Sequence[str]) -> tuple[Minibatch, Minibatch]:
        """A minibatch, and the mirrored one: everything but observations and actions is the same.

        Args:
            minibatch: The minibatch.
            labels: Names of the objective's labels, which are features of a distribution.

        """
        count = len(self.states)
        states, mirrored = minibatch.states, minibatch.states
        if count:
            states, mirrored = states[:-count], states[-count:]
        own = replace(minibatch, states=states)
        features = self.features(dict(zip(labels, own.labels, strict=True))) if labels else {}
        return own, replace(
            own,
            obs=self.obs(own.obs),
            actions=self.actions(own.actions),
            states=mirrored,
            labels=tuple(features[name] for name in labels),
        )

    def loss(
        self, minibatch: Minibatch, distribution: Distribution, mirrored: Distribution
    ) -> torch.Tensor:
        """The mirror loss before its weight, 0-d.

        Args:
            minibatch: The minibatch.
            distribution: The policy's distribution for its observations.
            mirrored: The policy's distribution for the mirrored observations.

        """
        with torch.no_grad():
            features = self.features(distribution.features)
            target: Any = type(distribution)(features, distribution.model)
        if isinstance(mirrored, Normal):
            rows = (mirrored.mean - target.mean).square().flatten(1).mean(-1, keepdim=True)
        else:
            rows = target.kl_divergence(mirrored)
        excluded = minibatch.weight == 0
        return weighted_sum(rows.masked_fill(excluded, 0.0), minibatch.weight)

    # ---- collection -----------------------------------------------------------------------------

    def follow(self, rollout: Rollout, *, was_reset: bool, resets: Sequence[bool]) -> None:
        """Find the recurrent states of a rollout's mirrored rows.

        Args:
            rollout: Complete rollout.
            was_reset: Whether environments were reset before it.
            resets: Which of its sequences reset recurrent states.

        """
        if self._follower is None:
            return
        followed = self._follower.follow(rollout, was_reset=was_reset, resets=resets)
        for t, (states, _) in enumerate(followed):
            if t % rollout.seq_len == 0:
                for storage, state in zip(self.states, states, strict=True):
                    storage[t // rollout.seq_len].copy_(state)

    # ---- checks ---------------------------------------------------------------------------------

    def _mask(self) -> "_Map":
        """The map of an action mask."""
        if len(self._actions) != 1:
            raise ConfigError(
                "`symmetry.action`: a mask of actions needs one leaf of actions; got "
                f"{len(self._actions)}. Give a function as `observation`, which mirrors the mask."
            )
        return self._actions[0].of_options

    def _check_distribution(self) -> None:
        cls = self.policy.distribution_cls
        known = issubclass(cls, Normal) or cls.kl_divergence is not Distribution.kl_divergence
        if self.mirror_coeff and not (known and self._action.is_plain):
            raise ConfigError(
                "`symmetry.mirror_coeff` needs a distribution over one tensor with "
                f"`kl_divergence`; got {cls.__name__} over {described(self.policy._spec[1])}. "
                "Set it to 0, and `augment` to true."
            )

    def _try(self, spec: TensorSpec, device: torch.device) -> None:
        """Raise if the function of observations is not its own inverse, on drawn ones."""
        with torch.random.fork_rng(devices=[]):  # actions are drawn as with a table
            drawn = random_values(spec, [_TRIED])
        leaves = tuple(x.to(device) for x in self._observation.flatten(drawn))
        name = getattr(self._function, "__name__", repr(self._function))
        given = tuple(x.clone() for x in leaves)
        form = f"It gets observations [B, …] of {described(spec)}, and returns mirrored ones."
        try:
            once = tuple(x.clone() for x in self.obs(given))
            twice = self.obs(tuple(x.clone() for x in once))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"`symmetry.observation`: {name} raised {type(error).__name__}: {error}. {form}"
            ) from error
        if not all(map(torch.equal, given, leaves)):
            raise ConfigError(
                f"`symmetry.observation`: {name} writes into the observations that it gets, from "
                "which the policy learns, too. Return new ones: `-obs` rather than `obs.neg_()`."
            )
        for path, before, x, after in zip(
            self._observation.paths, leaves, once, twice, strict=True
        ):
            where = f"`symmetry.observation`{' of ' + '.'.join(path) if path else ''}: {name}"
            if x.dtype != before.dtype:
                raise ConfigError(f"{where} must keep the dtype {before.dtype}; got {x.dtype}.")
            if not torch.allclose(before.double(), after.double(), rtol=1e-4, atol=1e-5):
                i = int((before != after).flatten(1).any(1).nonzero()[0])
                found, tried = (x[i].flatten()[:8].tolist() for x in (after, before))
                raise ConfigError(
                    f"{where} must be its own inverse; twice makes {found} of {tried}. Mirror what "
                    "it has mirrored back."
                )


class _Map:
    """A map of the elements of a leaf: from where each comes, and what becomes of it.

    Args:
        source: Element that each comes from, `[D]`.
        signs: Factor of each, `[D]`; None for 1.
        lowest: First option of each choice, `[D]`; None for 0.
        options: What the options of all choices become, one after the other, `[Σ n]`; None if the
            elements are no choices.
        counts: Numbers of options.

    """

    def __init__(
        self,
        source: torch.Tensor,
        signs: None | torch.Tensor = None,
        *,
        lowest: None | torch.Tensor = None,
        options: None | torch.Tensor = None,
        counts: None | list[int] = None,
    ) -> None:
        self.source, self.signs, self.lowest, self.options = source, signs, lowest, options
        self._offsets: None | torch.Tensor = None
        self.unsigned = self if signs is None else _Map(source)
        #: The map of the options of all choices, which logits and masks have.
        self.of_options = self
        if options is not None:
            assert counts is not None
            starts = torch.tensor([0, *accumulate(counts)][:-1])
            self._offsets = starts
            # Option k of choice i is option `options[i][k]` of choice `source[i]` in the mirror.
            rows = [
                starts[int(j)] + options[s : s + n].argsort()
                for j, s, n in zip(source, starts, counts, strict=True)
            ]
            self.of_options = _Map(torch.cat(rows))

    def to(self, device: torch.device) -> "_Map":
        """The map, on a device."""
        for name in ("source", "signs", "lowest", "options", "_offsets"):
            x = getattr(self, name)
            setattr(self, name, None if x is None else x.to(device))
        for other in (self.unsigned, self.of_options):
            if other is not self:
                other.to(device)
        return self

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Mirrored elements, in the shape of `x` `[…, *shape]`, whose last elements they are."""
        count = len(self.source)
        flat = x.reshape(-1, count)
        found = flat.index_select(-1, self.source)
        if self.options is not None:
            assert self._offsets is not None
            choices = found.long()
            choices = choices if self.lowest is None else choices - self.lowest
            found = self.options[choices + self._offsets]
            found = found if self.lowest is None else found + self.lowest
            found = found.to(x.dtype)
        elif self.signs is not None:
            found = found * self.signs.to(found.dtype)
        return found.reshape(x.shape)


def _tables(name: str, described_as: Any, spec: TensorSpec, mask: None | _Map = None) -> list[_Map]:
    """The maps of all leaves of a spec.

    Args:
        name: `observation` or `action`.
        described_as: Tables as a configuration has them.
        spec: The spec.
        mask: The map of the action mask; None if there is none.

    Raises:
        ConfigError: Lists every leaf whose table is missing, does not fit, or is not its own
            inverse.

    """
    leaves, given = leaf_specs(spec), dict(_by_path(described_as, spec))
    problems, maps = [], []
    own = [path for path in leaves if mask is None or path != (DataKeys.ACTION_MASK,)]
    known = ", ".join(".".join(path) for path in own)
    for path in given.keys() - {*own}:
        what = f"`symmetry.{name}.{'.'.join(path)}`"
        if path in leaves:
            problems.append(f"{what}: the mask is mirrored with the actions. Drop it.")
        else:
            problems.append(f"{what}: there is no such leaf; got a table. Leaves are {known}.")
    for path, leaf in leaves.items():
        where = ".".join((f"symmetry.{name}", *path))
        if path not in own:
            assert mask is not None
            maps.append(mask)
        elif path not in given:
            problems.append(
                f"`{where}`: every leaf needs a table; it has none. Give {{}} if the mirror does "
                "not change it."
            )
        else:
            try:
                maps.append(_map_of(where, given[path], leaf, is_action=name == "action"))
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(problems)
    return maps


def _by_path(value: Any, spec: TensorSpec, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Tables by the paths of leaves."""
    inner = getattr(spec, "items", None)
    if inner is None or not isinstance(value, Mapping):
        yield path, value
        return
    children = dict(inner())
    for key, entry in value.items():
        if key in children:
            yield from _by_path(entry, children[key], (*path, key))
        else:
            yield (*path, str(key)), entry


def _map_of(where: str, given: Any, leaf: TensorSpec, *, is_action: bool) -> _Map:
    """The map of a leaf, from its table."""
    counts = options(leaf) if is_action or is_choice(leaf) else []
    is_hot = isinstance(leaf, OneHot | MultiOneHot)
    is_flag = isinstance(leaf, Binary) or leaf.dtype is torch.bool
    is_chosen = bool(counts) and not is_hot and not is_flag
    size = leaf.shape.numel()
    if isinstance(given, Sequence) and not isinstance(given, str):
        if is_hot or is_flag:
            raise ConfigError(
                f"`{where}`: flags have no signs; got the list {given!r}. Give {{permutation: …}}."
            )
        given = {"options" if is_chosen else "signs": given}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"`{where}` expected a list, or a mapping with {', '.join(_KEYS)}; got {given!r}."
        )
    for key in given:
        if key not in _KEYS:
            raise ConfigError(f"`{where}.{key}`: {unknown_name('key', str(key), _KEYS)}.")
    source = _integers(f"{where}.permutation", given.get("permutation", [*range(size)]), size)
    if sorted(source) != [*range(size)] or any(source[source[i]] != i for i in range(size)):
        bad = next((i for i, j in enumerate(source) if not 0 <= j < size), None)
        rule = (
            f"has indices from 0 to {size - 1}; got {source[bad]} in place {bad}"
            if bad is not None
            else f"must be its own inverse (p[p[i]] = i); got {source}"
        )
        raise ConfigError(f"`{where}.permutation` {rule}. Exchange two elements, or leave them.")
    if is_chosen:
        return _choices(where, given, leaf, source, counts)
    if "options" in given:
        raise ConfigError(
            f"`{where}.options` is for choices; the leaf is {described(leaf)}. Give `permutation` "
            "or `signs`."
        )
    if is_hot:
        _check_groups(where, source, counts or options(leaf))
    return _numbers(where, given, leaf, source, signed=not (is_hot or is_flag))


def _numbers(
    where: str, given: Mapping[str, Any], leaf: TensorSpec, source: list[int], *, signed: bool
) -> _Map:
    """The map of measured numbers, or of flags."""
    size = len(source)
    signs = given.get("signs", [1] * size)
    signs = _integers(f"{where}.signs", signs, size)
    if any(sign not in (1, -1) for sign in signs):
        i = next(i for i, sign in enumerate(signs) if sign not in (1, -1))
        raise ConfigError(f"`{where}.signs` has 1 and -1 alone; got {signs[i]} in place {i}.")
    if any(signs[i] != signs[j] for i, j in enumerate(source)):
        i = next(i for i, j in enumerate(source) if signs[i] != signs[j])
        raise ConfigError(
            f"`{where}`: mirrored twice, element {i} would change its sign: it is exchanged with "
            f"element {source[i]}, and their signs are {signs[i]} and {signs[source[i]]}. Give "
            "both the same."
        )
    unsigned = not signed or leaf.dtype is torch.uint8
    if unsigned and -1 in signs:
        raise ConfigError(
            f"`{where}.signs`: {described(leaf)} has no negative numbers; got -1 in place "
            f"{signs.index(-1)}. Give 1, or a function."
        )
    map_ = _Map(torch.tensor(source), torch.tensor(signs) if -1 in signs else None)
    if isinstance(leaf, Bounded) and leaf.dtype is not torch.bool:
        low, high = (x.expand(leaf.shape).flatten() for x in (leaf.space.low, leaf.space.high))
        ends = map_(low.double()), map_(high.double())
        lows, highs = torch.minimum(*ends), torch.maximum(*ends)
        wrong = ~(torch.isclose(lows, low.double()) & torch.isclose(highs, high.double()))
        if bool(wrong.any()):
            i = int(wrong.nonzero()[0])
            raise ConfigError(
                f"`{where}`: the mirror must keep the bounds of the space. Element {i} has "
                f"{low[i].item():g} to {high[i].item():g}, its mirrored one {lows[i].item():g} to "
                f"{highs[i].item():g}. Check signs and permutation, or the space."
            )
    return map_


def _choices(
    where: str, given: Mapping[str, Any], leaf: TensorSpec, source: list[int], counts: list[int]
) -> _Map:
    """The map of choices."""
    if "signs" in given:
        raise ConfigError(
            f"`{where}.signs`: choices have no signs; got {given['signs']!r}. Give `options`: the "
            "option that each becomes."
        )
    rows = given.get("options", [[*range(n)] for n in counts])
    if (
        len(counts) == 1
        and isinstance(rows, Sequence)
        and not any(isinstance(row, Sequence) for row in rows)
    ):
        rows = [rows]
    if not isinstance(rows, Sequence) or len(rows) != len(counts):
        got = len(rows) if isinstance(rows, Sequence) else rows
        raise ConfigError(
            f"`{where}.options` has a list for each of {len(counts)} choices; got {got}."
        )
    places = [f"{where}.options" + (f".{i}" if len(counts) > 1 else "") for i in range(len(counts))]
    rows = [_integers(place, row, n) for place, row, n in zip(places, rows, counts, strict=True)]
    for i, (place, row, n) in enumerate(zip(places, rows, counts, strict=True)):
        if any(not 0 <= k < n for k in row):
            k = next(k for k in row if not 0 <= k < n)
            raise ConfigError(
                f"`{place}` has options from 0 to {n - 1}; got {k}. Options count from 0."
            )
        j = source[i]
        if counts[j] != n:
            raise ConfigError(
                f"`{where}.permutation` exchanges choices {i} and {j}, which have {n} and "
                f"{counts[j]} options. Exchange choices of as many options."
            )
        other = rows[j]
        if any(row[other[k]] != k for k in range(n) if 0 <= other[k] < n):
            raise ConfigError(
                f"`{place}` must be its own inverse"
                f"{'' if i == j else f' together with that of choice {j}'}; got {row}. Exchange "
                "two options, or leave them."
            )
    lowest = None
    if isinstance(leaf, Bounded):
        lowest = leaf.space.low.expand(leaf.shape).flatten().long()
    flat = torch.tensor([k for row in rows for k in row])
    return _Map(torch.tensor(source), options=flat, lowest=lowest, counts=counts)


def _check_groups(where: str, source: list[int], counts: list[int]) -> None:
    """Raise if a permutation tears the options of a one-hot choice apart."""
    group = [i for i, n in enumerate(counts) for _ in range(n)]
    for i in range(len(counts)):
        images = {group[source[k]] for k, g in enumerate(group) if g == i}
        if len(images) > 1:
            raise ConfigError(
                f"`{where}.permutation` must keep the options of a choice together; those of "
                f"choice {i} come from {sorted(images)}. Exchange whole choices, or options of one."
            )


def _integers(where: str, given: Any, size: int) -> list[int]:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != size:
        got = f"{len(given)}" if isinstance(given, Sequence) else repr(given)
        raise ConfigError(f"`{where}` needs {size} numbers, one for each element; got {got}.")
    whole = [
        not isinstance(x, bool)
        and (isinstance(x, int) or (isinstance(x, float) and x.is_integer()))
        for x in given
    ]
    if not all(whole):
        raise ConfigError(f"`{where}` has whole numbers; got {given[whole.index(False)]!r}.")
    return [int(x) for x in given]


def _tabled(given: Any, spec: TensorSpec) -> Any:
    """The table of a function of actions, which is tried; tables are returned as they are.

    Raises:
        ConfigError: If a table cannot say what the function does.

    """
    if not callable(given):
        return given
    leaves = leaf_specs(spec)
    where = f"`symmetry.action`: {getattr(given, '__name__', given)!r}"
    counts = options(spec) if len(leaves) == 1 else []
    if len(leaves) != 1 or (counts and len(counts) != 1):
        raise ConfigError(
            f"{where}: a function mirrors one tensor of numbers, or one choice; actions are "
            f"{described(spec)}. Give tables."
        )

    def mirrored(actions: torch.Tensor) -> torch.Tensor:
        try:
            found = given(actions.clone())
        except Exception as error:
            raise ConfigError(
                f"{where} raised {type(error).__name__}: {error}. It gets actions [B, …] of "
                f"{described(spec)}, and returns mirrored ones."
            ) from error
        if not (
            isinstance(found, torch.Tensor)
            and (found.shape, found.dtype) == (actions.shape, actions.dtype)
        ):
            form = getattr(found, "shape", type(found).__name__), getattr(found, "dtype", "")
            raise ConfigError(
                f"{where} must return a tensor like its argument, {[*actions.shape]} of "
                f"{actions.dtype}; got {form[0]} {form[1]}. Keep shape and dtype."
            )
        return found

    if counts:
        actions = torch.arange(counts[0], dtype=spec.dtype).reshape(-1, *spec.shape)
        return {"options": mirrored(actions).flatten().tolist()}
    size = spec.shape.numel()
    unit = torch.eye(size, dtype=spec.dtype).reshape(size, *spec.shape)
    matrix = mirrored(unit).reshape(size, size).T  # mirrored = matrix · action
    with torch.random.fork_rng(devices=[]):
        drawn = random_values(spec, [_TRIED])
    expected = (drawn.reshape(_TRIED, -1) @ matrix.T).reshape(drawn.shape)
    source = matrix.abs().argmax(1)
    signs = matrix.gather(1, source[:, None]).squeeze(1)
    is_table = bool((matrix.abs().sum(1) == 1).all()) and bool((signs.abs() == 1).all())
    if not is_table or not torch.allclose(mirrored(drawn), expected, rtol=1e-4, atol=1e-5):
        raise ConfigError(
            f"{where} may change signs and order of an action's elements alone; unit actions "
            f"become {matrix.T.tolist()}. Give a table."
        )
    return {"permutation": source.tolist(), "signs": signs.tolist()}
