"""`python -m pytest_ecornn publish`: the site of stored reports of several machines and commits."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

import pytest_ecornn
from pytest_ecornn.publishing import publish, stored_runs
from pytest_ecornn.reporting import RunInfo, files, write_reports
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.suites.published.staleness import Staleness
from pytest_ecornn.system.folder_lock import FolderLock
from tests.helpers.reporting.outputs import Page, Said
from tests.helpers.reporting_samples import CASES, HOSTILE, row, sample_rows, sample_run, timing
from tests.helpers.stored_histories import RUNS, write_history

ROOT = Path(__file__).parents[2]


def broken(site: Path) -> Iterator[str]:
    """Yields links within the site that lead nowhere."""
    pages = {path: [one for _, one in Page(path.read_text()).elements] for path in site.rglob("*.html")}
    names = {path: {one.get("id") for one in elements} for path, elements in pages.items()}
    for path, elements in pages.items():
        for link in filter(None, (one.get(name) for one in elements for name in ("href", "src"))):
            parts = urlsplit(link)
            if parts.scheme:  # of another site, or the data themselves
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            name = parts.fragment
            if not to.is_file() or (name and "=" not in name and to in pages and unquote(name) not in names[to]):
                yield f"{path.relative_to(site)}: {link}"


def text_of(site: Path, page: str) -> str:
    return html.unescape(re.sub("<[^>]+>", " ", (site / page).read_text()))


def test_the_committed_reports_are_published(tmp_path: Path, said: Said) -> None:
    (tmp_path / "results").mkdir()
    for path in (ROOT / "reports").iterdir():
        if path.name != "local":
            (tmp_path / "results" / path.name).symlink_to(path)
    site = tmp_path / "site"
    assert f"{site}/index.html" in said("publish", tmp_path / "results", "--output", site)
    assert list(broken(site)) == []
    index = text_of(site, "index.html")
    for name in ("NVIDIA H200", "lstm-T35-B32-H650-L2-float32-cuda-training", "deepbench", "language_model", "selection"):
        assert name in index
    assert "<table>" in (site / "h100/deepbench/deepbench.html").read_text()
    assert "data:image/svg+xml;base64," in (site / "h100/deepbench/deepbench.html").read_text()
    loaded = pytest_ecornn.load_report(site / "h200")
    assert loaded.rows == pytest_ecornn.load_report(ROOT / "reports/h200").rows


def test_a_suite_without_markdown_is_rendered(tmp_path: Path) -> None:
    (tmp_path / "results/h200").mkdir(parents=True)
    (tmp_path / "results/h200/sparse_kernel.json").write_bytes((ROOT / "reports/h200/sparse_kernel.json").read_bytes())
    assert publish.publish(tmp_path / "results", tmp_path / "site")[1] == []
    assert "sparse_persistent_gpu's kernel on h200" in text_of(tmp_path / "site", "h200/sparse_kernel.html")


def noisy(levels: list[float], noise: float, seed: int) -> list[float]:
    return list(np.asarray(levels) * np.exp(np.random.default_rng(seed).normal(0, noise, len(levels))))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Where the site of a machine with one run will be."""
    write_history(tmp_path / "results/one", {"scan_cpu": [3_000.0]})
    return tmp_path / "site"


HISTORIES = {
    "flat": noisy([3_000.0] * RUNS, 0.006, 1),
    "step": noisy([3_000.0] * 12 + [3_150.0] * 8, 0.006, 2),
    "drift": noisy([3_000.0 * 1.004**run for run in range(RUNS)], 0.006, 3),
    "noisy": noisy([3_000.0] * RUNS, 0.08, 4),
    "exchanged": noisy([3_000.0] * 9 + [2_000.0] * 11, 0.006, 5),
}


