"""What is stored or public stays what it was. The files of this folder hold it; they are changed by hand alone.

`first_*` were written by version 0.1.0 as of 1e9472c, and `later_cpu` with the fields that came since.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import pytest_ecornn
import pytest_ecornn.nn.functional
from pytest_ecornn import contract, hookspecs, nn, plugin, reporting
from pytest_ecornn.cases.case_sets import case_set
from pytest_ecornn.contract import Case, Declared, cells
from pytest_ecornn.regression import gate
from pytest_ecornn.reporting import benchmark_json, csv_report, json_report, junit
from pytest_ecornn.results import journal, score
from pytest_ecornn.results.rows import WORDS, Row
from pytest_ecornn.run.discovery import ENTRY_POINT_GROUP, discover
from pytest_ecornn.system import cache, machine
from pytest_ecornn.system.package_folders import IMPLEMENTATIONS, PACKAGE, SUITES
from pytest_ecornn.verification.properties import properties
from tests.helpers.foreign import Foreign

ROOT = Path(__file__).parents[2]
FROZEN = Path(__file__).parent
REPORTS = ("first_cpu", "first_h200", "later_cpu")
JOURNALS = SCORES = ("first_cpu", "later_cpu")
# What the run that wrote later_cpu/journal.jsonl was asked for.
OPTIONS = (
    *("--ecornn-bench", "--ecornn-budget", "0.2", "--ecornn-pairs", "12"),
    *("--ecornn-only", "scan_cpu", "--ecornn-only", "sequential"),
    *("--ecornn-case", "lstm-T3-B2-H8-float32", "--ecornn-case", "mingru-T16-B2-H8-bfloat16-training"),
)


def check(name: str, found: Iterable[str]) -> None:
    """Fails with what the frozen file has and what came instead, line by line."""
    expected = (FROZEN / name).read_text().splitlines()
    changes = difflib.unified_diff(expected, list(found), n=0, lineterm="")
    lines = [line for line in list(changes)[2:] if not line.startswith("@@")]  # after two of file names
    assert not lines, f"tests/frozen/{name}: expected (-) and what came (+):\n" + "\n".join(lines)


def lost(stored: Any, found: Any, place: str = "") -> Iterator[str]:
    """Where `found` lacks or changes what was stored, a line each. It may have more fields."""
    if isinstance(stored, dict) and isinstance(found, dict):
        for key, value in stored.items():
            yield from lost(value, found.get(key, "nothing"), f"{place}.{key}")
    elif isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        for number, (a, b) in enumerate(zip(stored, found, strict=True)):
            yield from lost(a, b, f"{place}[{number}]")
    elif stored != found:
        yield f"{place}: expected {stored!r}, got {found!r}"


def check_kept(stored: Any, found: Any) -> None:
    lines = list(lost(stored, found))
    assert not lines, "\n".join(lines)


def keys(value: Any, place: str = "") -> set[str]:
    """The names of all fields, at any depth."""
    if isinstance(value, dict):
        return {one for key, inner in value.items() for one in keys(inner, f"{place}.{key}")}
    if isinstance(value, list) and value:
        return {one for inner in value for one in keys(inner, f"{place}[]")}
    return {place.removeprefix(".")}


# What is stored.


def stored_report(folder: str) -> tuple[reporting.RunInfo, list[Row]]:
    return reporting.read_report(FROZEN / folder / "report.json")


@pytest.mark.parametrize("folder", REPORTS)
def test_a_stored_report_is_read_and_written_again_with_its_values(folder: str) -> None:
    stored = json.loads((FROZEN / folder / "report.json").read_text())
    run, rows = stored_report(folder)
    check_kept(stored["run"], run.as_dict())
    check_kept(stored["rows"], [row.as_dict() for row in rows])
    check_kept(stored, json.loads(json_report.render(run, rows, set())))


@pytest.mark.parametrize("folder", REPORTS)
def test_a_stored_report_is_compared_as_before(folder: str) -> None:
    """What --ecornn-compare makes of it, beside itself: the rows, by their names, and the fields that report.json gets."""
    run, rows = stored_report(folder)
    outcome = gate.compare(rows, rows, set(), lambda *names: 0.05)
    found = [f"{one.implementation} {one.case} {one.column}: {one.verdict}, to {one.anchor or '-'}" for one in outcome.findings]
    check(f"{folder}/comparison.txt", [*sorted(found), *sorted(keys(outcome.as_dict()))])
    assert machine.check_comparable(run.machine, run.machine, True) == ([], [])
    assert set(run.machine) - {"allocator"} <= set(machine.fingerprint(ROOT)), "names of the fingerprint have changed"


@pytest.mark.parametrize("folder", REPORTS)
def test_csv_and_benchmark_json_of_a_stored_report_are_what_they_were(folder: str) -> None:
    run, rows = stored_report(folder)
    doubted = reporting.unproven(rows)
    check(f"{folder}/report.csv", csv_report.render(rows, doubted).splitlines())
    data = json.loads(benchmark_json.render(run, rows, doubted))
    named = [f"{key}: {one[key]}" for one in data["benchmarks"] for key in ("fullname", "group", "name", "param")]
    for one in data["benchmarks"]:
        one["stats"] = {key: one["stats"][key] for key in ("data", "iterations")}  # the others are pytest-benchmark's
    check(f"{folder}/benchmark.txt", [*sorted(named), *sorted(keys(data))])


@pytest.mark.parametrize("folder", JOURNALS)
def test_a_stored_journal_is_read_and_written_again_with_its_values(folder: str, tmp_path: Path) -> None:
    path = FROZEN / folder / "journal.jsonl"
    header, *rows = map(json.loads, path.read_text().splitlines())
    found_header, found_rows, length = journal.read(path)
    check_kept(header, found_header)
    check_kept(rows, [row.as_dict() for row in found_rows])
    assert length == path.stat().st_size
    del found_header["schema_version"]
    journal.Journal(tmp_path, found_header, is_resumed=False).add(*found_rows)
    check_kept([header, *rows], [json.loads(line) for line in (tmp_path / path.name).read_text().splitlines()])


def test_a_stored_journals_setup_and_rows_are_those_of_such_a_run(tmp_path: Path) -> None:
    """--ecornn-resume refuses it for its machine alone: nothing of its set-up has another name or value, and no row."""
    header, *rows = (FROZEN / "later_cpu/journal.jsonl").read_text().splitlines()
    data = json.loads(header)
    known = {*data["machine"], *data["machine"]["packages"]}
    data["machine"], data["setup"]["sources"] = {"cpu": "another"}, {}
    (tmp_path / "reports/local").mkdir(parents=True)
    (tmp_path / "reports/local/journal.jsonl").write_text("\n".join([json.dumps(data), *rows]) + "\n")
    done = Foreign(tmp_path).run_here(*OPTIONS, "--ecornn-resume", check=4)
    said = done.stderr.partition("its rows cannot stand beside new ones (")[2].partition("); repeat the options")[0]
    differences = said.split("; ")
    assert differences[0].startswith("cpu: another and "), done.stderr
    assert [one for one in differences if one.partition(": ")[0] not in known] == []


@pytest.mark.parametrize("folder", SCORES)
def test_a_stored_score_is_read_and_written_again_with_its_values(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = json.loads((FROZEN / folder / "score.json").read_text())
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(FROZEN / folder))
    found = score.load_last()
    assert found is not None, "the score is not read"
    check_kept(stored, asdict(found))
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path))
    assert score.save(found) == tmp_path / "score.json"
    check_kept(stored, json.loads((tmp_path / "score.json").read_text()))


def test_the_cache_folder_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ECORNN_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache.cache_dir() == Path("/cache/pytest-ecornn")


# Names of cases.


def stored_cases() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((FROZEN / "cases.json").read_text())
    return found


def test_a_cases_name_means_what_it_meant() -> None:
    printed = {name: str(Case(**values)) for name, values in stored_cases().items()}
    check_kept({name: name for name in printed}, printed)
    check_kept(
        {name: asdict(Case(**values)) for name, values in stored_cases().items()},
        {name: asdict(Case.parse(name)) for name in printed},
    )


def test_every_token_of_a_name_is_frozen() -> None:
    cases = list(stored_cases().values())
    choices = {
        "cell": [cell.name for cell in cells.BUILT_IN],
        "dtype": contract.DTYPES,
        "precision": contract.PRECISIONS,
        "mode": contract.MODES,
        "contents": contract.CONTENTS,
        "layout": contract.LAYOUTS,
    }
    defaults = {field.name: field.default for field in fields(Case)}
    for name, allowed in choices.items():
        assert {case.get(name, defaults[name]) for case in cases} == set(allowed), f"{name}: tests/frozen/cases.json has others"
    assert {name for case in cases for name in case} == set(defaults), "tests/frozen/cases.json has other fields"


# Public names.


def signature(function: Callable[..., Any]) -> str:
    """With annotations as they are written."""
    return re.sub(r"ForwardRef\((\w+)[^)]*\)", r"\1", str(inspect.signature(function)).replace("'", ""))


def members(kind: type, name: str) -> Iterator[str]:
    """A class's bases, constructor, own attributes and methods. The arguments of torch's modules are torch's."""
    bases = [base for base in kind.__bases__ if base is not object and not base.__name__.startswith("_")]
    yield from (f"{name} is a {base.__module__}.{base.__name__}" for base in bases)
    if not kind.__module__.startswith(nn.__name__) and not issubclass(kind, Exception):
        yield f"{name}{signature(kind)}"
    own = vars(kind)
    for attribute, annotation in own.get("__annotations__", {}).items():
        default = f" = {own[attribute]!r}" if attribute in own and kind is not Declared else ""
        yield f"{name}.{attribute}: {getattr(annotation, '__forward_arg__', annotation)}{default}"
    for attribute, value in own.items():
        if attribute.startswith("_") or attribute in own.get("__annotations__", {}):
            continue
        if isinstance(value, property):
            yield f"{name}.{attribute}, a property"
        elif callable(method := getattr(kind, attribute)):
            abstract = ", abstract" if getattr(method, "__isabstractmethod__", False) else ""
            yield f"{name}.{attribute}{signature(method)}{abstract}"


