"""The machine that a benchmark runs on."""

import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

#: Instructions that bfloat16 is fast with, as `/proc/cpuinfo` names them.
_BF16 = ("amx_bf16", "avx512_bf16")


def machine(device: str) -> dict[str, Any]:
    """Processor, cores, memory, versions; and the GPU where it is used."""
    found = {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "bf16": [name for name in _BF16 if name in _cpu_flags()],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = properties.name
        found["gpu_memory_gib"] = round(properties.total_memory / 2**30, 1)
        found["gpu_clocks"] = _gpu_clocks()
    return found


def has_fast_bf16(device: str) -> bool:
    """Whether bfloat16 can be faster than float32 there."""
    if device == "cuda":
        return True
    return any(name in _cpu_flags() for name in _BF16)


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cpu_flags() -> set[str]:
    for line in _cpuinfo():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def _cpuinfo() -> list[str]:
    with suppress(OSError):
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return []


def _gpu_clocks() -> str:
    """Clocks of processor and memory now, and their maxima, where the driver says so."""
    query = "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "--id=0"]
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return found.stdout.strip()
    return "unknown"
