"""`everstep bench`: its conversation with other processes, its statistics, and what goes wrong."""

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from everstep.__main__ import _parser, main
from everstep.core.advantages import gae
from everstep.errors import ConfigError
from everstep_lab.benchmarks import (
    PEERS,
    Bench,
    CellResult,
    PeerError,
    Side,
    SideResult,
    _roofline,
    case_names,
    cells,
    load_case,
    measure,
    ratio_of,
    solve_table,
    speed_table,
)
from everstep_lab.benchmarks._report import count_table, model_table
from everstep_lab.benchmarks.peers._frames import Frames
from everstep_lab.benchmarks.peers._gymnasium import Returns
from everstep_lab.benchmarks.peers._serving import totals
from everstep_lab.benchmarks.peers._worlds import Drift, Pole

ROOT = Path(__file__).parents[3]
PEERS_DIRECTORY = ROOT / "src/everstep_lab/benchmarks/peers"

CASE = """
title: small
work:
  env: gymnasium:CartPole-v1
  num_envs: 4
  horizon: 8
  horizons_per_env_reset: -1
  num_minibatches: 2
  hiddens: [8]
  activation: tanh
everstep: {vf_loss: mse}
rows: [{name: 4 × 8}]
learn: {metric: reward, env_steps: 64, seeds: 1}
measure: {warm_up: 0, block_s: 0.001, timeout_s: 120}
peers:
  cleanrl: {}
  rl8: {}
"""


