"""Libraries for the CPU are compiled once, and again where anything that they are made of has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.requirements import needs_compiler
from tests.simulator import compiled_on_cpu
from tests.simulator.compiled_on_cpu import Library
from tests.simulator.file_cache import FileCache

TEXT = '#include "value.h"\nextern "C" int value() { return VALUE; }'


@pytest.fixture(autouse=True)
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileCache:
    cache = FileCache(tmp_path / "cache", most_bytes=2**20)
    monkeypatch.setattr(compiled_on_cpu, "LIBRARIES", cache)
    return cache


def of_value(number: int, comment: str = "", *options: str) -> Library:
    return Library(TEXT, (("value.h", f"#define VALUE {number}  // {comment}\n"), ("other.h", comment)), options)


@needs_compiler
def test_the_same_is_compiled_once_and_a_changed_header_anew(libraries: FileCache) -> None:
    made = [of_value(1), of_value(1), of_value(1, "a comment"), of_value(2), of_value(1, "", "-g")]
    paths = [library.path for library in made]
    assert paths[0] == paths[1] == paths[2]
    assert len(set(paths)) == 3
    assert {*libraries.folder.glob("*.so")} == set(paths)
    assert made[3].loaded.value() == 2


@needs_compiler
def test_one_that_was_removed_or_cut_off_is_compiled_again(libraries: FileCache) -> None:
    of_value(3).path.unlink()
    assert of_value(3).loaded.value() == 3
    of_value(4).path.write_bytes(b"half a file")
    assert of_value(4).loaded.value() == 4


@needs_compiler
def test_it_depends_on_what_it_needs() -> None:
    user = [Library("int value(); int twice() { return 2 * value(); }", needs=(of_value(number),)) for number in (1, 2)]
    assert user[0].key != user[1].key
