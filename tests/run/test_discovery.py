"""Finding implementations: nothing is dropped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ecornn.cases.sources.sources import checksum, owns
from pytest_ecornn.run.discovery import DiscoveryError, _listed, discover, load_copy

GOOD = """
from pytest_ecornn import Cost, Implementation

class Mine(Implementation):
    carry = "float32"
    deterministic = True

    def unsupported(self, case, device):
        return "never runs"

    def build(self, case, weights):
        raise NotImplementedError

    def cost(self, case):
        return Cost(1, 1)
"""


def write(folder: Path, name: str, text: str = GOOD) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_own_implementations_are_found_by_listing_the_folder() -> None:
    found = discover([])
    assert {"sequential", "scan_cpu", "torch_cpu"} <= found.keys()
    assert all(one.is_own for one in found.values())
    assert "_stack" not in found


def test_a_file_adds_an_implementation_named_after_it(tmp_path: Path) -> None:
    found = discover([write(tmp_path, "my_scan.py")])
    assert found["my_scan"].cls.__name__ == "Mine"
    assert not found["my_scan"].is_own


def test_a_folder_adds_each_file_but_shared_code_and_tests(tmp_path: Path) -> None:
    write(tmp_path, "first.py", "from ._shared import Cost, Implementation\n" + GOOD.replace("from pytest_ecornn import", "# "))
    write(tmp_path, "_shared.py", "from pytest_ecornn import Cost, Implementation\n")
    write(tmp_path, "conftest.py", "raise RuntimeError\n")
    write(tmp_path, "test_it.py", "raise RuntimeError\n")
    assert "first" in discover([tmp_path])


def package(folder: Path, name: str, text: str = GOOD) -> Path:
    (folder / name).mkdir(parents=True)
    write(folder / name, "__init__.py", text)
    return folder / name


WITH_PARTS = GOOD.replace(
    "from pytest_ecornn import", "from ._parts import kernel\nfrom .more import last\nfrom pytest_ecornn import"
)


def test_a_package_is_an_implementation_named_after_its_folder(tmp_path: Path) -> None:
    folder = package(tmp_path, "my_package", WITH_PARTS)
    write(folder, "_parts.py", "kernel = 1\n")
    write(folder, "more.py", "last = 2\n")
    found = discover([folder])["my_package"]
    assert (found.path, found.cli_option) == (folder / "__init__.py", str(folder))
    assert load_copy(found) is not None


def test_a_folder_adds_packages_beside_files_and_leaves_code_that_they_share(tmp_path: Path) -> None:
    write(tmp_path, "one_file.py")
    package(tmp_path, "one_package")
    write(package(tmp_path, "tools", ""), "handy.py", "raise RuntimeError\n")
    package(tmp_path, "_hidden", "raise RuntimeError\n")
    found = {name for name, one in discover([tmp_path]).items() if not one.is_own}
    assert found == {"one_file", "one_package"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Helper:\n    pass\n", r"__init__\.py: expected exactly one subclass .* found none"),
        (GOOD + GOOD.replace("Mine", "Other"), r"__init__\.py: expected exactly one .* found Mine, Other"),
        ("class (", r"__init__\.py: importing it raised SyntaxError"),
    ],
)
def test_a_bad_package_is_an_error_that_names_its_file(tmp_path: Path, text: str, message: str) -> None:
    folder = package(tmp_path, "bad", text)
    for path in (folder, tmp_path):
        with pytest.raises(DiscoveryError, match=message):
            discover([path])


def test_an_own_package_without_class_is_a_family_and_an_empty_one_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = package(tmp_path, "our_folder", "")
    write(package(root, "family", ""), "member.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert [one.name for one in _listed(root, "our_folder")] == ["member"]
    package(root, "hollow", "")
    with pytest.raises(DiscoveryError, match=r"hollow/__init__\.py: expected exactly one subclass"):
        list(_listed(root, "our_folder"))


def test_code_of_a_package_and_shared_code_is_its_own(tmp_path: Path) -> None:
    source = package(tmp_path, "mine") / "__init__.py"
    own = ("mine/__init__.py", "mine/kernel.py", "mine/kernels/deep.py", "_shared.py", "_common/cells.py")
    assert all(owns(source, tmp_path / name) for name in own)
    assert not any(owns(source, tmp_path / name) for name in ("other.py", "other/kernel.py", "mine_too.py", "../_up.py"))


def test_a_checksum_is_of_a_package_and_of_what_is_shared(tmp_path: Path) -> None:
    folder = package(tmp_path, "mine")
    seen = {checksum(folder / "__init__.py")}
    for name in ("mine/part.py", "mine/kernels/k.cu", "_common/cells.py", "_one.py", "_cuda/include/x/y.cuh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path, name, "first")
        seen.add(before := checksum(folder / "__init__.py"))
        write(tmp_path, name, "second")
        assert checksum(folder / "__init__.py") != before, name
    before = checksum(folder / "__init__.py")
    package(tmp_path, "another")
    write(tmp_path, "other.py")
    assert checksum(folder / "__init__.py") == before
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"bad\.py: expected exactly one subclass of pytest_ecornn\.Implementation, found none"),
        (GOOD + GOOD.replace("Mine", "Other"), r"bad\.py: expected exactly one .* found Mine, Other"),
        (GOOD.replace("def cost", "def price"), r"bad\.py: class Mine lacks cost"),
        (GOOD.replace('carry = "float32"', ""), r"bad\.py: class Mine lacks carry"),
        (GOOD.replace("deterministic = True", ""), r"bad\.py: class Mine lacks deterministic"),
        (
            GOOD.replace("deterministic", "takes_resets = 1\n    deterministic"),
            r"bad\.py: class Mine lacks takes_resets",
        ),
        (
            GOOD.replace("deterministic", "times_in_build = 'yes'\n    deterministic"),
            r"bad\.py: class Mine lacks times_in_build",
        ),
        ("import no_such_module", r"bad\.py: importing it raised ModuleNotFoundError.*mend the module"),
        (
            "import pytest\npytest.skip('no\\nGPU', allow_module_level=True)",
            r"bad\.py: importing it raised Skipped: no GPU; mend",
        ),
        ("import pytest\npytest.importorskip('no_such')", r"bad\.py: importing it raised Skipped: could not import 'no_such'"),
        ("class (", r"bad\.py: importing it raised SyntaxError"),
        ("import time\ntime.perf_counter = lambda: 0.0", r"bad\.py: importing it replaced .* with: time\.perf_counter"),
        ("import secrets\nsecrets.randbelow = lambda n: 0", r"bad\.py: importing it replaced .* with: secrets\.randbelow"),
    ],
)
def test_a_bad_module_is_an_error_that_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DiscoveryError, match=message):
        discover([write(tmp_path, "bad.py", text)])


def test_a_taken_name_names_both_files(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match=r"two implementations are named 'sequential': .*implementations.*rename"):
        discover([write(tmp_path, "sequential.py")])


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match="no such file or folder"):
        discover([tmp_path / "absent.py"])


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match="holds no implementation"):
        discover([tmp_path])


def test_the_same_path_given_twice_counts_once(tmp_path: Path) -> None:
    path = write(tmp_path, "twice.py")
    assert "twice" in discover([path, path])