@pytest.fixture
def case(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(CASE, encoding="utf-8")
    return path


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[[str], str]:
    """Makes something that takes the place of a peer's interpreter: a shell script."""

    def make(script: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    return make


def side(python: str, name: str = "cleanrl", timeout_s: float = 60.0) -> Side:
    cell = cells(load_case("cpu-cartpole"))[0]
    return Side(name, cell.order(name, "cpu", 1), python, timeout_s)


def is_gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for has, too."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


# Measuring.


@pytest.mark.long
def test_both_sides_are_measured(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = case.with_suffix(".json")
    flags = ["--compare", "cleanrl", "--pairs", "2", "--json", str(report)]
    assert main(["bench", str(case), *flags]) == 0
    printed = capsys.readouterr()
    assert "pair 2 of 2" in printed.err
    rows = [line for line in printed.out.splitlines() if line.startswith("| 4 × 8")]
    assert [row.split(" | ")[1] for row in rows] == ["everstep", "cleanrl"]
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["machine"]["torch"] == torch.__version__
    [cell] = found["cells"]
    assert cell["ratios"]["cleanrl"].keys() == {"median", "low", "high"}
    ours, theirs = cell["sides"]["everstep"], cell["sides"]["cleanrl"]
    for told in (ours, theirs):
        assert len(told["blocks"]) == 2
        assert told["versions"]["torch"] == torch.__version__
        assert told["medians"]["memory_bytes"] > 2**20
        for block in told["blocks"]:
            assert block["collect_s"] + block["update_s"] <= block["total_s"]
        assert [training["seed"] for training in told["trainings"]] == [0]
        # 2 iterations of 32, or 3 where rows that reset are left out
        assert all(64 <= training["env_steps"] <= 96 for training in told["trainings"])
    assert all(block["env_steps"] == 32 * block["iterations"] for block in theirs["blocks"])


@pytest.mark.long
def test_rows_before_an_error_are_kept(
    case: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = CellResult("4 × 8", "fp32", {"everstep": SideResult("fp32", "python", {})}, {})
    answers = iter([result])

    def measured(cell: Any, bench: Any) -> CellResult:
        try:
            return next(answers)
        except StopIteration:
            raise PeerError("cleanrl", "python", "ended") from None

    monkeypatch.setattr("everstep_lab.benchmarks.measure", measured)
    case.write_text(
        case.read_text().replace("rows: [", "rows: [{name: 4 × 8, work: {num_envs: 4}}, ")
    )
    found = tmp_path / "found.json"
    assert main(["bench", str(case), "--json", str(found)]) != 0
    assert "| 4 × 8 | everstep |" in capsys.readouterr().out
    assert [cell["name"] for cell in json.loads(found.read_text())["cells"]] == ["4 × 8"]


@pytest.mark.slow
def test_time_to_a_threshold(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    solve = "solve.metric=reward solve.threshold=0.5 solve.max_env_steps=1000 solve.seeds=1"
    assert main(["bench", str(case), "--set", *solve.split()]) == 0
    table = capsys.readouterr().out
    assert "| 4 × 8 | everstep | fp32 | 1 of 1 |" in table  # a pole stands for an env step or more
    assert "1 seeds" in table


def test_blocks_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    class Told:
        def __init__(self, name: str) -> None:
            self.name, self.work, self.python = name, {"precision": "fp32"}, "python"
            self.versions: dict[str, str] = {}

        def __enter__(self) -> "Told":
            return self

        def __exit__(self, *error: Any) -> None:
            order.append(f"{self.name} ends")

        def ask(self, request: str, argument: Any) -> dict[str, Any]:
            if request == "warm":
                return {"warm_s": 1.0}
            order.append(f"{self.name} {argument}")
            seconds = argument * (0.5 if self.name == "everstep" else 1.0)
            parts = {"collect_s": seconds / 2, "update_s": seconds / 2, "total_s": seconds}
            return {"env_steps": 100 * argument, "memory": {"rss": 1}, **parts}

    monkeypatch.setattr(Bench, "start", lambda self, name, cell: Told(name))
    cell = cells(load_case("cpu-cartpole"))[0]
    result = measure(cell, Bench("cpu", 1, pairs=2, peers=("cleanrl",), learning=False))
    # Each runs once to find how many iterations make a block of two seconds.
    once, blocks, ends = order[:2], order[2:6], order[6:]
    assert once == ["everstep 1", "cleanrl 1"]
    assert blocks == ["everstep 4", "cleanrl 2", "cleanrl 2", "everstep 4"]
    assert sorted(ends) == ["cleanrl ends", "everstep ends"]
    assert result.ratios["cleanrl"] == (2.0, None, None)  # of two pairs
    assert result.sides["everstep"].rate() == 200
    assert result.sides["everstep"].milliseconds("update_s") == 250


# Statistics.


def test_a_ratio_has_an_interval_from_five_pairs_on() -> None:
    assert ratio_of([1.0, 2.0, 3.0, 4.0, 5.0]) == (3.0, 1.0, 5.0)
    assert ratio_of([1.0, 2.0, 3.0, 4.0]) == (2.5, None, None)


def test_returns_are_those_of_episodes() -> None:
    returns = Returns(2)
    assert returns.mean() is None
    for done in ([False, False], [True, False], [False, True]):
        returns.add(np.array([1.0, 2.0]), np.array(done))
    assert list(returns.last) == [2.0, 6.0]


# Tables.


def test_what_does_not_exist_has_no_column() -> None:
    block = {"env_steps": 10, "iterations": 1, "collect_s": 0.5, "update_s": 0.0, "total_s": 0.5}
    told = SideResult("fp32", "python", {}, 1.0, [block | {"memory": {"rss": 2**20}}])
    table = speed_table([CellResult("a", "fp32", {"env": told}, {})], {"a/env": 10})
    header, _, row = (line.strip("| ").split(" | ") for line in table.splitlines())
    found = dict(zip(header, row, strict=True))
    assert "update/s" not in found
    assert "CUDA, MB" not in found
    assert (found["env steps/s"], found["collect, ms"]) == ("20", "500")
    assert found["µs a vector step"] == "5e+04"


def test_what_a_profiler_saw_is_counted() -> None:
    seen = [
        ("aten::add", False, 0.0),
        ("cudaLaunchKernel", False, 0.0),
        ("cudaLaunchKernelExC", False, 0.0),
        ("cudaGraphLaunch", False, 0.0),
        ("cudaMemcpyAsync", False, 0.0),
        ("cudaStreamSynchronize", False, 0.0),
        ("cudaDeviceSynchronize", False, 0.0),  # the profiler's own
        ("vectorized_elementwise_kernel", True, 1500.0),
        ("Memcpy DtoD (Device -> Device)", True, 500.0),
        ("Memcpy DtoH (Device -> Pinned)", True, 7.0),
    ]
    counts = totals(seen)
    assert counts == {"kernels": 2, "launches": 4, "waits": 1, "copies": 1, "busy_ms": 2}
    side = SideResult("fp32", "python", {}, counts=counts)
    table = count_table([CellResult("4 × 8", "fp32", {"everstep": side}, {})])
    assert table.splitlines()[-1] == "| 4 × 8 | everstep | fp32 | 4 | 2 | 1 | 1 | 2 |"


@pytest.mark.gpu(real=True)
def test_what_an_iteration_does_on_a_gpu_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["work.num_envs=64", "work.horizon=8", "measure.block_s=0.1", "measure.warm_up=4"]
    code = main(["bench", "gpu-isaac-shape", "--pairs", "1", "--no-learning", "--set", *small])
    assert code == 0
    *_, row = [x for x in capsys.readouterr().out.splitlines() if x.startswith("| 4096 × 24")]
    launches, kernels, waits, copies, busy = row.split(" | ")[3:]
    assert float(launches) < 150
    assert float(kernels.replace(",", "")) > 500
    assert (waits, copies) == ("2", "2")
    assert float(busy.removesuffix(" |")) > 0


def test_a_model_of_a_gpu_is_that_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--model"]) == 0
    page = ROOT / "docs" / "evidence" / "performance.md"
    assert capsys.readouterr().out in page.read_text(encoding="utf-8")
    assert main(["bench", "cpu-jax", "--model"]) == 2
    assert "gpu-isaac-shape, gpu-rl8-default; got cpu-jax" in capsys.readouterr().err


def test_rates_follow_from_what_takes_longer() -> None:
    card = _roofline.Card({"fp32": 2.0, "tf32": 4.0}, tb_s=0.5)
    load = _roofline.Load(1000, 10, 1000, 1, tflop=0.04, gigabytes=0.65)
    assert load.milliseconds(card) == pytest.approx(
        {"launches": 0.28, "products": 20.0, "memory": 1.3, "kernels": 2.7}
    )
    assert load.rate(card) == (pytest.approx(1e6 / 24.0), "products")
    assert load.rate(card, "tf32") == (pytest.approx(1e6 / 14.0), "products")
    assert load._replace(launches=2000).rate(card) == (pytest.approx(1e6 / 56), "launches")


def test_what_is_measured_is_beside_the_model() -> None:
    settings = {"benchmark": "gpu-rl8-default", "set": ["measure.block_s=1"]}
    side = SideResult("fp32", "python", {})
    side.blocks = [{"env_steps": 3_000_000, "total_s": 1.0}]
    result = CellResult("8192 × 32", "fp32", {"everstep": side, "rl8-tuned": side}, {})
    table = model_table([result], settings, "NVIDIA H100 80GB HBM3").splitlines()
    expected, bound = _roofline.LOADS["gpu-rl8-default"]["everstep"].rate(_roofline.CARDS["H100"])
    assert table[2:] == [
        f"| everstep | fp32 | 3.00 | {expected / 1e6:.2f} {bound} | {3e6 / expected:.2f} |"
    ]
    for changed, gpu in ((["work.horizon=8"], "NVIDIA H100"), ([], "NVIDIA T4")):
        assert model_table([result], {**settings, "set": changed}, gpu) == ""


def test_what_was_not_solved_is_said() -> None:
    trainings = [
        {"solved": i > 0, "total_s": i, "start_to_end_s": i + 1, "env_steps": 100 * i}
        for i in range(3)
    ]
    told = SideResult("fp32", "python", {}, trainings=trainings)
    table = solve_table([CellResult("a", "fp32", {"everstep": told}, {})])
    assert "| 2 of 3 | 1 (0 to 2) | 2 (1 to 3) | 100 (0 to 200) |" in table


# What goes wrong.


def test_a_missing_interpreter_is_named() -> None:
    with pytest.raises(PeerError, match=r"rl8 \(/nowhere/python\): no such interpreter") as raised:
        side("/nowhere/python", "rl8")
    assert "--peer-python rl8=/path/to/python" in str(raised.value)
    assert (raised.value.peer, raised.value.python) == ("rl8", "/nowhere/python")


def test_a_missing_library_is_named(interpreter: Callable[[str], str]) -> None:
    python = interpreter("echo \"ModuleNotFoundError: No module named 'rl8'\" >&2; exit 1")
    with pytest.raises(PeerError, match=r"-m pip install torch rl8==1.0.0`") as raised:
        side(python, "rl8")
    assert "No module named 'rl8'" in str(raised.value)


def test_a_crash_shows_its_last_words(interpreter: Callable[[str], str]) -> None:
    python = interpreter("echo out of luck >&2; exit 3")
    with pytest.raises(PeerError, match=r"ended with code 3 at `ready`.*\n.*out of luck"):
        side(python)


def test_a_crash_at_work_shows_its_last_words(interpreter: Callable[[str], str]) -> None:
    ready = '{"ready": {"versions": {"torch": "1"}}}'
    python = interpreter(f"read work; echo '{ready}'; read request; echo too much >&2; exit 4")
    with side(python) as started:
        assert started.versions == {"torch": "1"}
        with pytest.raises(PeerError, match=r"ended with code 4 at `run`.*\n.*too much"):
            started.ask("run", 1)


def test_what_is_no_answer_is_told(interpreter: Callable[[str], str]) -> None:
    with pytest.raises(PeerError, match=r"'hello.*not JSON"):
        side(interpreter("echo hello"))


@pytest.mark.slow
def test_a_hang_ends(interpreter: Callable[[str], str], tmp_path: Path) -> None:
    python = interpreter(f"echo $$ > {tmp_path}/pid; sleep 60 & wait")
    with pytest.raises(PeerError, match=r"no answer to `ready` within 0.5 s.*measure.timeout_s"):
        side(python, timeout_s=0.5)
    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_nothing_outlives_ctrl_c(
    case: Path, interpreter: Callable[[str], str], tmp_path: Path
) -> None:
    """A side that waits for its turn ends, and one that hangs is killed, with all they started."""
    ready, warm = '{"ready": {"versions": {}}}', '{"warm_s": 0}'
    python = interpreter(
        f"sleep 60 & echo $$ $! >> {tmp_path}/pids.new\n"
        f"case $2 in everstep*) echo '{ready}'; echo '{warm}'; cat > {tmp_path}/requests; exit;; "
        f"esac\nmv {tmp_path}/pids.new {tmp_path}/pids; wait"
    )
    # Everstep's side would take seconds to start.
    program = (
        "import sys; from everstep.__main__ import main\n"
        "from everstep_lab.benchmarks import _measuring"
        f"\n_measuring.interpreter = lambda *_: {python!r}\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "bench", str(case), "--compare", "cleanrl"]
    pids = tmp_path / "pids"
    with subprocess.Popen(command, cwd=tmp_path) as bench:
        while not pids.exists():
            assert bench.poll() is None
            time.sleep(0.05)
        bench.send_signal(signal.SIGINT)
    assert bench.returncode == 130
    numbers = pids.read_text().split()
    assert len(numbers) == 4
    assert all(is_gone(int(pid)) for pid in numbers)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu-collect"]) == 2
    assert "PyTorch sees none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cpu-cartpol"], "did you mean cpu-cartpole"),
        (["cpu-cartpole", "--compare", "rl8"], "is not compared with rl8; its peers are cleanrl"),
        (["cpu-cartpole", "--peer-python", "rl9=python"], "--peer-python expects PEER="),
        (["cpu-cartpole", "--rows", "7 × 7"], "has no row 7 × 7; it has 8 × 128"),
        (["cpu-cartpole", "--set", "wrk.num_envs=3"], "unknown key wrk (did you mean work?)"),
        (["cpu-cartpole", "--set", "work.num_envs=0"], "num_envs: expected int > 0; got 0"),
        (["cpu-cartpole", "--set", "everstep.gama=1"], "gama: unknown key (did you mean gamma?)"),
        (["cpu-cartpole", "--set", "learn.transitions=9"], "(Everstep's name is env_steps)"),
        (["time-to-solve", "--set", "solve.max_transitions=9"], "name is max_env_steps)"),
        (["cpu-cartpole", "--json", "/no/such/place.json"], "no file can be written there"),
    ],
)
def test_a_wrong_command_says_why(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: small", "titel: small", "small.yaml:2: titel: unknown key (did you mean title?)"),
        ("  cleanrl: {}", "  cleanrll: {}", "unknown peer (did you mean cleanrl?)"),
        (
            "  cleanrl: {}",
            "  stable-baselines3: {options: {decay_transitions: 9}}",
            "peers.stable-baselines3.options.decay_transitions: unknown key (Everstep's name is de",
        ),
        ("horizon: 8", "horizon: none", "horizon: expected int > 0; got 'none'"),
        ("rows: [{name: 4 × 8}]", "rows: []", "a benchmark needs at least one row"),
        ("rows: [{name: 4 × 8}]", "rows: [{nam: 4}]", "rows.0.nam: unknown key (did you mean name"),
    ],
)
def test_a_wrong_file_says_where(case: Path, old: str, new: str, message: str) -> None:
    case.write_text(CASE.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        cells(load_case(str(case)))
    assert message in str(raised.value)


# The named benchmarks.


@pytest.mark.parametrize("name", case_names())
def test_every_benchmark_is_complete(name: str) -> None:
    for device in ("cpu", "cuda"):
        case = load_case(name, device=device)
        for cell in cells(case):
            for peer in ("everstep", *cell.peers):
                order = cell.order(peer, device, 1)
                assert order["num_envs"] * order["horizon"] % order["num_minibatches"] == 0
                json.dumps(order)


def test_peers_as_shipped_stay_in_float32() -> None:
    [cell] = cells(load_case("cpu-recurrent-default"), ["bf16"])
    assert cell.order("everstep", "cpu", 1)["precision"] == "bf16"
    assert cell.order("rl8", "cpu", 1)["precision"] == "fp32"
    assert cell.order("rl8-tuned", "cpu", 1)["precision"] == "bf16"


def test_what_is_set_goes_before_rows() -> None:
    case = load_case("cpu-rl8-default", ["work.num_envs=16", "learn.seeds=2"])
    found = cells(case, ["fp32"])
    assert [cell.work.num_envs for cell in found] == [16, 16, 16]
    assert [cell.learn.seeds for cell in found if cell.learn] == [2, 2, 2]


def test_a_gpu_benchmark_is_small_on_a_cpu() -> None:
    small = cells(load_case("gpu-isaac-shape", device="cpu"))
    assert {cell.work.num_envs for cell in small} == {32}
    full = cells(load_case("gpu-isaac-shape", device="cuda"))
    assert {cell.work.num_envs for cell in full} == {4096}


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"^([\w-]+): ", printed, re.MULTILINE) == list(case_names())


def test_peers_do_without_everstep() -> None:
    modules = {path.stem for path in PEERS_DIRECTORY.glob("[a-z]*.py")}
    assert modules == {peer.module for peer in PEERS.values()}
    for path in PEERS_DIRECTORY.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= 1
                assert not (node.module or "").startswith("everstep")
            elif isinstance(node, ast.Import):
                assert all(not alias.name.startswith("everstep") for alias in node.names)


@pytest.mark.parametrize("page", ["docs/benchmarks.md", "docs/evidence/benchmarks.md"])
def test_documented_commands_can_be_given(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^everstep (bench .*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        arguments = _parser(["bench"]).parse_args(shlex.split(command, comments=True))
        if arguments.name is None or arguments.name.endswith(".yaml"):
            continue
        case = load_case(arguments.name, arguments.set, device=arguments.device)
        peers = {peer for row in case.rows for peer in (row.get("peers") or case.peers)}
        assert set(arguments.compare) <= peers
        assert set(arguments.rows) <= {row["name"] for row in case.rows}
        cells(case)


# The environments.


@pytest.mark.slow
def test_the_compiled_cartpole_is_that_of_gymnasium() -> None:
    """A step from drawn states: what follows, which episodes end, and where they begin again."""
    pytest.importorskip("jax")
    import gymnasium
    import jax
    import jax.numpy as jnp

    from everstep_lab.benchmarks.peers.jax import LIMIT, Carts, moved, stepped

    count = 512
    inner: Any = gymnasium.make_vec("CartPole-v1", num_envs=count).unwrapped
    inner.reset(seed=0)
    rng = np.random.default_rng(0)
    state = rng.normal(size=(4, count)) * [[1.2], [1.0], [0.1], [1.0]]
    steps, actions = rng.integers(LIMIT - 3, LIMIT, count), rng.integers(0, 2, count)
    inner.state, inner.steps[:] = state.copy(), steps
    expected, _, terminated, truncated, _ = inner.step(actions)
    carts = Carts(jnp.asarray(state.T, jnp.float32), jnp.asarray(steps), jnp.asarray(steps))
    found = np.asarray(moved(carts.state, jnp.asarray(actions)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    after, ends, returns = stepped(carts, jnp.asarray(actions), jax.random.key(0))
    assert terminated.any()
    assert truncated.any()
    assert not (terminated | truncated).all()
    np.testing.assert_array_equal(np.asarray(ends), terminated | truncated)
    np.testing.assert_array_equal(np.asarray(returns), steps + 1)
    kept = np.where(np.asarray(ends)[:, None], 0.0, found)
    assert np.abs(np.asarray(after.state) - kept).max() <= 0.05
    np.testing.assert_array_equal(np.asarray(after.steps), np.where(ends, 0, steps + 1))


def test_the_compiled_program_has_the_advantages_of_everstep() -> None:
    pytest.importorskip("jax")
    import jax.numpy as jnp

    from everstep_lab.benchmarks.peers.jax import Rows, advantages_of

    torch.manual_seed(0)
    rewards, values = torch.randn(7, 5, 1), torch.randn(8, 5, 1)
    ends = torch.rand(7, 5, 1) < 0.3
    following = torch.where(ends, 0.0, values[1:])  # the end of an episode bootstraps nothing
    expected = gae(rewards, values[:-1], following, ends, gamma=0.9, gae_lambda=0.8)
    own = [jnp.asarray(x.squeeze(-1).numpy()) for x in (values, rewards, ends)]
    rows = Rows(None, None, None, own[0][:7], own[1], own[2], None)
    found = np.asarray(advantages_of(rows, own[0][7], 0.9, 0.8))
    np.testing.assert_allclose(found, expected.squeeze(-1).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_compiled_program_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    from everstep_lab.benchmarks.peers.jax import Jax

    for name in ("NPROC", "XLA_FLAGS", "JAX_PLATFORMS"):  # which the program sets
        monkeypatch.setenv(name, os.environ.get(name, ""))
    [cell] = [x for x in cells(load_case("cpu-jax")) if x.work.num_envs == 64]
    program = Jax({**asdict(cell.work), "threads": 1, "seed": 0, "options": {}})
    assert program.iterate().env_steps == 64 * 128
    first = program.score("return")
    for _ in range(29):
        program.iterate()
    last = program.score("return")
    assert first is not None
    assert last is not None
    assert first < 40
    assert last > 120


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpu-images", "cpu-recurrent-cartpole"])
def test_work_of_default_models_is_that_of_the_peer(name: str) -> None:
    """stable-baselines3 or sb3-contrib has as many weights as Everstep, and trains."""
    pytest.importorskip("sb3_contrib")
    from everstep_lab.benchmarks._everstep import Everstep
    from everstep_lab.benchmarks.peers.stable_baselines3 import StableBaselines3

    cell = cells(load_case(name))[0]
    ours = Everstep(cell.order("everstep", "cpu", 1) | {"seed": 0})
    theirs = StableBaselines3(cell.order("stable-baselines3", "cpu", 1) | {"seed": 0})
    counts = [
        sum(p.numel() for p in policy.parameters())
        for policy in (ours.algorithm.policy.model, theirs.model.policy)
    ]
    assert counts[0] == counts[1]
    for program in (ours, theirs):
        # Everstep does not count the steps in which Gymnasium resets.
        assert 900 < program.iterate().env_steps <= 8 * 128
        program.close()


def test_the_pole_is_that_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.cartpole import CartPole

    example, world = CartPole(5), Pole(5, "cpu")
    torch.manual_seed(0)
    world.reset()
    example.reset()
    example.state.copy_(world.state.T)
    for _ in range(20):
        actions = torch.randint(3, (5, 1))
        outcome = example.step(actions)
        obs, rewards = world.step(actions.squeeze(-1))
        torch.testing.assert_close(obs, outcome["obs"])
        torch.testing.assert_close(rewards, outcome["rewards"].squeeze(-1))


def test_frames_end_by_the_clock_and_reward_the_newest_corner() -> None:
    env = Frames()
    check_env(env, skip_render_check=True)
    obs, _ = env.reset(seed=0)
    for step in range(1, 251):
        quarters = obs[..., 3].reshape(2, 42, 2, 42).max((1, 3))
        action = int(np.flatnonzero(quarters == 255).item() if step % 2 else -1)
        before = obs
        obs, reward, terminated, truncated, _ = env.step(action)
        assert reward == (step % 2)
        assert (obs[..., :3] == before[..., 1:]).all()
        assert not terminated
        assert truncated == (step == 250)


def test_drift_ends_by_the_clock_and_opens_anew() -> None:
    torch.manual_seed(0)
    world = Drift(3, "cpu")
    world.reset()
    world.clock.copy_(torch.tensor([0, 100, 248]))
    kept, _, done = world.step(torch.zeros(3, 8))
    assert not done.any()
    before = kept.clone()
    obs, _, done = world.step(torch.zeros(3, 8))
    assert done.tolist() == [False, False, True]
    torch.testing.assert_close(obs[:2], 0.99 * before[:2])
    assert (obs[2] - 0.99 * before[2]).abs().max() > 0.1
    assert world.clock.tolist() == [2, 102, 0]
    torch.testing.assert_close(kept, before)  # what was handed out stays
    assert world.take_mean_reward() < 0
