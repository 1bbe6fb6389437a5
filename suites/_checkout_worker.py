"""Times layers of one checkout for `checkouts`: `python _checkout_worker.py ROOT` reads a request a line and prints its answer.

A request is JSON: {"build": [implementation, case]}, {"block": seconds} or {"host": calls}. Names of old versions work too.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

CALLS_OF_HOST = 16


def _first(names: list[str]) -> Any:
    """The first of these modules or attributes of modules that the checkout has."""
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            found = importlib.import_module(module)
            return getattr(found, attribute) if attribute else found
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"expected one of {', '.join(names)}, found none")


class Layer:
    """One implementation's call of one case: the layer, and in training the gradients of all inputs."""

    def __init__(self, implementation: str, case_name: str):
        import torch

        contract = importlib.import_module("pytest_ecornn.contract")
        module = importlib.import_module(f"pytest_ecornn.implementations.{implementation}")
        own: list[Any] = [one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__]
        (kind,) = (one for one in own if issubclass(one, contract.Implementation))
        case = replace(contract.Case.parse(case_name), device="cuda")
        instance = kind()
        if reason := instance.unsupported(case, torch.device("cuda")):
            raise ValueError(reason)
        contents = _first(["pytest_ecornn.cases.contents", "pytest_ecornn.contents"])
        to_device = getattr(contents, "to_device", None) or contents.moved
        problem = to_device(contents.problem(replace(case, device="cpu")), "cuda")
        call = _first(["pytest_ecornn.verification.calls:Call", "pytest_ecornn.calls:Call"])(problem)
        layer = instance.build(case, problem.weights)
        self._run = partial(getattr(call, "forward_backward", None) or call.timed, layer)
        self._calls = 1
        self._cuda: Any = torch.cuda
        self._graph = self._captured()

    def _captured(self) -> Any:
        """A CUDA graph of one call, so that no host is in its time."""
        side = self._cuda.Stream()
        side.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(side):
            for _ in range(5):
                self._run()
        self._cuda.current_stream().wait_stream(side)
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph):
            self._results = self._run()
        return graph

    def block_us(self, seconds: float) -> float:
        """Time of a replay, by events around as many replays as take about so many seconds."""
        while (taken := self._block_ms(self._calls)) < 500 * seconds and self._calls < 4096:
            self._calls *= 2
        return 1e3 * taken / self._calls

    def _block_ms(self, calls: int) -> float:
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._graph.replay()
        start.record()
        for _ in range(calls):
            self._graph.replay()
        end.record()
        self._cuda.synchronize()
        return float(start.elapsed_time(end))

    def host_us(self, calls: int) -> float:
        """Time until a call returns, the lower quartile over blocks of a few calls: others on the host only add to it."""
        times = []
        for _ in range(max(1, calls // CALLS_OF_HOST)):
            self._cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS_OF_HOST):
                self._run()
            times.append(1e6 * (time.perf_counter() - start) / CALLS_OF_HOST)
        self._cuda.synchronize()
        return sorted(times)[len(times) // 4]


def main() -> None:
    root = Path(sys.argv[1]).resolve()
    sys.path[:1] = [str(root)]
    layer: Layer | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "build" in request:
                layer = None
                layer = Layer(*request["build"])
                answer: Any = str(Path(importlib.import_module("pytest_ecornn").__file__ or "").resolve().parents[1])
            elif layer is None:
                raise RuntimeError("no layer is built")
            else:
                answer = layer.block_us(request["block"]) if "block" in request else layer.host_us(request["host"])
            print(json.dumps({"answer": answer}), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    main()
