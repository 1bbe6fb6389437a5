"""Code shared by the commands that measure on a CUDA device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch


def exit_code(program: str, measure: Callable[[], Any]) -> int:
    """0 after `measure`, 1 where it returns False; 2, said in one line, where torch finds no CUDA device."""
    if not torch.cuda.is_available():
        print(f"{program}: it measures on a CUDA device, and torch finds none on this machine", file=sys.stderr)
        return 2
    return int(measure() is False)
