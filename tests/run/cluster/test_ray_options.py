"""Errors of --ecornn-ray: a line each, before anything is run."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.helpers.foreign import Foreign
from tests.helpers.samples import CASE

RUN = ("--ecornn-verify", "--ecornn-only", "sequential", "--ecornn-case", CASE)


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    return Foreign(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-n", "2"), "--ecornn-ray places workers itself: leave out -n 2"),
        (("-n", "0"), "--ecornn-ray places workers itself: leave out -n 0"),
        (("--dist", "each"), "--ecornn-ray places workers itself: leave out --dist each"),
        (("--tx", "popen"), "--ecornn-ray places workers itself: leave out --tx popen"),
        (("--pdb",), "--ecornn-ray places workers itself: leave out --pdb"),
        (("--ecornn-device", "cuda:1"), "--ecornn-ray gives each worker one GPU: expected --ecornn-device cuda, got cuda:1"),
        (("-p", "no:xdist"), "--ecornn-ray needs pytest-xdist: pip install pytest-xdist"),
    ],
)
def test_what_cannot_go_with_a_cluster_is_a_usage_error(foreign: Foreign, options: tuple[str, ...], message: str) -> None:
    done = foreign.run_here(*RUN, "--ecornn-ray", "auto", *options, check=4)
    assert done.stderr.strip() == f"ERROR: {message}"


def test_without_ray_the_option_says_what_to_install(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = foreign.run_here(*RUN, "--ecornn-ray", "auto", check=4)
    assert done.stderr.strip() == "ERROR: --ecornn-ray needs Ray: pip install 'pytest-ecornn[ray]'"


def test_times_that_would_be_measured_again_here_are_a_usage_error(foreign: Foreign) -> None:
    done = foreign.run_here("--ecornn-bench", "--ecornn-ray", "auto", "--ecornn-compare", "report.json", check=4)
    assert done.stderr.strip() == ("ERROR: --ecornn-ray: leave out --ecornn-compare, which measures rows again in this process")
    done = foreign.run("--ecornn-bench", "--ecornn-ray", "local", "--ecornn-replicates", "5", check=4)
    assert "--ecornn-ray: leave out --ecornn-replicates" in done.stderr


def test_a_cluster_that_cannot_be_reached_is_a_usage_error_at_once(foreign: Foreign) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        for given in (address, f"ray://{address}"):
            done = foreign.run(*RUN, "--ecornn-ray", given, check=4)
            assert done.stderr.strip() == f"ERROR: --ecornn-ray {given}: expected a Ray cluster there, got: Connection refused"
    done = foreign.run(*RUN, "--ecornn-ray", "somewhere", check=4)
    expected = "ERROR: --ecornn-ray: expected auto, local, host:port or ray://host:port, got 'somewhere'"
    assert done.stderr.strip() == expected


def test_it_needs_a_run(foreign: Foreign) -> None:
    done = foreign.run_here("--ecornn-ray", "auto", check=4)
    assert "--ecornn-ray expected --ecornn-verify or --ecornn-bench beside it" in done.stderr


def test_ray_is_imported_by_a_run_with_the_option_alone(foreign: Foreign) -> None:
    foreign.write("conftest.py", "import sys\ndef pytest_unconfigure():\n    assert 'ray' not in sys.modules\n")
    foreign.run(*RUN, "-k", "fixed", "--ecornn-isolate", check=0, fresh=True)
