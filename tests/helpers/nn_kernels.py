"""pytest_ecornn.nn on a CPU, by persistent_gpu's kernels on clusters there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pytest_ecornn.nn
from pytest_ecornn.autotune import selection
from pytest_ecornn.implementations.auto import estimates
from pytest_ecornn.reference.precision import fp32_precision


@pytest.fixture
def by_kernels(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors of the CPU are run as those of a CUDA device are."""
    monkeypatch.setattr(pytest_ecornn.nn.kernel_limits, "kernels_on", lambda device: "persistent_gpu")
    monkeypatch.setattr(estimates, "persistent_us", lambda case, device: 1.0)  # there are none of a CPU's clusters
    monkeypatch.setenv("ECORNN_AUTO", "persistent_gpu")
    for forget in (pytest_ecornn.nn.kernel_limits.cached_refusal.cache_clear, selection.forget):
        forget()
    with fp32_precision("rnn", "ieee"):
        yield
    for forget in (pytest_ecornn.nn.kernel_limits.cached_refusal.cache_clear, selection.forget):
        forget()
