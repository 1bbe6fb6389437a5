"""The compiled host path on a CPU: launches of simulated kernels that C++ makes again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils._python_dispatch import _disable_current_modes

from pytest_ecornn.implementations._common.host_path import host_path
from pytest_ecornn.implementations._cuda.host.library import HostLibrary, host_library


@contextmanager
def compiled_host() -> Iterator[None]:
    """Within it calls that are planned are replayed once they have been recorded."""
    library = host_library()
    assert isinstance(library, HostLibrary)
    if not library.is_compiled:  # nothing is compiled beside simulated calls
        library.compile()
    with pytest.MonkeyPatch.context() as patch, _disable_current_modes():
        patch.setenv("ECORNN_HOST", "compiled")
        patch.setenv("ECORNN_COMPILE", "wait")
        assert host_path()._library() is not None, host_path().notes
        yield


def counts(planned: Callable[..., Any]) -> tuple[int, list[tuple[int, str]]]:
    """Runs of a planned call by Python, and of each of its tapes the replays and why it was refused."""
    found: tuple[int, list[tuple[int, str]]] = host_path()._library().counts(planned)
    return found
