"""Files kept between runs: whole or not at all, bounded in size, by several processes at once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.simulator.file_cache import FileCache


def put(cache: FileCache, name: str, size: int, used_at: int) -> None:
    os.utime(cache.put(name, lambda path: path.write_bytes(bytes(size))), (used_at, used_at))


def test_those_unused_for_longest_go(tmp_path: Path) -> None:
    first = FileCache(tmp_path, most_bytes=1000)
    for number in range(5):
        put(first, str(number), 300, used_at=number)
    assert first.get("0") is not None  # which makes it the newest
    put(FileCache(tmp_path, most_bytes=1000), "5", 300, used_at=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "4", "5"]


def test_a_file_that_could_not_be_written_is_none(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, most_bytes=1000)

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        cache.put("a", fail)
    assert cache.get("a") is None


def test_several_write_and_remove_at_once(tmp_path: Path) -> None:
    def use(number: int) -> None:
        cache = FileCache(tmp_path, most_bytes=5000)
        for i in range(50):
            name = str((number + i) % 10)
            cache.put(name, lambda path: path.write_bytes(bytes(1000)))
            with suppress(FileNotFoundError):  # another has removed it since
                assert len((tmp_path / name).read_bytes()) == 1000

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
