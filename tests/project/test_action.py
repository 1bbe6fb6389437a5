"""action.yml does what it says: its steps run as a runner runs them, in a foreign project."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import samples
from tests.helpers.foreign import QUIET, Foreign, environment

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "action.yml").read_text()
RUN = f"--ecornn-implementations 'mine to try.py' --ecornn-only 'mine to try' --ecornn-case {samples.CASE} --ecornn-budget 0.1"
ECHO = 'printf "%s\\n" "$@" > said\nexit "${STATUS:-0}"\n'  # in Python's place


@pytest.fixture(scope="module")
def action() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with mkdocs, by the extra [docs]")
    data: dict[str, Any] = yaml.safe_load(TEXT)
    return data


class Runner:
    """Runs the steps of an action that are commands, with `python` as the program of this text."""

    def __init__(self, folder: Path, action: dict[str, Any], python: str):
        self.folder, self._action = folder, action
        self._bin = folder / "bin"
        self._bin.mkdir(exist_ok=True)
        (self._bin / "python").write_text(f"#!/bin/bash\n{python}")
        (self._bin / "python").chmod(0o755)

    def step(self, name: str, inputs: dict[str, str], **variables: str) -> tuple[int, dict[str, str]]:
        """The exit code and the outputs of a step."""
        (step,) = (step for step in self._action["runs"]["steps"] if step.get("name") == name)
        values = {name: declared["default"] for name, declared in self._action["inputs"].items()} | inputs
        given = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: values[match[1]], text)
            for name, text in step["env"].items()
        }
        script, outputs = self.folder / "step.sh", self.folder / "outputs"
        script.write_text(step["run"])
        outputs.write_text("")
        files = {"GITHUB_OUTPUT": str(outputs), "GITHUB_ACTION_PATH": str(ROOT), "PATH": f"{self._bin}:{os.environ['PATH']}"}
        command = [step["shell"], "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        done = subprocess.run(command, cwd=self.folder, env={**environment(), **files, **given, **variables}, timeout=240)
        return done.returncode, dict(line.split("=", 1) for line in outputs.read_text().splitlines())

    def said(self) -> list[str]:
        """The arguments that Python was given."""
        return (self.folder / "said").read_text().splitlines()


def test_every_input_that_is_used_is_declared_and_every_declared_one_is_used(action: dict[str, Any]) -> None:
    assert set(re.findall(r"\binputs\.([\w-]+)", TEXT)) == set(action["inputs"])
    assert all({"description", "default"} <= set(declared) for declared in action["inputs"].values())
    steps = action["runs"]["steps"]
    assert [step["shell"] for step in steps if "run" in step] == ["bash", "bash"]
    assert not any("${{" in step["run"] for step in steps if "run" in step)  # a text put into a script could run
    (run,) = (step["run"] for step in steps if step.get("id") == "pytest")
    written = {f"${{{{ steps.pytest.outputs.{name} }}}}" for name in re.findall(r'echo "([\w-]+)=', run)}
    assert {one["value"] for one in action["outputs"].values()} == written
    assert (steps[-1]["uses"], steps[-1]["if"]) == ("actions/upload-artifact@v4", "always()")


def test_the_guide_lists_the_inputs_and_uses_declared_ones(action: dict[str, Any]) -> None:
    section = (ROOT / "docs/gate.md").read_text().partition("## On GitHub")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", section, re.M) == list(action["inputs"])
    used = section.partition("uses: OWNER/pytest-ecornn@main\n")[2].partition("```")[0]
    assert set(re.findall(r"^ {10}([\w-]+):", used, re.M)) <= set(action["inputs"])
    assert set(re.findall(r"steps\.gate\.outputs\.([\w-]+)", section)) <= set(action["outputs"])


def test_a_run_without_and_with_a_stored_report(foreign: Foreign, action: dict[str, Any]) -> None:
    runner = Runner(foreign.path, action, f'exec {shlex.join(foreign.command()[:-4])} "$@"\n')
    foreign.write("conftest.py", QUIET)
    foreign.write("mine to try.py", samples.RIGHT)
    assert runner.step("Verify and time", {"arguments": RUN, "report": "the stored"}) == (0, {"exit-code": "0"})
    foreign.write("mine to try.py", samples.WRONG)
    inputs = {"arguments": RUN, "compare": "the stored/report.json", "report": "out"}
    assert runner.step("Verify and time", inputs) == (1, {"exit-code": "1", "comment": "out/comment.md"})
    assert (foreign.path / "out/comment.md").read_text().startswith("## Recurrent layers: 1 passed then and not now")


def test_a_comment_of_an_earlier_run_is_none_of_this(tmp_path: Path, action: dict[str, Any]) -> None:
    (tmp_path / "reports/local").mkdir(parents=True)
    (tmp_path / "reports/local/comment.md").write_text("old")
    assert Runner(tmp_path, action, ECHO).step("Verify and time", {}, STATUS="5") == (5, {"exit-code": "5"})


def test_arguments_are_words_and_never_run(tmp_path: Path, action: dict[str, Any]) -> None:
    runner = Runner(tmp_path, action, ECHO)
    hostile = "-k 'a or b'\n--ecornn-case \"lstm-T{1,2}\" $(touch ran) ; touch ran `touch ran` *"
    assert runner.step("Verify and time", {"arguments": hostile})[0] == 0
    expected = ["-k", "a or b", "--ecornn-case", "lstm-T{1,2}", "$(touch", "ran)", ";", "touch", "ran", "`touch", "ran`", "*"]
    assert runner.said() == ["-m", "pytest", "--ecornn-bench", "--ecornn-report", "reports/local", *expected]
    assert not (tmp_path / "ran").exists()
    (tmp_path / "said").unlink()
    assert runner.step("Verify and time", {"arguments": "-k 'a or"})[0] != 0
    assert not (tmp_path / "said").exists()


@pytest.mark.parametrize(
    ("install", "expected"), [(".", ["."]), ("", []), ("-r 'my list.txt' torch", ["-r", "my list.txt", "torch"])]
)
def test_the_plugin_is_installed_from_the_action_itself(
    tmp_path: Path, action: dict[str, Any], install: str, expected: list[str]
) -> None:
    runner = Runner(tmp_path, action, ECHO)
    assert runner.step("Install", {"install": install}) == (0, {})
    assert runner.said() == ["-m", "pip", "install", str(ROOT), *expected]
    assert runner.step("Install", {}, STATUS="1") == (1, {})
