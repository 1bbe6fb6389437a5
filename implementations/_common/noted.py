"""Bases of implementations: of those that say what ran, and of kernels that keep states in float32 and the rest as stored."""

from __future__ import annotations

from pytest_ecornn.contract import Implementation


class Noted(Implementation):
    """`build` writes the notes."""

    _notes = ""

    def notes(self) -> str:
        return self._notes


class OwnKernels(Noted):
    carry = "float32"
    gate_gradients = "storage"
    saved_gates = "storage"
    products = "storage"
    deterministic = True