def test_of_five_histories_only_the_step_is_marked(tmp_path: Path) -> None:
    def exchange(number: int, run: RunInfo) -> None:
        run.machine["cpu"] = "New" if number >= 9 else "Old"

    steady = {name: times for name, times in HISTORIES.items() if name != "exchanged"}
    write_history(tmp_path / "results/steady", steady)
    write_history(tmp_path / "results/moved", {"exchanged": HISTORIES["exchanged"]}, exchange)
    publish.publish(tmp_path / "results", tmp_path / "site")
    index = (tmp_path / "site/index.html").read_text()
    (changes,) = re.findall(r"<ul>(.*?)</ul>", index, re.DOTALL)
    (change,) = re.findall(r"<li>(.*?)</li>", changes, re.DOTALL)
    assert re.search(r"[45]\.\d+ % slower, 1\.0[456]\d \[1\.0\d\d, 1\.0\d\d\]", change)
    assert f">step on {CASES[0]}</a> on steady, since 2026-01-13 0000000" in change
    assert list(broken(tmp_path / "site")) == []
    assert "another machine than before: cpu: Old and New" in text_of(tmp_path / "site", "moved/index.html")
    pictures = re.findall(r'class="step"|class="exchange"', (tmp_path / "site/moved/index.html").read_text())
    assert pictures == ['class="exchange"'] * 2  # of both rows


def test_machines_stand_side_by_side(tmp_path: Path) -> None:
    write_history(tmp_path / "results/one", {"scan_cpu": [3_000.0, 2_000.0]})
    write_history(tmp_path / "results/two", {"scan_cpu": [4_000.0]}, lambda number, run: run.machine.update(cpu="Other"))
    publish.publish(tmp_path / "results", tmp_path / "site")
    (line,) = re.findall(rf'<tr data-case="{CASES[0]}"[^>]*>(.*?)</tr>', (tmp_path / "site/index.html").read_text())
    fastest = [html.unescape(cell) for cell in re.findall(r"<strong>(.*?)</strong>", line)]
    assert fastest == ["scan_cpu 2.00 ms", "scan_cpu 4.00 ms"]
    assert "one/2026-01-02-0000001/report.html#" in line  # the newest


def test_the_index_begins_with_the_newest_report_and_each_says_what_changed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(number: int, run: RunInfo) -> None:
        run.started, run.machine["commit"] = "2025-12-31T12:00:00+00:00", "0" * 40

    write_history(tmp_path / "results/a_first_name", {"scan_cpu": [3_000.0]}, older)
    write_history(tmp_path / "results/later", {"scan_cpu": [2_000.0]})
    ages = {"a_first_name": Staleness("0" * 40, ("a.cu", "b.cu")), "later": Staleness("1" * 40)}
    monkeypatch.setattr(stored_runs.staleness, "of_report", lambda path: ages[path.parents[1].name])
    publish.publish(tmp_path / "results", tmp_path / "site")
    index = " ".join(text_of(tmp_path / "site", "index.html").split())
    assert "The newest report: NVIDIA H200, report, 2026-01-01 0000000 . 1 of 2 reports are older than" in index
    machines = re.findall(r'<th scope="row"><a href="(\w+)/index.html">', (tmp_path / "site/index.html").read_text())
    assert machines == ["later", "a_first_name"]
    said = "measured at commit 0000000, 2 kernel files changed since"
    assert index.count(said) == 2  # where its figures are quoted, and among the machines
    assert f"Older than what it is about: {said}." in text_of(tmp_path / "site", "a_first_name/2025-12-31-0000000/report.html")
    assert "changed since" not in text_of(tmp_path / "site", "later/2026-01-01-0000000/report.html")


def test_what_is_hostile_is_escaped(tmp_path: Path) -> None:
    run = sample_run()
    run.machine["cpu"] = HOSTILE
    rows = [row("torch_cpu", CASES[0], timing=timing(7_000.0, {}))]
    rows += [row(HOSTILE, CASES[0], timing=timing(9.0, {"torch_cpu": 7_000.0}))]
    folder = tmp_path / "results" / "a<script>'&\"?#%b"
    write_reports(folder / "r<u>n", run, rows)
    (folder / "r<u>n/oth<er.json").write_text("{}")
    (folder / "r<u>n/oth<er.md").write_text("<script>alert(1)</script>\n\n[x](javascript:alert(1)) ![y](../../secret.svg)\n")
    publish.publish(tmp_path / "results", tmp_path / "site")
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text()
        assert "<script>alert" not in text
        assert 'href="javascript' not in text
        assert "\x1b" not in text or page.name == "report.html"
    assert list(broken(tmp_path / "site")) == []


