"""Libraries for the CPU are compiled once, and again where anything that they are made of has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.requirements import needs_compiler
from tests.simulator import compiled_on_cpu
from tests.simulator.compiled_on_cpu import compiled

OPTIONS = ("-O0", "-shared", "-fPIC")


@needs_compiler
def test_the_same_is_compiled_once_and_a_changed_header_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_on_cpu, "FOLDER", tmp_path / "cache")
    libraries = []
    for number, (header, options) in enumerate([("1", OPTIONS), ("1", OPTIONS), ("2", OPTIONS), ("1", (*OPTIONS, "-g"))]):
        folder = tmp_path / str(number)  # the same text elsewhere is the same
        folder.mkdir()
        (folder / "value.h").write_text(f"#define VALUE {header}  // in {folder}")
        (folder / "source.cpp").write_text('#include "value.h"\nextern "C" int value() { return VALUE; }')
        libraries.append(compiled(folder / "source.cpp", [folder], options))
    assert libraries[0] == libraries[1]
    assert len(set(libraries)) == 3
    assert sorted((tmp_path / "cache").iterdir()) == sorted(set(libraries))
