"""Reproduction of published results: recipes trained over seeds, statistics, and their page.

Every training is a process of its own and a line of `results.jsonl`; a training that has its line
is not run again, and one that was interrupted goes on from its checkpoint.
"""

from ._jobs import OURS, Job, Results, jobs_of, key_of
from ._peers import PEERS, check_peer
from ._statistics import Summary, improvement, performance_profile, summarize, verdict
from ._suite import run_jobs

__all__ = [
    "OURS",
    "PEERS",
    "Job",
    "Results",
    "Summary",
    "check_peer",
    "improvement",
    "jobs_of",
    "key_of",
    "performance_profile",
    "run_jobs",
    "summarize",
    "verdict",
]
