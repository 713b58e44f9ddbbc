"""Advantages by Triton: in its interpreter, compiled without a GPU, and where it fails."""

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from everstep.core import triton as ours
from everstep.core.advantages import gae
from tests.everstep.core.triton_runs import check, draws


def test_the_interpreted_kernel_has_the_advantages_of_the_general_way() -> None:
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "tests.everstep.core.triton_runs"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("kind", ["fp32", "fp64"])
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_the_kernel_compiles_without_a_gpu(capability: int, kind: str) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from everstep.core.triton import _kernel

    names = _kernel.advantages.arg_names
    for streams, known, passed in ((0, 0, 0), (0, 1, 0), (2, 2, 1)):
        values: dict[str, Any] = {"GAMMA": 0.99, "LAMBDA": 0.95, "STREAMS": streams, "DONE": 1}
        values |= {"KNOWN": known, "PASSED": passed, "ROWS": 32, "COLUMNS": 32}
        types = dict.fromkeys(names, "constexpr") | dict.fromkeys(("steps", "count"), "i32")
        types |= dict.fromkeys(("found", "rewards", "values", "next_values"), f"*{kind}")
        types["done"] = "*u8"
        for name, is_given, form in (
            ("known", known, "*u8"),
            ("passed", passed, "*u8"),
            ("gammas", streams, f"*{kind}"),
        ):
            if is_given:
                types[name] = form
            else:
                values[name] = None
        source = ASTSource(fn=_kernel.advantages, signature=types, constexprs=values)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        assert compiled.asm["cubin"]


def test_where_triton_fails_the_general_way_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def launch(*_: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(ours, "_failures", [])
    broken = SimpleNamespace(launch=launch)
    monkeypatch.setitem(sys.modules, "everstep.core.triton._kernel", broken)
    monkeypatch.setattr(ours, "_kernel", broken, raising=False)
    arguments = next(draws(1))
    with caplog.at_level(logging.WARNING):
        found = [ours._by_triton(*arguments) for _ in range(2)]
    (record,) = caplog.records
    assert "RuntimeError: no compiler" in record.getMessage()
    for x in found:
        torch.testing.assert_close(x, ours._general(*arguments), equal_nan=True)


def test_on_a_cpu_it_is_the_general_way() -> None:
    *tensors, known, passed, gammas, _, gae_lambda = next(draws(1))
    options = {"gamma": gammas, "gae_lambda": gae_lambda, "known": known, "passed": passed}
    assert torch.equal(ours.gae(*tensors, **options), gae(*tensors, **options))


@pytest.mark.gpu(real=True)
def test_on_a_gpu_it_has_the_advantages_of_the_general_way() -> None:
    pytest.importorskip("triton")
    check(60, "cuda")
    for arguments in draws(2, "cuda"):
        torch.ops.everstep.gae(*arguments)
    assert not ours._failures