@pytest.mark.parametrize("text", ["", "{}", '{"schema_version": 1, "run": 3, "rows": []}', "[" * 100_000])
def test_a_report_that_cannot_be_read_is_left_out_with_a_line(text: str, site: Path, tmp_path: Path, said: Said) -> None:
    (tmp_path / "results/one/bad").mkdir()
    (tmp_path / "results/one/bad/report.json").write_text(text)
    (line,) = said("publish", tmp_path / "results", "--output", site, status=1).splitlines()
    assert line.startswith(f"left out: {tmp_path}/results/one/bad/report.json")
    assert (site / "one/2026-01-01-0000000/report.html").is_file()


@pytest.mark.parametrize(
    ("made", "message"), [(".", "expected a folder"), ("results/one", "holds no report; expected RESULTS/MACHINE")]
)
def test_nothing_to_publish_is_said_in_one_line(made: str, message: str, tmp_path: Path, said: Said) -> None:
    (tmp_path / made).mkdir(parents=True, exist_ok=True)
    (line,) = said("publish", tmp_path / "results", "--output", tmp_path / "site", status=1).splitlines()
    assert message in line
    assert not (tmp_path / "site").exists()


def test_what_is_published_no_more_is_removed_and_what_is_another_s_stays(site: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    write_history(results / "two", {"scan_cpu": [3_000.0]})
    publish.publish(results, site)
    (site / "CNAME").write_text("example.org")
    (results / "two").rename(tmp_path / "two")
    publish.publish(results, site)
    assert (site / "CNAME").read_text() == "example.org"
    assert not list((site / "two").rglob("*.html"))
    assert (site / "one/index.html").is_file()


def test_another_program_s_index_is_not_overwritten(site: Path, tmp_path: Path) -> None:
    site.mkdir()
    (site / "index.html").write_text("mine")
    with pytest.raises(ReportError, match=r"holds an index\.html of another program"):
        publish.publish(tmp_path / "results", site)
    assert (site / "index.html").read_text() == "mine"


def test_a_manifest_removes_nothing_outside_the_site(site: Path, tmp_path: Path) -> None:
    site.mkdir()
    (tmp_path / "secret").write_text("x")
    (site / ".ecornn-site.json").write_text(json.dumps(["../secret", str(tmp_path / "secret"), 3]))
    publish.publish(tmp_path / "results", site)
    assert (tmp_path / "secret").is_file()


@pytest.mark.parametrize("site", ["results", "results/site", "results/one/x", "."])
def test_a_site_among_the_reports_is_refused(site: str, tmp_path: Path, said: Said) -> None:
    write_history(tmp_path / "results/one", {"scan_cpu": [3_000.0]})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (line,) = said("publish", tmp_path / "results", "--output", tmp_path / site, status=1).splitlines()
    assert "expected a folder apart from" in line
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_suite_that_cannot_be_shown_is_left_out_everywhere(site: Path, tmp_path: Path, said: Said) -> None:
    (run,) = (tmp_path / "results/one").iterdir()
    stored = json.loads((ROOT / "reports/h200/sparse_kernel.json").read_text())
    for name, changed in (("sparse_kernel", {"machine": {}}), ("persistent_kernel", {"schema_version": 99})):
        (run / f"{name}.json").write_text(json.dumps({**stored, **changed}))
    (run / "scan_kernel.json").write_text("{}")
    (run / "scan_kernel.md").write_bytes(b"\xff")
    (run / "other.json").write_text("{}")
    (run / "other.md").write_text(f"![x]({'a' * 300}.svg) [y](../../README.md) [z](https://example.org)")
    lines = said("publish", tmp_path / "results", "--output", site, status=1).splitlines()
    assert [Path(line.split(": ")[1]).stem for line in lines] == ["persistent_kernel", "scan_kernel", "sparse_kernel"]
    assert "expected schema_version 1, got 99" in lines[0]
    assert list(broken(site)) == []
    assert (site / "one" / run.name / "other.html").is_file()
    assert not (site / "one" / run.name / "sparse_kernel.html").exists()


def test_what_a_suite_has_not_verified_is_said(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results/h100").symlink_to(ROOT / "reports/h100")
    publish.publish(tmp_path / "results", tmp_path / "site")
    index = (tmp_path / "site/index.html").read_text()
    assert "selection: not verified" in index
    assert "deepbench: each ratio alone" in index
    assert "<strong>" not in index


def test_a_run_of_an_unknown_machine_is_no_exchange(tmp_path: Path) -> None:
    def unknown(number: int, run: RunInfo) -> None:
        if number % 3 == 1:
            run.machine.clear()

    write_history(tmp_path / "results/one", {"step": HISTORIES["step"]}, unknown)
    publish.publish(tmp_path / "results", tmp_path / "site")
    assert "another machine than before" not in text_of(tmp_path / "site", "one/index.html")
    assert ">step on" in (tmp_path / "site/index.html").read_text()


def test_a_second_publisher_is_refused_while_the_first_writes(site: Path, tmp_path: Path) -> None:
    lock = FolderLock(site)
    with pytest.raises(ReportError, match="site"):
        publish.publish(tmp_path / "results", site)
    lock.release()
    assert publish.publish(tmp_path / "results", site)[1] == []


def test_a_full_disk_leaves_the_site_as_it_was(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    publish.publish(results, site)
    before = (site / "index.html").read_text()
    write_history(results / "two", {"scan_cpu": [3_000.0]})
    write, count = files.write, [3]

    def failing(path: Path, text: str) -> None:
        count[0] -= 1
        if count[0] < 0:
            raise ReportError(f"{path}: cannot be written (No space left on device)")
        write(path, text)

    monkeypatch.setattr(files, "write", failing)
    with pytest.raises(ReportError, match="No space left"):
        publish.publish(results, site)
    monkeypatch.undo()
    assert (site / "index.html").read_text() == before
    publish.publish(results, site)
    assert list(broken(site)) == []


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_killed_publisher_leaves_whole_files(tmp_path: Path) -> None:
    results, site = tmp_path / "results", tmp_path / "site"
    for number in range(6):
        write_history(results / f"m{number}", {"scan_cpu": noisy([3_000.0] * 8, 0.01, number)})
    publish.publish(results, site)
    command = [sys.executable, "-m", "pytest_ecornn", "publish", str(results), "--output", str(site)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(3):
        (site / "index.html").touch()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        begun = time.time()
        while not any(path.stat().st_mtime > begun for path in site.rglob("*.html")) and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for page in site.rglob("*.html"):
            assert page.read_text().rstrip().endswith("</html>")
    publish.publish(results, site)
    assert list(broken(site)) == []
    assert not list(site.rglob("*.partial"))


def test_runs_are_in_the_order_in_which_they_were(tmp_path: Path) -> None:
    def backwards(number: int, run: RunInfo) -> None:
        run.started = f"2026-02-{20 - number:02}T12:00:00+00:00"

    write_history(tmp_path / "one", {"scan_cpu": [1.0, 2.0, 3.0]}, backwards)
    ((machine,), refused) = stored_runs.load(tmp_path)
    assert [run.started[:10] for run in machine.runs] == ["2026-02-18", "2026-02-19", "2026-02-20"]
    assert refused == []


def test_rows_without_a_proven_time_have_no_history(tmp_path: Path) -> None:
    write_reports(tmp_path / "results/one", sample_run(), sample_rows())
    publish.publish(tmp_path / "results", tmp_path / "site")
    assert "scan_wrong" not in text_of(tmp_path / "site", "index.html")
