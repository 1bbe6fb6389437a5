"""Chooses a backend by timing: a microbenchmark of milliseconds picks the fastest of several for a problem, then it is stored.

It knows no backend: `selection.select` times the candidates that it is given. Source: EcoRNN, arXiv 1805.08899, section 5.
"""

from __future__ import annotations

from pytest_ecornn.autotune.decision import Decision, Timing
from pytest_ecornn.autotune.problem import Problem
from pytest_ecornn.autotune.selection import freeze, select
from pytest_ecornn.autotune.timing import Candidate

__all__ = ["Candidate", "Decision", "Problem", "Timing", "freeze", "select"]