def public() -> Iterator[str]:
    for name in (*pytest_ecornn.__all__, "contract.Declared"):
        value = Declared if name == "contract.Declared" else getattr(pytest_ecornn, name)
        yield from members(value, f"pytest_ecornn.{name}") if isinstance(value, type) else [f"pytest_ecornn.{name}"]
    for name in nn.functional.__all__:
        yield f"pytest_ecornn.nn.functional.{name}{signature(getattr(nn.functional, name))}"
    for name in nn.__all__:
        kind = getattr(nn, name)
        if not isinstance(kind, type):
            yield f"pytest_ecornn.nn.{name}{signature(kind)}"
            continue
        base = torch.nn.Module if name.startswith("Min") else torch.nn.RNNBase
        assert issubclass(kind, base), f"pytest_ecornn.nn.{name} is no {base}"
        yield from members(kind, f"pytest_ecornn.nn.{name}")
        yield f"pytest_ecornn.nn.{name}.forward{signature(kind.forward)}"


class Recorder:
    """Stands in for pytest's parser: a line for each option and ini value."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def getgroup(self, *names: str) -> Recorder:
        return self

    def addoption(self, name: str, **settings: Any) -> None:
        self._add(name, settings)

    def addini(self, name: str, help: str, **settings: Any) -> None:
        self._add(f"ini {name}", settings)

    def _add(self, name: str, settings: dict[str, Any]) -> None:
        words = {key: getattr(value, "__name__", value) for key, value in settings.items() if key != "help"}
        self.lines.append(" ".join([name, *(f"{key}={value}" for key, value in sorted(words.items()))]))


def options() -> list[str]:
    recorder = Recorder()
    plugin.pytest_addoption(recorder)  # type: ignore[arg-type]
    return recorder.lines


def hooks() -> Iterator[str]:
    for name, function in inspect.getmembers(hookspecs, inspect.isfunction):
        if name.startswith("pytest_"):
            yield f"hook {name}{signature(function)}"


def entry_points() -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield f"distribution {project['name']}"
    yield from (f"extra {name}" for name in project["optional-dependencies"])
    yield f"entry-point group {ENTRY_POINT_GROUP}"
    for group, found in project["entry-points"].items():
        yield from (f"entry point {group}: {name} = {target}" for name, target in found.items())


def words() -> Iterator[str]:
    """Names that stored rows and command lines hold."""
    for cell in cells.BUILT_IN:
        yield f"cell {cell.name}: gates {', '.join(cell.gates)}; states {', '.join(cell.states)}"
    yield from (f"property {one.name}" for one in properties.PROPERTIES)
    yield from (f"{kind}.{name} {word}" for (kind, name), found in WORDS.items() for word in found)
    with pytest.raises(ValueError, match="unknown case set") as error:
        case_set("none")
    yield from (f"case set {name}" for name in str(error.value).partition("expected one of ")[2].split(", "))
    for folder in REPORTS:
        yield from (f"junit {name}" for row in stored_report(folder)[1] for name, _ in junit.properties(row))


def modules(*folders: Path) -> Iterator[tuple[str, str]]:
    """Names and texts of the modules in folders of the package."""
    for folder in folders:
        for path in folder.rglob("*.py"):
            yield ".".join(["pytest_ecornn", *path.relative_to(folder.parent).with_suffix("").parts]), path.read_text()


def programs() -> Iterator[str]:
    """What `python -m` runs. Private modules are run by other programs."""
    for name, text in modules(SUITES, PACKAGE / "reporting", PACKAGE / "nn"):
        if "._" not in name.removesuffix(".__main__") and re.search(r"^if __name__ == .__main__.:$", text, re.M):
            yield f"python -m {name.removesuffix('.__main__')}"


def shipped_tests() -> Iterator[str]:
    """Those of the shipped suites, which -k and JUnit XML name."""
    for name, text in modules(SUITES):
        yield from (f"{name}::{test}" for test in re.findall(r"^def (test_\w+)", text, re.M))


def ops() -> Iterator[str]:
    """torch's ops of this package, with what they take."""
    for name, text in modules(IMPLEMENTATIONS):
        if "torch.library.Library(" in text:
            import_module(name)
    schemas = torch._C._jit_get_all_schemas()
    yield from (str(one) for one in schemas if one.name.startswith("pytest_ecornn::"))


LISTS: dict[str, Callable[[], Iterable[str]]] = {
    "public.txt": public,
    "options.txt": options,
    "hooks.txt": hooks,
    "entry_points.txt": entry_points,
    "words.txt": words,
    "programs.txt": programs,
    "tests.txt": shipped_tests,
    "ops.txt": ops,
}


@pytest.mark.parametrize("name", LISTS)
def test_public_names_are_what_they_were(name: str) -> None:
    check(name, sorted(set(LISTS[name]())))


def test_implementations_are_found_by_their_names_and_imported_by_their_classes() -> None:
    found = discover([])
    stored = dict(line.split() for line in (FROZEN / "implementations.txt").read_text().splitlines())
    assert sorted(stored.keys() - found) == [], "these are gone"
    for name, place in stored.items():
        module, _, kind = place.rpartition(".")
        assert getattr(import_module(module), kind, None) is found[name].cls, f"{name}: expected {place}"


def test_programs_that_the_documents_name_are_frozen() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    named = {found for page in pages for found in re.findall(r"python -m pytest_ecornn[\w.]*\w", page.read_text())}
    assert named - {"python -m pytest_ecornn.suites.published.NAME"} <= set((FROZEN / "programs.txt").read_text().splitlines())
