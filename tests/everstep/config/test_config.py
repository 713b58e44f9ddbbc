"""Files, overrides, dotted names: what is read, and how every mistake is told, with its line."""

import json
import math
import random
import string
import sys
import tracemalloc
from pathlib import Path

import numpy
import pytest

from everstep.config import (
    MAX_VALUES,
    Document,
    _loader,
    apply_overrides,
    dotted_name,
    dump,
    holds,
    import_name,
    load,
    plain,
)
from everstep.core.validation import Problem
from everstep.errors import ConfigError


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write `train.yaml`, or a file of another name, in the current directory; returns the name."""
    monkeypatch.chdir(tmp_path)

    def write(content, name="train.yaml"):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return name

    return write


def problems_of(call):
    with pytest.raises(ConfigError) as caught:
        call()
    return list(caught.value.problems)


# ---- what values mean --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1e6", 1e6),
        ("1E3", 1e3),
        ("1e-3", 1e-3),
        ("-2.5e+3", -2500.0),
        ("+.5", 0.5),
        ("5.", 5.0),
        ("0.95", 0.95),
        ("7", 7),
        ("-7", -7),
        ("007", 7),
        ("1_000_000", 1_000_000),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("null", None),
        ("~", None),
        ("", None),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("=", "="),
        ("1.2.3", "1.2.3"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("'3e-4'", "3e-4"),
        ('"true"', "true"),
        ("gymnasium:CartPole-v1", "gymnasium:CartPole-v1"),
        ("[1, 2.0, a]", [1, 2.0, "a"]),
        ("{a: 1, b: {c: [2]}}", {"a": 1, "b": {"c": [2]}}),
        ("!!float 1", 1.0),
        ("!!str 1", "1"),
    ],
)
def test_scalars_follow_yaml_1_2(write, text, value):
    read = load(write(f"key: {text}\n")).values["key"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "values",
    [
        {"a": 1, "b": [1.5, None, True, "x"], "c": {"d": {}}},
        {"lr": 3e-4, "big": 1e300, "tiny": 5e-324, "negative": -0.0},
        {"rocket": "\U0001f680", "accents": "é\u2028 \x85x", "escapes": 'tab\tquote"back\\slash'},
        {"3e-4": "3e-4", "yes": "no"},
    ],
)
def test_json_reads_as_json_does(write, values):
    for indent in (None, 2, "\t"):
        for ascii_only in (True, False):
            text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
            document = load(write(text, "train.json"))
            document.check()
            assert document.values == values


def test_yaml_and_json_are_read_alike(write):
    values = {"gamma": 0.99, "schedule": [[0, 1e-3], [1000000, 1e-5]], "cls": "a.B", "n": None}
    assert load(write(json.dumps(values), "a.json")).values == values
    assert load(write(dump(values), "a.yaml")).values == values
    assert load(write(dump(values), "a.YML")).values == values


def test_anchors_are_read_and_a_byte_order_mark_is_not(write):
    name = write(b"\xef\xbb\xbfa: &size [64, 64]\nb: *size\n")
    assert load(name).values == {"a": [64, 64], "b": [64, 64]}


def test_every_key_has_its_line(write):
    document = load(write("a: 1\n\n# comment\nb:\n  c: 2\n  d:\n    - 1\n    - {e: 3}\n"))
    lines = {path: place.label for path, place in document.places.items()}
    assert lines == {
        ("a",): "train.yaml:1",
        ("b",): "train.yaml:4",
        ("b", "c"): "train.yaml:5",
        ("b", "d"): "train.yaml:6",
        ("b", "d", 0): "train.yaml:7",
        ("b", "d", 1): "train.yaml:8",
        ("b", "d", 1, "e"): "train.yaml:8",
    }
    assert document.place(("b", "c", "unknown")).label == "train.yaml:5"
    assert document.place(("unknown",)).label == "train.yaml"


# ---- files that cannot be read ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "start"),
    [
        ("a.yaml", b"", "a.yaml:1: expected a mapping"),
        ("a.yaml", b"# only a comment\n", "a.yaml:1: expected a mapping"),
        ("a.yaml", b"---\n", "a.yaml:1: expected a mapping"),
        ("a.yaml", b"- 1\n- 2\n", "a.yaml:1: expected a mapping"),
        ("a.yaml", b"gamma 0.99\n", "a.yaml:1: expected a mapping"),
        ("a.yaml", b"null\n", "a.yaml:1: expected a mapping"),
        ("a.yaml", b"a: 1\nb: [1, 2\n", "a.yaml:3: not valid YAML"),
        ("a.yaml", b"a: 1\n\tb: 2\n", "a.yaml:2: not valid YAML"),
        ("a.yaml", b"a:\n\tb: 2\n", "a.yaml:2: not valid YAML"),
        ("a.yaml", b"a: 1\n  b: 2\n", "a.yaml:2: not valid YAML"),
        ("a.yaml", b"a: 'open\n", "a.yaml:2: not valid YAML"),
        ("a.yaml", b"a: *nothing\n", "a.yaml:1: not valid YAML"),
        ("a.yaml", b"a: 1\n---\nb: 2\n", "a.yaml:2: not valid YAML"),
        ("a.yaml", b"a: 1\nb: %x\n", "a.yaml:2: not valid YAML"),
        ("a.yaml", b"a: 1\nb: \x00\n", "a.yaml:2: not valid YAML"),
        ("a.yaml", b"a: 1\nb: \xff\n", "a.yaml:2: not UTF-8"),
        ("a.yaml", "a: 1\n".encode("utf-16"), "a.yaml:1: not UTF-8"),
        ("a.yaml", b"a: " + b"[" * 5000, "a.yaml: nested too deeply"),
        ("a.yaml", b'a: "\\UFFFFFFFF"\n', "a.yaml"),
        ("a.json", b"", "a.json:1: expected a mapping"),
        ("a.json", b" \n", "a.json:1: expected a mapping"),
        ("a.json", b"[1]", "a.json:1: expected a mapping"),
        ("a.json", b'{"a": 1,\n"b": 2,}', "a.json:2: not valid JSON"),
        ("a.json", b'{\n"a": 1\n"b": 2}', "a.json:3: not valid JSON"),
        ("a.json", b"a: 1\n", "a.json:1: not valid JSON"),
        ("a.json", b'{"a": "x\ty"}', "a.json:1: not valid JSON"),
        ("a.json", b'{"a": ' + b"[" * 100_000, "a.json: nested too deeply"),
        ("a.json", b'{"a": ' + b"9" * 5000 + b"}", "a.json: nested too deeply, or a number is"),
        ("a.toml", b"a = 1", "a.toml: expected a .yaml, .yml or .json file"),
        ("a", b"a: 1", "a: expected a .yaml, .yml or .json file"),
    ],
)
def test_an_unreadable_file_is_named_with_the_line(write, name, content, start):
    [problem] = problems_of(lambda: load(write(content, name)))
    assert problem.startswith(start)


def test_tabs_are_named(write):
    [problem] = problems_of(lambda: load(write("a:\n\tb: 2\n")))
    assert "spaces, not tabs" in problem


def test_missing_files_and_directories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir.yaml").mkdir()
    assert problems_of(lambda: load("no.yaml")) == [
        "no.yaml: cannot be read: No such file or directory."
    ]
    assert problems_of(lambda: load(Path("dir.yaml"))) == [
        "dir.yaml: cannot be read: is a directory, not a file."
    ]


def test_aliases_cannot_fill_the_memory(write):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    path = write("\n".join(lines))
    tracemalloc.start()
    try:
        [problem] = problems_of(lambda: load(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert f"more than {MAX_VALUES:,} values" in problem
    assert peak < 5_000_000  # they are counted before one is made


def test_a_value_that_contains_itself(write):
    document = load(write("a: 1\nb: &b\n  c: [1, *b]\n"))
    assert problems_of(document.check) == ["train.yaml:2: b.c.1: contains itself"]


# ---- values that are wrong whatever the keys mean ----------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "train.yaml:3: a: duplicate key; first given at train.yaml:1"),
        (
            "m:\n  x: 1\n  x: 1\n",
            "train.yaml:3: m.x: duplicate key; first given at train.yaml:2",
        ),
        ("a: .nan\n", "train.yaml:1: a: expected a finite number; got .nan"),
        ("a: -.inf\n", "train.yaml:1: a: expected a finite number; got -.inf"),
        ("a: NaN\n", "train.yaml:1: a: expected a finite number; got NaN"),
        ("a: 1e999\n", "train.yaml:1: a: expected a finite number; got 1e999"),
        ("a:\n - 1\n - [.inf]\n", "train.yaml:3: a.1.0: expected a finite number; got .inf"),
        ("1: x\n", "train.yaml:1: 1: a key must be a name; quote it if it is one"),
        ("null: x\n", "train.yaml:1: null: a key must be a name; quote it if it is one"),
        ("? [a]\n: x\n", "train.yaml:1: ?: a key must be a name; quote it if it is one"),
        (
            "a: &a {x: 1}\nb:\n  <<: *a\n",
            "train.yaml:3: b.<<: a key must be a name; quote it if it is one",
        ),
        ("a: !!int x\n", "train.yaml:1: a: expected int; got 'x'"),
        ("a: !!bool maybe\n", "train.yaml:1: a: expected bool; got 'maybe'"),
        (
            "a: !!python/object/apply:os.system [date]\n",
            "train.yaml:1: a: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not "
            "supported; drop it",
        ),
        ("a: !mine 1\n", "train.yaml:1: a: the tag '!mine' is not supported; drop it"),
        ("a: !!set {x, y}\n", "train.yaml:1: a: the tag 'tag:yaml.org,2002:set' is not"),
    ],
)
def test_wrong_values_are_told_with_path_and_line(write, content, expected):
    [problem] = problems_of(load(write(content)).check)
    assert problem.startswith(expected)


def test_json_is_held_to_the_same_rules(write):
    document = load(write('{"a": 1,\n "b": NaN,\n "a": 2,\n "c": [-Infinity]}', "train.json"))
    assert problems_of(document.check) == [
        "train.json:2: b: expected a finite number; got NaN",
        "train.json:3: a: duplicate key; first given at train.json:1",
        "train.json:4: c.0: expected a finite number; got -Infinity",
    ]


def test_no_tag_runs_anything(write, tmp_path):
    victim = tmp_path / "victim"
    document = load(write(f"a: !!python/object/apply:os.mkdir ['{victim}']\n"))
    assert problems_of(document.check)
    assert not victim.exists()


def test_all_problems_come_at_once_sorted_by_line_with_the_command_line_last(write):
    document = load(write("gama: 1\na: .nan\nb: 1\na: 2\n"))
    document = apply_overrides(document, ["c=3"])
    problems = [
        Problem(("c",), "no such c"),
        Problem(("b",), "wrong"),
        Problem(("a",), "wrong too"),
        Problem(("missing",), "required"),
        Problem(("gama",), "unknown key (did you mean gamma?)"),
        Problem(("gama",), "and ugly"),
    ]
    assert problems_of(lambda: document.check(problems)) == [
        "train.yaml: missing: required",
        "train.yaml:1: gama: unknown key (did you mean gamma?)",
        "train.yaml:1: gama: and ugly",
        "train.yaml:2: a: wrong too",  # rather than twice
        "train.yaml:3: b: wrong",
        "train.yaml:4: a: duplicate key; first given at train.yaml:2",
        "command line: c=3: no such c",
    ]


def test_hoisted_keys_keep_their_lines(write):
    document = load(write("a: 1\ninner:\n  b:\n    x: .nan\n  other: 2\n  a: 3\n"))
    hoisted = document.hoist("inner", ["a", "b"])
    assert hoisted.values == {"a": 1, "b": {"x": pytest.approx(math.nan, nan_ok=True)}} | {
        "inner": {"other": 2}
    }
    assert problems_of(lambda: hoisted.check([Problem(("b",), "wrong")])) == [
        "train.yaml:3: b: wrong",
        "train.yaml:4: b.x: expected a finite number; got .nan",
        "train.yaml:6: inner.a: given twice; also at train.yaml:1",
    ]
    assert document.hoist("nothing", ["a"]) is document


# ---- overrides -------------------------------------------------------------------------------


def test_overrides_are_made_in_order_and_leave_the_document_alone():
    document = Document("a.yaml", {"gamma": 0.9, "optimizer_config": {"lr": 1.0, "eps": 1}})
    overridden = apply_overrides(
        document,
        [
            "gamma=0.95",
            "optimizer_config.lr=3e-4",
            "env_kwargs.max_episode_steps=200",
            "env_kwargs.deep.er=[1, {x: yes}]",
            "name=a=b",
            "gamma=0.99",
            "off=null",
        ],
    )
    overridden.check()
    assert overridden.values == {
        "gamma": 0.99,
        "optimizer_config": {"lr": 3e-4, "eps": 1},
        "env_kwargs": {"max_episode_steps": 200, "deep": {"er": [1, {"x": "yes"}]}},
        "name": "a=b",
        "off": None,
    }
    assert document.values == {"gamma": 0.9, "optimizer_config": {"lr": 1.0, "eps": 1}}


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("gamma", "gamma: expected key=value, such as gamma=0.99; got 'gamma'"),
        ("=3", "=3: expected key=value, such as gamma=0.99; got '=3'"),
        ("a..b=3", "a..b=3: expected key=value, such as gamma=0.99; got 'a..b=3'"),
        ("a b=3", "a b=3: expected key=value, such as gamma=0.99; got 'a b=3'"),
        ("a=", "a=: no value given; a=null means none"),
        ("a=[1", "a=[1: not a YAML value: '[1'"),
        ("a={x: 1, x: 2}", "a={x: 1, x: 2}: duplicate key; first given at command line"),
        ("a=.nan", "a=.nan: expected a finite number; got .nan"),
        ("a=!!python/name:os.system x", "a=!!python/name:os.system x: the tag "),
        ("file.x=1", "file.x=1: file is 3, which has no keys; assign it whole"),
    ],
)
def test_a_bad_override_is_named(override, problem):
    document = apply_overrides(Document("a.yaml", {"file": 3}), [override])
    [found] = problems_of(document.check)
    assert found.startswith(f"command line: {problem}")


def test_problems_of_overridden_values_are_on_the_command_line(write):
    document = apply_overrides(load(write("a: 1\nm: {x: 1, y: 2}\n")), ["a=2", "m.x=3"])
    problems = [Problem((), "everything"), Problem(("a",), "bad")]
    problems += [Problem(("m", "x"), "bad"), Problem(("m", "y"), "bad")]
    assert problems_of(lambda: document.check(problems)) == [
        "train.yaml: : everything",
        "train.yaml:2: m.y: bad",
        "command line: a=2: bad",
        "command line: m.x=3: bad",
    ]


def test_a_problem_of_a_mapping_is_blamed_on_the_assignment_that_its_message_names(write):
    document = load(write("m: {x: 1, y: 2}\nn: 3\n"))
    document = apply_overrides(document, ["m.x=a", "m.y=4", "k.z=5", "w=6"])
    problems = [
        Problem(("m",), "x must be a number; got 'a'"),
        Problem(("m",), "does not suit a model"),
        Problem(("k",), "unknown key"),
        Problem(("n",), "must divide w (6)"),
        Problem(("auto",), "must divide w (6)"),
    ]
    assert problems_of(lambda: document.check(problems)) == [
        "train.yaml:1: m: does not suit a model",
        "train.yaml:2: n: must divide w (6)",
        "command line: m.x=a: x must be a number; got 'a'",
        "command line: k.z=5: unknown key",
        "command line: w=6: auto: must divide w (6)",
    ]


# ---- writing ---------------------------------------------------------------------------------

WORDS = [
    *["yes", "no", "on", "off", "y", "n", "true", "null", "~", "", " ", "a b", "#x", "- a", "a: b"],
    *["3e-4", "1e6", "1_000", "0x1F", "0o17", "017", "1:30", ".nan", ".inf", "NaN", "Infinity"],
    *["2024-01-01", "=", "<<", "*a", "&a", "!t", "%x", "@x", "`x`", "'", '"', "\\", "[", "{", "|"],
    *["\n", "a\nb", "\t", "\x00", "\x85", "\u2028", "é", "\U0001f680", "...", "---", "long " * 60],
]


def random_value(rng, depth=0):
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([rng.randrange(-(2**63), 2**63), rng.randrange(-9, 10), 2**63 - 1])
    if kind == 2:
        return rng.choice(
            [rng.uniform(-1, 1), rng.uniform(-1, 1) * 10.0 ** rng.randrange(-300, 300)]
        )
    if kind in (3, 4):
        return rng.choice(WORDS)
    if kind == 5:
        return "".join(rng.choices(string.printable, k=rng.randrange(12)))
    if kind == 6:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return random_mapping(rng, depth + 1)


def random_mapping(rng, depth=0):
    names = [word for word in WORDS if word != "<<"]
    return {rng.choice(names): random_value(rng, depth) for _ in range(rng.randrange(1, 5))}


@pytest.mark.parametrize("seed", range(100))
def test_what_is_dumped_reads_back_equal(write, seed):
    values = random_mapping(random.Random(seed))
    document = load(write(dump(values)))
    document.check()
    assert document.values == values
    assert repr(document.values) == repr(values)  # 1 is not 1.0 and not True


#: Values that no file gives back, and what the error says of them.
UNHELD = [
    (2**63, "x: a file cannot hold the value: expected an integer of at most 64 bits; got 92"),
    (-(2**63) - 1, "64 bits"),
    (10**300, "64 bits"),
    (10**5000, "digits"),
    (math.inf, "x: a file cannot hold the value: expected a finite number; got .inf"),
    (math.nan, "finite number"),
    ("\ud800", "x: a file cannot hold the value: it would be read as another one"),
    ({"<<": 1}, "x.<<: .* a key must be a name"),
    ({1: "a", "1": "b"}, "1: two keys of a mapping have this name"),
    ({True: "a", "True": "b"}, "True: two keys"),
    (list(range(1_001)), "1,000 values"),
    ("x" * 100_001, "100,000 characters"),
]
NESTED: list = []
for _ in range(40):
    NESTED = [NESTED]
ENDLESS: dict = {}
ENDLESS["x"] = [ENDLESS]
UNHELD += [(x, "nested more than 32 deep. Give it as text") for x in (NESTED, ENDLESS)]


@pytest.mark.parametrize(("value", "message"), UNHELD, ids=map(str, range(len(UNHELD))))
def test_what_the_loader_refuses_is_not_dumped(value, message, monkeypatch):
    monkeypatch.setattr(_loader, "MAX_VALUES", 1_000)
    monkeypatch.setattr(_loader, "MAX_CHARACTERS", 100_000)
    with pytest.raises(ConfigError, match=message):
        dump({"a": 1, "x": value})
    assert not holds({"x": value})
    assert holds({"x": 2**63 - 1, "y": -(2**63), "z": 1.7e308})


@pytest.mark.parametrize("seed", range(100))
def test_drawn_values_are_read_back_or_refused(write, seed):
    rng = random.Random(seed)
    unheld = [2**63, math.inf, -math.inf, math.nan, "\ud800", {"<<": 1}, {1: 1, "1": 2}]
    held = [1, "x", None, -0.0, numpy.bool_(True), numpy.float16(0.1), numpy.int8(-3), 2**63 - 1]
    is_held = rng.random() < 0.5
    values = random_mapping(rng) | {"new": [{"x": rng.choice(held if is_held else unheld)}]}
    assert holds(values) == is_held
    if not is_held:
        return
    text = dump(values)
    document = load(write(text))
    document.check()
    assert document.values == plain(values)
    assert repr(document.values) == repr(plain(values))


def test_numbers_of_numpy_are_numbers(write):
    values = {"yes": numpy.bool_(True), "half": numpy.float16(0.5), "one": numpy.array(2.5)}
    assert load(write(dump(values))).values == {"yes": True, "half": 0.5, "one": 2.5}


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**64, -(10**20), 10**300])
def test_integers_beyond_64_bits_are_refused(write, value):
    [problem] = problems_of(load(write(f"a: [1, {value}]\n")).check)
    assert problem.startswith("train.yaml:1: a.1: expected an integer of at most 64 bits; got ")


@pytest.mark.parametrize("seed", range(100))
def test_damaged_files_raise_nothing_but_config_errors(write, seed):
    rng = random.Random(seed)
    content = bytearray(dump(random_mapping(rng)).encode())
    for _ in range(rng.randrange(1, 6)):
        content.insert(rng.randrange(len(content)), rng.randrange(256))
    for name in ("a.yaml", "a.json"):
        problems = []
        try:
            load(write(bytes(content), name)).check()
        except ConfigError as error:
            problems = error.problems
        assert all(problem.startswith(name) for problem in problems)


def test_objects_are_dumped_by_name(write):
    text = dump(
        {
            "cls": Document,
            "function": load,
            "nested": (1, (2.0, "x")),
            "path": Path("a") / "b",
            "numpy": __import__("numpy").float32(0.5),
        }
    )
    assert load(write(text)).values == {
        "cls": "everstep.config._document.Document",
        "function": "everstep.config._loader.load",
        "nested": [1, [2.0, "x"]],
        "path": "a/b",
        "numpy": 0.5,
    }


# ---- dotted names ----------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package on `sys.path` whose modules are not imported by it."""
    root = tmp_path / "wonder_land"
    (root / "inner").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "inner" / "__init__.py").write_text("")
    (root / "inner" / "envs.py").write_text("class MyEnv:\n    class Part: pass\n")
    (root / "broken.py").write_text("import not_there_at_all\n")
    (root / "raising.py").write_text("raise RuntimeError('no licence')\n")
    (root / "syntax.py").write_text("def f(:\n")
    (root / "lazy.py").write_text("def __getattr__(name):\n    raise OSError('no disk')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield root
    for name in [name for name in sys.modules if name.startswith("wonder_land")]:
        del sys.modules[name]


def test_names_are_found_in_modules_that_nobody_imported(package):
    cls = import_name("wonder_land.inner.envs.MyEnv")
    assert cls.__name__ == "MyEnv"
    assert import_name("wonder_land.inner.envs.MyEnv.Part") is cls.Part
    assert import_name("torch.optim.adamw.AdamW").__name__ == "AdamW"
    assert import_name(dotted_name(cls)) is cls
    assert import_name(dotted_name(cls.Part)) is cls.Part


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MyEnv", "expected a dotted path such as my_package.envs.MyEnv; got 'MyEnv'"),
        ("", "expected a dotted path such as my_package.envs.MyEnv; got ''"),
        ("..a.B", "expected a dotted path such as my_package.envs.MyEnv; got '..a.B'"),
        ("a..B", "expected a dotted path such as my_package.envs.MyEnv; got 'a..B'"),
        ("a/b.C", "expected a dotted path such as my_package.envs.MyEnv; got 'a/b.C'"),
        ("wonder_lnd.inner", "no module named 'wonder_lnd' (did you mean wonder_land?)"),
        (
            "qqqqqqqq.X",
            "no module named 'qqqqqqqq' (is it installed, in the current directory, or on "
            "PYTHONPATH?)",
        ),
        ("wonder_land.iner.X", "the module 'wonder_land' has no 'iner' (did you mean inner?)"),
        (
            "wonder_land.inner.envs.MyEvn",
            "the module 'wonder_land.inner.envs' has no 'MyEvn' (did you mean MyEnv?)",
        ),
        (
            "wonder_land.inner.envs.MyEnv.Prt",
            "the class 'wonder_land.inner.envs.MyEnv' has no 'Prt' (did you mean Part?)",
        ),
        (
            "wonder_land.broken.X",
            "importing 'wonder_land.broken' failed: ModuleNotFoundError: No module named "
            "'not_there_at_all'",
        ),
        ("wonder_land.raising.X", "importing 'wonder_land.raising' failed: RuntimeError: no lic"),
        ("wonder_land.syntax.X", "importing 'wonder_land.syntax' failed: SyntaxError: "),
        ("wonder_land.lazy.X", "importing 'wonder_land.lazy.X' failed: OSError: no disk"),
    ],
)
def test_a_bad_name_is_told_part_by_part(package, name, message):
    [problem] = problems_of(lambda: import_name(name))
    assert problem.startswith(message)
