"""A model of an iteration on a GPU: what was counted, by published rates.

The host hands over one operation after the other, and the device does them: an iteration takes the
longer of both. On the device products take their floating-point operations by the card's rate, the
other kernels their bytes by the rate of its memory, and each kernel a moment to begin. It is a
model: products of small networks do not reach a card's rate, and an environment's own work on the
host is left out.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Microseconds of the host for an operation, with the Python around it: the median of rsl_rl, skrl
#: and rl_games, which are bound by it, on an H200 with a Xeon.
LAUNCH_US = 28.0

#: Microseconds of the device for the smallest kernel of a graph: those of CartPole's update there.
KERNEL_US = 2.7


class Card(NamedTuple):
    """Published rates of a GPU, without sparsity."""

    #: 10¹² floating-point operations a second in products, by precision.
    tflops: dict[str, float]

    #: 10¹² bytes a second of its memory.
    tb_s: float


#: By a part of the name that CUDA has for it. Sources: the data sheets of NVIDIA H200, H100 (SXM)
#: and A100 (SXM, 80 GB), and the white paper of NVIDIA Ada.
CARDS = {
    "H200": Card({"fp32": 67.0, "tf32": 494.5, "bf16": 989.0}, 4.8),
    "H100": Card({"fp32": 67.0, "tf32": 494.5, "bf16": 989.0}, 3.35),
    "RTX 4090": Card({"fp32": 82.6, "tf32": 82.6, "bf16": 165.2}, 1.008),
    "A100": Card({"fp32": 19.5, "tf32": 156.0, "bf16": 312.0}, 2.039),
}


class Load(NamedTuple):
    """Demand of one iteration of a program, as `python -m tests.device` counts it."""

    #: Env steps of all environments.
    env_steps: int

    #: Calls that hand work to the device, kernels, and waits for the device.
    launches: int
    kernels: int
    waits: int

    #: 10¹² floating-point operations of products, and 10⁹ bytes of the other kernels.
    tflop: float
    gigabytes: float

    def milliseconds(self, card: Card, precision: str = "fp32") -> dict[str, float]:
        """Time by what takes it."""
        return {
            "launches": self.launches * LAUNCH_US / 1e3,
            "products": 1e3 * self.tflop / card.tflops[precision],
            "memory": self.gigabytes / card.tb_s,
            "kernels": self.kernels * KERNEL_US / 1e3,
        }

    def rate(self, card: Card, precision: str = "fp32") -> tuple[float, str]:
        """Env steps a second, and what bounds them: the most of what is longer."""
        device = self.milliseconds(card, precision)
        host = device.pop("launches")
        total = sum(device.values())
        bound = "launches" if host > total else max(device, key=device.__getitem__)
        return 1e3 * self.env_steps / max(host, total), bound


#: By benchmark and side; of the first row of each.
LOADS = {
    "gpu-isaac-shape": {
        "everstep": Load(98_304, 44, 4_975, 2, 0.327, 13.5),
        "rsl_rl": Load(98_304, 6_449, 6_350, 143, 0.326, 14.8),
        "skrl": Load(98_304, 5_229, 5_134, 215, 0.329, 13.7),
        "rl_games": Load(98_304, 6_862, 6_818, 93, 0.327, 14.7),
    },
    "gpu-rl8-default": {
        "everstep": Load(262_144, 39, 1_558, 2, 0.903, 29.0),
        "rl8": Load(262_144, 1_750, 1_725, 25, 0.903, 28.8),
    },
}

#: Env steps a second in float32 on an H200; see `docs/gpu.md`.
MEASURED = {
    "gpu-isaac-shape": {
        "everstep": 3_328_000,
        "rsl_rl": 553_900,
        "skrl": 595_600,
        "rl_games": 532_500,
    },
    "gpu-rl8-default": {"everstep": 6_744_000, "rl8": 2_990_000},
}


def table(names: Iterable[str] = LOADS) -> str:
    """Expected env steps a second on every card, in Markdown, in millions, and what bounds them."""
    header = ["gpu-", "", "launches", "kernels", "TFLOP", "GB", *CARDS, "measured, H200"]
    rows = []
    for name in names:
        for side, load in LOADS[name].items():
            counts = f"{load.launches:,}", f"{load.kernels:,}"
            rates = [load.rate(card) for card in CARDS.values()]
            expected = [f"{rate / 1e6:.2f} {bound[0].upper()}" for rate, bound in rates]
            measured = f"{MEASURED[name][side] / 1e6:.2f}"
            place = name.removeprefix("gpu-")
            rows.append([place, side, *counts, f"{load.tflop}", f"{load.gigabytes}"])
            rows[-1] += [*expected, measured]
    return f"{markdown(header, rows)}\n\nL: launches, K: kernels, P: products, M: memory"


def compared(name: str, gpu: str, rates: Iterable[tuple[str, str, float]]) -> str:
    """Measured rates beside expected ones, in Markdown; empty without a model of both.

    Args:
        name: The benchmark.
        gpu: Name of the card, as CUDA has it.
        rates: Side, precision, and env steps a second that were measured.

    """
    card = next((card for part, card in CARDS.items() if part in gpu), None)
    rows = []
    for side, precision, rate in rates:
        load = LOADS.get(name, {}).get(side)
        if load is not None and card is not None:
            expected, bound = load.rate(card, precision)
            columns = [f"{rate / 1e6:.2f}", _text(expected, bound), f"{rate / expected:.2f}"]
            rows.append([side, precision, *columns])
    header = ["side", "precision", "measured, M env steps/s", "model", "ratio"]
    return markdown(header, rows) if rows else ""


def _text(rate: float, bound: str) -> str:
    return f"{rate / 1e6:.2f} {bound}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
