"""Named, repeatable benchmarks against other libraries; `everstep bench` runs them.

Every side is a process of its own, trains by the same settings, and waits while another works.
"""

from ._cases import Case, Cell, Learning, Measure, Row, Solving, Work, case_names, cells, load_case
from ._errors import BenchmarkError, PeerError
from ._machine import cores, has_fast_bf16, machine
from ._measuring import Bench, CellResult, SideResult, measure
from ._peers import PEERS, family
from ._ratios import Ratio, ratio_of
from ._report import document, solve_table, speed_table, versions
from ._sides import Side, interpreter

__all__ = [
    "PEERS",
    "Bench",
    "BenchmarkError",
    "Case",
    "Cell",
    "CellResult",
    "Learning",
    "Measure",
    "PeerError",
    "Ratio",
    "Row",
    "Side",
    "SideResult",
    "Solving",
    "Work",
    "case_names",
    "cells",
    "cores",
    "document",
    "family",
    "has_fast_bf16",
    "interpreter",
    "load_case",
    "machine",
    "measure",
    "ratio_of",
    "solve_table",
    "speed_table",
    "versions",
]
