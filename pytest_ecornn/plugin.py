"""pytest's hooks before a run is known to be ours: options and extension points. Without a flag, nothing more is loaded."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ecornn import hookspecs
from pytest_ecornn.run.hooks.kernel_rows import KernelRows
from pytest_ecornn.run.options import Mode, add_options, check_is_run, is_active, is_alone
from pytest_ecornn.run.suites import make_folder, make_module

if TYPE_CHECKING:
    from pytest_ecornn.run.hooks.kernel_fixture import KernelFixture


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    if is_active(config):
        _configure_processes(config)
    try:
        return (yield)
    except pytest.UsageError as error:
        raise _printable(error) from error


def _configure_processes(config: pytest.Config) -> None:
    """Sets what rows in other processes need. pytest-xdist is yet to read its options."""
    from pytest_ecornn.run.processes import xdist_setup

    if config.getoption("--ecornn-ray") is not None:
        xdist_setup.configure_ray_run(config)
    elif config.getoption("--ecornn-isolate"):
        xdist_setup.configure_isolation(config)
    elif any(device.startswith("cuda") for device in config.getoption("--ecornn-device")):
        xdist_setup.configure_gpu_run(config)


def _printable(error: pytest.UsageError) -> pytest.UsageError:
    """The error, of whose file names and exceptions no terminal obeys anything."""
    from pytest_ecornn.results.formatting import printable

    return pytest.UsageError(*map(printable, error.args))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """-n auto: workers for all GPUs of the host, where every case is of a GPU."""
    if not is_active(config):
        return None
    from pytest_ecornn.run.processes.gpu_workers import auto_worker_count

    return auto_worker_count(config.getoption("--ecornn-device"))


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    return make_folder(path, parent)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return make_module(module_path, parent)


@pytest.fixture
def ecornn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KernelFixture:
    """Prove a function on tensors against a reference in float64, and time functions in alternating blocks.

    ecornn.check(softmax, reference, make_inputs) fails the test where softmax, or its gradient, is wrong.
    ecornn.compare({"mine": f, "theirs": g}, make_inputs).assert_not_slower("mine", than="theirs", by="5%") times both.
    """
    from pytest_ecornn.run.hooks.kernel_fixture import KernelFixture

    folder = tmp_path_factory.getbasetemp()
    return KernelFixture(request, folder.parent if hasattr(request.config, "workerinput") else folder)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "ecornn(budget=2.0, draws=16, ...): arguments of the fixture ecornn's check and compare."
    )
    config.pluginmanager.register(KernelRows(config), "ecornn-kernel-rows")
    if is_alone(config, Mode.SELFCHECK):
        from pytest_ecornn.selfcheck.plugin import SelfCheckPlugin

        config.pluginmanager.register(SelfCheckPlugin(config), "ecornn-selfcheck")
    elif is_alone(config, Mode.PROFILE_CALL):
        from pytest_ecornn.run.profile_call import ProfileCallPlugin

        config.pluginmanager.register(ProfileCallPlugin(config), "ecornn-profile-call")
    elif not is_active(config):
        check_is_run(config)
    else:
        from pytest_ecornn.run.hooks.running import register_run

        register_run(config)
