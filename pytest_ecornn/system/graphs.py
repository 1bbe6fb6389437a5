"""Captures calls into CUDA graphs, or says why it cannot, and leaves no capture half done: the next row needs the device.

A capture that fails may leave torch's allocator as if it went on (before 2.13), so what can be known beforehand is found out
beforehand: a call that waits for the device cannot be captured, and torch tells when it is asked to.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_ecornn.system.error_line import error_line

_MAX_REASON_CHARS = 200
# An allocator that still believes in them asks them at the next capture, so they must not be collected.
_failed: list[torch.cuda.CUDAGraph] = []


class NotCaptured(Exception):
    """One line: why there is no graph."""


class GraphCapture:
    """Makes CUDA graphs on one device, on one side stream.

    Each has memory of its own: in a shared pool one graph's results may lie where an earlier graph still works when replayed.
    """

    def __init__(self, device: str):
        with torch.cuda.device(device):
            self._device = torch.cuda.current_device()
            self._stream = torch.cuda.Stream()

    def warm_up(self, call: Callable[[], Any]) -> Any:
        """Makes the call twice, as it will be captured, and returns the result: what is done only once must be done by then."""
        with _capture_error_reason(), self._on_side_stream():
            call()
            with _forbid_synchronization():
                result = call()
        return result

    def capture(self, call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        """A graph of the call, and its result, whose tensors each replay fills anew."""
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        with _capture_error_reason(), self._on_side_stream():
            torch.cuda.empty_cache()  # nothing can be given back during the capture
            try:
                graph.capture_begin(pool=pool)
                result = call()
                graph.capture_end()
            except BaseException:
                discard_graph(graph, pool, self._device)
                raise
        return graph, result

    @contextmanager
    def _on_side_stream(self) -> Iterator[None]:
        """Switches to the side stream, with the device idle before and after; restores the former stream in any case."""
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            with torch.cuda.stream(self._stream):
                yield
            torch.cuda.synchronize()


def discard_graph(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], device: int) -> None:
    """Ends a capture that failed, and takes torch's allocator out of it."""
    with contextlib.suppress(RuntimeError), warnings.catch_warnings():  # spoilt, or ended already
        warnings.simplefilter("ignore")
        graph.capture_end()
    graph.reset()
    with contextlib.suppress(RuntimeError):  # torch has done it
        torch._C._cuda_endAllocateToPool(device, pool)
    _failed.append(graph)


@contextmanager
def _capture_error_reason() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise NotCaptured(f"it cannot be captured ({error_line(error, _MAX_REASON_CHARS)})") from error


@contextmanager
def _forbid_synchronization() -> Iterator[None]:
    """torch raises where an operation would wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it does not see everything
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
