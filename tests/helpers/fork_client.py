"""Stands in for `python`: has a fork server run its arguments, with its own streams, directory and environment.

A signal to this process reaches the forked one, and it ends as the forked one ended. Imports nothing slow: it starts in 10 ms.
"""

import marshal
import os
import signal
import socket
import sys

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def main(address: str, arguments: list[str]) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    request = marshal.dumps((arguments, os.getcwd(), dict(os.environ)))
    socket.send_fds(connection, [len(request).to_bytes(4, "little")], [0, 1, 2])
    connection.sendall(request)
    pid = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "little")
    if pid == 0:  # the server refuses: the environment differs in what libraries read while they are imported
        os.execv(sys.executable, [sys.executable, *arguments])
    for stream in (0, 1, 2):
        os.close(stream)  # or readers would see the end of the forked one's output only when this process ends too
    for number in _FORWARDED:
        signal.signal(number, lambda received, _: os.kill(pid, received))
    status = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "little", signed=True)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
