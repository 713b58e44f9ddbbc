"""Stop conditions: the law of each, its numbers, its configuration."""

import math
import random

import pytest

from everstep.conditions import (
    And,
    HitsLowerBound,
    HitsUpperBound,
    Or,
    Plateaus,
    StopsDecreasing,
    StopsIncreasing,
    condition_from_config,
)
from everstep.errors import ConfigError

KEY = "episodes/return_mean"
PATIENT = (Plateaus, StopsDecreasing, StopsIncreasing)


def results(condition, values):
    """Answers of the condition for each value; None stands for an absent statistic."""
    return [condition({} if value is None else {KEY: value}) for value in values]


def every_condition():
    return [
        HitsUpperBound(KEY, 1.0),
        HitsLowerBound(KEY, 1.0),
        Plateaus(KEY, patience=2),
        StopsIncreasing(KEY, patience=2),
        StopsDecreasing(KEY, patience=2),
    ]


@pytest.mark.parametrize("cls", PATIENT)
def test_absent_statistics_change_no_later_answer(cls):
    draw = random.Random(0)
    for _ in range(200):
        values = [draw.choice([0.0, 1.0, 1.0005, 2.0, math.nan]) for _ in range(20)]
        with_gaps = [v for value in values for v in ([None] * draw.randrange(3) + [value])]
        plain = results(cls(KEY, patience=3), values)
        gapped = results(cls(KEY, patience=3), with_gaps)
        answers = (a for a, v in zip(gapped, with_gaps, strict=True) if v is not None)
        assert list(answers) == plain
        assert not any(a for a, v in zip(gapped, with_gaps, strict=True) if v is None)


@pytest.mark.parametrize("cls", PATIENT)
def test_nan_counts_against_patience_and_is_forgotten(cls):
    condition = cls(KEY, patience=3)
    assert results(condition, [5.0, math.nan, math.nan, math.nan]) == [False, False, False, True]
    assert (
        vars(condition)[
            {Plateaus: "old_value"}.get(cls, "max_" if cls is StopsIncreasing else "min_")
        ]
        == 5.0
    )


def test_nan_does_not_reset_the_best():
    increasing = StopsIncreasing(KEY, patience=2)
    assert results(increasing, [10.0, math.nan, 9.0]) == [False, False, True]
    assert increasing.max_ == 10.0


def test_nan_hits_no_bound():
    assert results(HitsUpperBound(KEY, 0.0), [math.nan]) == [False]
    assert results(HitsLowerBound(KEY, 0.0), [math.nan]) == [False]


def test_bounds_are_inclusive():
    assert results(HitsUpperBound(KEY, 475.0), [474.9, 475, 475.1]) == [False, True, True]
    assert results(HitsLowerBound(KEY, 0.1), [0.2, 0.1, -math.inf]) == [False, True, True]


def test_increasing_and_decreasing_mirror_each_other():
    draw = random.Random(1)
    values = [draw.uniform(-1, 1) for _ in range(100)]
    up = results(StopsIncreasing(KEY, patience=4), values)
    down = results(StopsDecreasing(KEY, patience=4), [-value for value in values])
    assert up == down
    assert any(up)


def test_stops_increasing_by_hand():
    values = [1, 2, 2, 1, 3, 3, 3, 3]
    expected = [False, False, False, True, False, False, True, True]
    assert results(StopsIncreasing(KEY, patience=2), values) == expected


def test_plateaus_by_hand():
    values = [100.0, 100.05, 100.1, 110.0, 110.1, 110.2]
    expected = [False, False, True, False, False, True]
    assert results(Plateaus(KEY, patience=2, rtol=1e-3), values) == expected


def test_plateaus_needs_a_previous_value():
    """A statistic that starts at 0 has not stayed anywhere yet."""
    assert results(Plateaus(KEY, patience=1), [0.0, 0.0]) == [False, True]


def test_plateaus_at_infinity():
    assert results(Plateaus(KEY, patience=1), [math.inf, 5.0, math.inf, math.inf]) == [
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("join", [And, Or])
def test_joins_call_every_member_each_time(join):
    """Short-circuiting would starve the members that count."""
    counting = StopsIncreasing(KEY, patience=2)
    condition = join([HitsUpperBound(KEY, 0.0 if join is Or else 1e9), counting])
    results(condition, [1.0, 1.0, 1.0])
    assert counting.losses == 2


def test_joins_equal_all_and_any():
    draw = random.Random(2)
    for _ in range(100):
        values = [draw.choice([0.0, 1.0, 2.0]) for _ in range(10)]
        single = [results(condition, values) for condition in every_condition()]
        rows = list(zip(*single, strict=True))
        assert results(And(every_condition()), values) == [all(row) for row in rows]
        assert results(Or(every_condition()), values) == [any(row) for row in rows]


def test_joins_nest():
    condition = Or([And([HitsUpperBound(KEY, 1), HitsUpperBound(KEY, 2)]), HitsLowerBound(KEY, 0)])
    assert results(condition, [1.5, 2.5, -1.0]) == [False, True, True]


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: HitsUpperBound(KEY, math.nan), "upper_bound"),
        (lambda: HitsUpperBound(KEY, math.inf), "upper_bound"),
        (lambda: HitsUpperBound(KEY, "475"), "upper_bound"),
        (lambda: HitsLowerBound(KEY, True), "lower_bound"),
        (lambda: HitsLowerBound("", 1.0), "key"),
        (lambda: Plateaus(KEY, patience=0), "patience"),
        (lambda: Plateaus(KEY, patience=2.5), "patience"),
        (lambda: Plateaus(KEY, rtol=-1e-3), "rtol"),
        (lambda: Plateaus(KEY, rtol=math.nan), "rtol"),
        (lambda: StopsIncreasing(KEY, patience=-1), "patience"),
        (lambda: StopsDecreasing(None), "key"),
        (lambda: And([]), "And"),
        (lambda: Or([3]), "Or"),
    ],
)
def test_bad_arguments_are_named(build, complaint):
    with pytest.raises(ConfigError, match=f"`{complaint}`"):
        build()


