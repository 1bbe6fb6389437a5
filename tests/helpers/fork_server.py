"""A process that has imported what costs seconds and has run nothing, and forks for each request of fork_client.py.

It has one thread: no pool of OpenMP's or torch's may exist before a fork. It ends when its standard input does.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

# Libraries read these while they are imported, or Python does: a request that differs in them needs a new process.
_READ_AT_IMPORT = (
    *("PYTHON", "LD_", "LC_", "LANG", "TZ", "CI", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMBA_", "TORCH", "PYTORCH"),
    *("CUDA_", "CUPY_", "TRITON_", "HYPOTHESIS_"),
)
_SLOW_IMPORTS = (
    *("torch", "numba", "llvmlite.binding", "hypothesis", "hypothesis.strategies", "numpy.random", "cpuinfo.cpuinfo"),
    *("rich.console", "rich.table", "rich.progress", "pytest_benchmark.plugin", "pytest_benchmark.session", "execnet"),
    "pytest_ecornn.run.hooks.running",
)


class _Imports:
    """Imports as a run of pytest does, with assertions rewritten, and then ends that run."""

    def pytest_cmdline_main(self) -> int:
        for name in _SLOW_IMPORTS:
            importlib.import_module(name)
        return 0


def serve(listener: socket.socket) -> tuple[list[str], str, dict[str, str]]:
    """Returns in forked processes alone: with arguments, directory and environment of a request."""
    own = dict(os.environ)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that watch over a request
    while True:
        ready, _, _ = select.select([0, listener], [], [])
        if 0 in ready:
            with contextlib.suppress(OSError):
                Path(listener.getsockname()).unlink()
                Path(listener.getsockname()).parent.rmdir()
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _answer(connection, own)
        connection.close()


def _answer(connection: socket.socket, own: dict[str, str]) -> tuple[list[str], str, dict[str, str]]:
    """Forks the process that was asked for and returns in it; this one watches over it, and ends."""
    header, streams, _, _ = socket.recv_fds(connection, 4, 3)
    request = marshal.loads(connection.recv(int.from_bytes(header, "little"), socket.MSG_WAITALL))
    if any(own.get(name) != request[2].get(name) for name in {*own, *request[2]} if name.startswith(_READ_AT_IMPORT)):
        connection.sendall(bytes(4))
        os._exit(0)
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, _: None)
    signal.set_wakeup_fd(writing.fileno())
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        _watch(connection, pid, reading)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in (*streams, connection.detach(), reading.detach(), writing.detach()):
        os.close(stream)
    return request


def _watch(connection: socket.socket, pid: int, ended: socket.socket) -> None:
    """Sends the process's id and, when it ends, its status. Where the client dies first, kills the process and its group."""
    connection.sendall(pid.to_bytes(4, "little"))
    ready, _, _ = select.select([connection, ended], [], [])
    if connection in ready:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
    os._exit(0)


def become(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Sets what a new Python would have: directory, environment, streams, and what was derived from them at import."""
    import hypothesis.configuration

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv = [sys.executable, *arguments]
    sys.path[0] = os.getcwd() if "-m" in arguments[:1] else ""
    sys.stdin = sys.__stdin__ = open(0)  # noqa: SIM115  # the server's has seen its end
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None
    vars(hypothesis.configuration)["__hypothesis_home_directory_default"] = Path.cwd() / ".hypothesis"
    sys.modules["numpy"].random.seed()


def start_workers_by_fork(address: str) -> None:
    """Has pytest-xdist's workers forked as well."""
    import execnet.gateway_io as gateway_io
    import xdist.workermanage

    xdist.workermanage._sys_path = list(sys.path)  # which it has copied when it was imported, for its workers

    client = [sys.executable, "-IS", str(Path(__file__).with_name("fork_client.py")), address]
    original = gateway_io.popen_args
    gateway_io.popen_args = lambda spec: [*client, *original(spec)[1:]]


def run(arguments: list[str]) -> int:
    """The exit status of `-m MODULE ...` or `-u -c CODE ...`."""
    try:
        _execute(arguments)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(status: int) -> NoReturn:
    """Ends the process as Python does, but for taking torch's modules apart, which takes 0.3 s."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _execute(arguments: list[str]) -> None:
    arguments = [argument for argument in arguments[:1] if argument != "-u"] + arguments[1:]
    kind, what, *rest = arguments
    sys.argv = [kind, *rest]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        main: dict[str, Any] = vars(sys.modules.setdefault("__main__", ModuleType("__main__")))
        exec(compile(what, "<string>", "exec"), main)


if __name__ == "__main__":
    import pytest

    pytest.main(["-s", "-p", "no:cacheprovider", "-p", "no:terminal"], plugins=[_Imports()])
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[1])
    listening.listen(64)
    os.write(1, b"ready\n")
    gc.collect()
    gc.freeze()
    received = serve(listening)
    become(*received)
    start_workers_by_fork(sys.argv[1])
    end(run(received[0]))
