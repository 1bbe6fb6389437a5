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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_adds_an_implementation_named_after_it_once(tmp_path: Path) -> None:
    path = write(tmp_path, "my_scan.py")
    found = discover([path, path])
    assert found["my_scan"].cls.__name__ == "Mine"
    assert not found["my_scan"].is_own


def test_a_folder_adds_each_file_but_shared_code_tests_and_an_editors_lock(tmp_path: Path) -> None:
    write(tmp_path, "first.py", "from ._shared import Cost, Implementation\n" + GOOD.replace("from pytest_ecornn import", "# "))
    write(tmp_path, "_shared.py", "from pytest_ecornn import Cost, Implementation\n")
    write(tmp_path, "conftest.py", "raise RuntimeError\n")
    write(tmp_path, "test_it.py", "raise RuntimeError\n")
    (tmp_path / ".#first.py").symlink_to("user@host.1234:56")  # Emacs's lock
    (tmp_path / "folder.py").mkdir()
    assert "first" in discover([tmp_path])


def package(folder: Path, name: str, text: str = GOOD) -> Path:
    return write(folder / name, "__init__.py", text).parent


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
        write(tmp_path, name, "first")
        seen.add(before := checksum(folder / "__init__.py"))
        write(tmp_path, name, "second")
        assert checksum(folder / "__init__.py") != before, name
    before = checksum(folder / "__init__.py")
    package(tmp_path, "another")
    write(tmp_path, "other.py")
    assert checksum(folder / "__init__.py") == before
    assert len(seen) == 6


EMPTY, HELPER, TWO, SYNTAX = "", "class Helper:\n    pass\n", GOOD + GOOD.replace("Mine", "Other"), "class ("
SKIPS = "import pytest\npytest.skip('no\\nGPU', allow_module_level=True)"
# Text of a module or a package, and what is said of it behind its file.
BAD = {
    EMPTY: r"expected exactly one subclass of pytest_ecornn\.Implementation, found none",
    HELPER: r"expected exactly one subclass of pytest_ecornn\.Implementation, found none",
    TWO: r"expected exactly one .* found Mine, Other",
    GOOD.replace("def build", "def make"): "class Mine lacks build",
    GOOD.replace("def unsupported", "def refuses"): "class Mine lacks supported, or unsupported",
    GOOD.replace("deterministic", "supported = ['lstm']\n    deterministic"): "class Mine lacks supported \\(a pytest_ecornn",
    GOOD.replace('carry = "float32"', ""): "class Mine lacks carry",
    GOOD.replace("deterministic = True", ""): "class Mine lacks deterministic",
    GOOD.replace("deterministic", "takes_resets = 1\n    deterministic"): "class Mine lacks takes_resets",
    GOOD.replace("deterministic", "times_in_build = 'yes'\n    deterministic"): "class Mine lacks times_in_build",
    GOOD.replace("deterministic", "costly_shapes = 'yes'\n    deterministic"): "class Mine lacks costly_shapes",
    GOOD.replace(
        "deterministic", "weight_rounding = 'int4'\n    deterministic"
    ): r"class Mine lacks weight_rounding \(none, bf",
    "import no_such_module": "importing it raised ModuleNotFoundError.*mend the module",
    SKIPS: "importing it raised Skipped: no GPU; mend",
    "import pytest\npytest.importorskip('no_such')": "importing it raised Skipped: could not import 'no_such'",
    SYNTAX: "importing it raised SyntaxError",
    "import time\ntime.perf_counter = lambda: 0.0": r"importing it changed .*: time\.perf_counter",
    "import secrets\nsecrets.randbelow = lambda n: 0": r"importing it changed .*: secrets\.randbelow",
}


@pytest.mark.parametrize("text", BAD, ids=BAD.values())
def test_a_bad_module_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(DiscoveryError, match=rf"bad\.py: {BAD[text]}"):
        discover([write(tmp_path, "bad.py", text)])


@pytest.mark.parametrize("text", [HELPER, TWO, SYNTAX], ids=["no class", "two classes", "syntax"])
def test_a_bad_package_is_an_error_that_names_its_file(tmp_path: Path, text: str) -> None:
    folder = package(tmp_path, "bad", text)
    for path in (folder, tmp_path):
        with pytest.raises(DiscoveryError, match=rf"bad/__init__\.py: {BAD[text]}"):
            discover([path])


@pytest.mark.parametrize(
    ("file", "path", "message"),
    [
        ("sequential.py", "sequential.py", r"two implementations are named 'sequential': .*implementations.*rename"),
        ("other.py", "absent.py", "no such file or folder"),
        ("empty/_hidden.py", "empty", "holds no implementation"),
    ],
    ids=["a taken name", "a missing path", "an empty folder"],
)
def test_a_path_that_adds_no_implementation_is_an_error(tmp_path: Path, file: str, path: str, message: str) -> None:
    write(tmp_path, file, GOOD if file == "sequential.py" else "")
    with pytest.raises(DiscoveryError, match=message):
        discover([tmp_path / path])
