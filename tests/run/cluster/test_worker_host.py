"""The actor of a place, without Ray: a worker's bytes both ways, in order, and its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ecornn.run.cluster.worker_host import WorkerHost

ECHO = """
import os, sys
for line in sys.stdin:
    sys.stdout.write(line.upper())
    sys.stdout.flush()
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerHost]:
    monkeypatch.chdir(tmp_path)
    found = WorkerHost()
    yield found
    found.close()
    assert not Path(found.describe().shared).exists()


def start(host: WorkerHost, code: str, **variables: str) -> None:
    host.start("gw0", ".", variables, {"journal.jsonl": b"{}"})
    host.write("gw0", 0, f"{code!r}\n".encode())


def output(host: WorkerHost) -> tuple[bytes, bytes]:
    """All that the worker writes until its end."""
    out = error = b""
    while not (part := host.read("gw0")).is_ended:
        out, error = out + part.out, error + part.error
    return out + part.out, error + part.error


def test_bytes_arrive_in_the_order_of_their_numbers(host: WorkerHost) -> None:
    start(host, ECHO)
    host.write("gw0", 2, b"second\n")
    host.write("gw0", 3, None)
    host.write("gw0", 1, b"first\n")
    assert output(host) == (b"FIRST\nSECOND\n", b"")
    assert host.ending("gw0") == (0, {})


def test_much_output_of_a_worker_that_reads_nothing_arrives_whole(host: WorkerHost) -> None:
    start(host, "import sys\nsys.stdout.write('a' * 1000000)\nsys.stderr.write('lost')\nraise SystemExit(3)")
    host.write("gw0", 1, b"nobody reads this" * 100)
    out, error = output(host)
    assert (len(out), error) == (1_000_000, b"lost")
    host.write("gw0", 2, b"after its end")
    assert host.ending("gw0").status == 3


def test_the_crash_report_of_a_killed_worker_is_handed_on(host: WorkerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ecornn.run.cluster.worker_host._KILLED_SECONDS", 0.1)
    shared = Path(host.describe().shared)
    start(
        host, f"import time\nopen({str(shared / 'gw0.json')!r}, 'w').write('{{}}')\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    assert host.read("gw0").out == b"ready\n"
    assert (shared / "journal.jsonl").read_bytes() == b"{}"
    host.kill("gw0")
    assert output(host) == (b"", b"")
    assert host.ending("gw0") == (-9, {"gw0.json": "{}"})


def test_a_worker_has_the_variables_of_the_run_and_not_what_ray_sets_for_itself(
    host: WorkerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", "/code")
    start(host, "import json, os\nprint(json.dumps(dict(os.environ)))", NUMBA_NUM_THREADS="2", PYTHONPATH="/code/src")
    found = json.loads(output(host)[0])
    assert "OMP_NUM_THREADS" not in found
    assert (found["NUMBA_NUM_THREADS"], found["PYTHONPATH"]) == ("2", "/code/src:/code")


def test_the_fingerprint_is_that_of_a_workers_process(host: WorkerHost) -> None:
    found = json.loads(host.fingerprint({"NUMBA_NUM_THREADS": "1"}))
    assert found["threads"]["numba"] == 1
    assert found["commit"] is None
    with pytest.raises(RuntimeError, match="ModuleNotFoundError: No module named 'encodings'"):
        host.fingerprint({"PYTHONHOME": "/nowhere"})