def test_every_bad_argument_is_named_at_once():
    with pytest.raises(ConfigError) as error:
        Plateaus(KEY, patience=0, rtol=-1.0)
    assert len(error.value.problems) == 2


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"HitsUpperBound": {"key": KEY, "bound": 475}}, HitsUpperBound(KEY, 475)),
        ({"HitsLowerBound": {"key": KEY, "bound": -1.5}}, HitsLowerBound(KEY, -1.5)),
        ({"Plateaus": {"key": KEY}}, Plateaus(KEY)),
        (
            {"Plateaus": {"key": KEY, "patience": 2, "rtol": 0.1}},
            Plateaus(KEY, patience=2, rtol=0.1),
        ),
        ({"StopsIncreasing": {"key": KEY, "patience": 3}}, StopsIncreasing(KEY, patience=3)),
        ({"StopsDecreasing": {"key": KEY}}, StopsDecreasing(KEY)),
        (
            {
                "And": [
                    {"HitsUpperBound": {"key": KEY, "bound": 1}},
                    {"Or": [{"Plateaus": {"key": KEY}}]},
                ]
            },
            And([HitsUpperBound(KEY, 1), Or([Plateaus(KEY)])]),
        ),
    ],
)
def test_configuration_builds_the_same_condition(config, expected):
    assert repr(condition_from_config(config)) == repr(expected)


@pytest.mark.parametrize(
    ("config", "problems"),
    [
        (
            {"HitsUperBound": {"key": KEY, "bound": 1}},
            ["HitsUperBound: unknown condition (did you mean HitsUpperBound?)"],
        ),
        (
            {"HitsUpperBound": {"key": KEY, "upper_bound": 1}},
            [
                "HitsUpperBound.upper_bound: unknown key (did you mean bound?)",
                "HitsUpperBound.bound: missing",
            ],
        ),
        (
            {"HitsUpperBound": {"key": KEY, "bound": math.nan}},
            ["HitsUpperBound.bound: `bound` must be a finite number; got nan."],
        ),
        (
            {"Plateaus": {"patience": 0, "rtol": "1e-3"}},
            [
                "Plateaus.key: missing",
                "Plateaus.patience: `patience` must be a whole number above 0; got 0.",
                "Plateaus.rtol: `rtol` must be a finite number, 0 or above; got '1e-3'.",
            ],
        ),
        (
            {"And": [{"Plateaus": {"key": KEY, "bound": 1}}, {"Or": []}]},
            [
                "And[0].Plateaus.bound: unknown key (known: key, patience, rtol)",
                "And[1].Or: expected a list of at least one condition; got []",
            ],
        ),
        (
            {"StopsIncreasing": 3},
            ["StopsIncreasing: expected a mapping with key, patience; got 3"],
        ),
    ],
)
def test_configuration_problems_are_all_listed(config, problems):
    with pytest.raises(ConfigError) as error:
        condition_from_config(config)
    assert list(error.value.problems) == problems


@pytest.mark.parametrize("config", [None, 3, "HitsUpperBound", [], {}, {"And": [], "Or": []}])
def test_configuration_must_be_one_condition(config):
    with pytest.raises(ConfigError, match="expected one condition"):
        condition_from_config(config)


def test_configuration_keys_that_are_not_text():
    with pytest.raises(ConfigError, match="3: unknown condition"):
        condition_from_config({3: {}})
    with pytest.raises(ConfigError, match=r"Plateaus\.7: unknown key"):
        condition_from_config({"Plateaus": {"key": KEY, 7: 1}})


def test_plateaus_below_zero_are_those_above():
    values = [100.0, 100.05, 100.1, 110.0, 110.1, 110.2]
    mirrored = results(Plateaus(KEY, patience=2, rtol=1e-3), [-value for value in values])
    assert mirrored == results(Plateaus(KEY, patience=2, rtol=1e-3), values)
    assert any(mirrored)


@pytest.mark.parametrize("cls", [StopsIncreasing, StopsDecreasing])
def test_a_record_that_is_only_equalled_is_none(cls):
    assert results(cls(KEY, patience=2), [1.0, 1.0, 1.0]) == [False, False, True]
