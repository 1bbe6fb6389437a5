"""Registers and spills are read from ptxas's log, and compared form by form."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ecornn.implementations._cuda import compile as compiler
from tests.helpers.kernel_forms import MEASURED, source_of, variants
from tests.helpers.requirements import needs_nvrtc
from tests.tools.kernel_resources import Resources, change, code_bytes, resources_of_log

LOG = """ptxas info    : Function properties for f
    0 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers
"""


def test_a_log_says_registers_and_spilled_bytes_or_is_refused() -> None:
    assert resources_of_log(LOG, 1000) == Resources(168, 16, 1000)
    with pytest.raises(ValueError, match="expected the registers in ptxas's log, got 'cached'"):
        resources_of_log("cached", 1)


def test_the_least_and_the_most_change_of_a_kernel_are_said() -> None:
    before, after = [Resources(100, 0, 1000), Resources(90, 8, 1000)], [Resources(98, 0, 900), Resources(93, 20, 1010)]
    assert change("scan.cu", before, after) == (
        "scan.cu (2 forms): registers -2 to +3, spilled bytes +0 to +12, code -10.0% to +1.0%"
    )


@needs_nvrtc
def test_code_is_a_part_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path))
    elf = compiler.compile_source(source_of("pointwise.cu"), variants("pointwise.cu")[0], MEASURED).path.read_bytes()
    assert 128 <= code_bytes(elf) < len(elf)
    assert code_bytes(elf) % 128 == 0
