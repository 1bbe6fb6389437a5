"""Plants faults at random into kernels and host code, and says which of them the tests see.

`python -m tests.tools.random_faults --seed 1 --count 40 --output FILE [--clone FOLDER]`. A fault is a constant off by one, a
turned comparison or a dropped `+ term`, half of them in kernels. For each the tests that `make quick` takes for its file run in
the clone, this one unless given. In an older clone a fault is planted where the same line stands.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.tools import quick

SECONDS = 1200  # of the tests of one fault
_SUFFIXES = ((".cu", ".cuh"), (".py",))
_LEFT_OUT = ("pytest_ecornn/selfcheck/", "suites/", "pytest_ecornn/publishing/")  # of no layer's way from a call to a verdict
_TURNED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_CONSTANT = re.compile(r"(?<![\w.\"'])(\d{1,4})(?![\w.\"'])")
_COMPARISON = re.compile(r"(?<= )(<=|>=|==|!=|<|>)(?= [\w(])")
_TERM = re.compile(r"(?<=[\w)\]]) \+ \w+(?=[);,\]\n])")
_PROSE = re.compile(r'^\s*(#(?!if)|//|\*|"""|import|from|template|static_assert)|"""|#include|\bassert\b|raise ')


@dataclass(frozen=True)
class Fault:
    """A line of a file and what takes its place."""

    path: str
    right: str
    wrong: str


def faults(line: str) -> Iterator[str]:
    """What a line can become."""
    code = line.partition("//")[0]
    if _PROSE.search(line) or '"' in code:
        return
    for match in _CONSTANT.finditer(code):
        yield f"{line[: match.start()]}{int(match[1]) + 1}{line[match.end() :]}"
    for match in _COMPARISON.finditer(code):
        yield f"{line[: match.start()]}{_TURNED[match[1]]}{line[match.end() :]}"
    for match in _TERM.finditer(code):
        yield f"{line[: match.start()]}{line[match.end() :]}"


def _lines_of_strings(text: str) -> set[int]:
    """Lines of Python, counted from 0, that a string of several covers."""
    strings = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {line for node in strings if node.end_lineno != node.lineno for line in range(node.lineno - 1, node.end_lineno or 0)}


def draw(root: Path, seed: int, count: int) -> list[Fault]:
    """So many faults, by turns in kernels and in host code, each in a line that stands once in its file."""
    drawn, generator = list[Fault](), random.Random(seed)
    files = [
        sorted(
            path for path in quick.git("ls-files", *quick.PRODUCT) if path.endswith(suffixes) and not path.startswith(_LEFT_OUT)
        )
        for suffixes in _SUFFIXES
    ]
    while len(drawn) < count:
        path = generator.choice(files[len(drawn) % 2])
        text = (root / path).read_text()
        lines, strings = text.splitlines(keepends=True), _lines_of_strings(text) if path.endswith(".py") else set[int]()
        code = [line for number, line in enumerate(lines) if number not in strings and lines.count(line) == 1]
        possible = [fault for line in code for wrong in faults(line) if (fault := Fault(path, line, wrong)) not in drawn]
        if possible:
            drawn.append(generator.choice(possible))
    return drawn


def place(clone: Path, fault: Fault) -> Path | None:
    """The file of a clone in which the fault's line stands once: of the same name if there is one. None where there is none."""
    tracked = quick.git("ls-files", *quick.PRODUCT, folder=clone)
    paths = [path for path in tracked if path.endswith(Path(fault.path).suffix)]
    paths.sort(key=lambda path: (path != fault.path, Path(path).name != Path(fault.path).name, path))
    files = (clone / path for path in paths if (clone / path).is_file())
    return next((file for file in files if file.read_text().splitlines(keepends=True).count(fault.right) == 1), None)


def failing_tests(clone: Path, fault: Fault, tests: Sequence[str]) -> dict[str, object]:
    """What the tests say while the fault is planted: how they ended, the seconds that took, and the tests that failed."""
    file = place(clone, fault)
    if file is None:
        return {"outcome": "no such line"}
    text, start = file.read_text(), time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--numprocesses", "2", "--dist", "worksteal", *tests]
    try:
        file.write_text(text.replace(fault.right, fault.wrong, 1))
        done = subprocess.run(
            command, cwd=clone, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, "PYTHONPATH": str(clone)}
        )
        outcome, output = {0: "not seen", 5: "no tests"}.get(done.returncode, "seen"), done.stdout
    except subprocess.TimeoutExpired:
        outcome, output = "seen: no end", ""
    finally:
        file.write_text(text)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.M)
    return {
        "outcome": outcome,
        "seconds": round(time.monotonic() - start),
        "failed": failed,
        "file": str(file.relative_to(clone)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plants faults at random and says which of them the tests see.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--clone", type=Path, default=quick.ROOT, help="in which the tests run; faults are drawn here")
    parser.add_argument(
        "--output", type=Path, required=True, help="a JSON file, written after each fault; what it holds is kept"
    )
    options = parser.parse_args(arguments)
    rows = json.loads(options.output.read_text()) if options.output.exists() else []
    tree = quick.clone()
    for fault in draw(quick.ROOT, options.seed, options.count)[len(rows) :]:
        tests = [test for test in quick.select(tree, [fault.path]) if (options.clone / test).exists()]
        rows.append({**asdict(fault), **failing_tests(options.clone, fault, tests)})
        options.output.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"{rows[-1]['outcome']}: {fault.path}: {fault.wrong.strip()}", flush=True)
    print(f"{sum(row['outcome'].startswith('seen') for row in rows)} of {len(rows)} seen")
    return 0


if __name__ == "__main__":
    sys.exit(main())
