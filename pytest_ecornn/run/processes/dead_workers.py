"""Commands of pytest-xdist to workers that have died."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def ignore_closed_channel(node: Any) -> None:
    """Drops what is sent to `node` once its channel is closed, whichever scheduler sends it.

    pytest-xdist raises OSError there, an internal error that ends the run, where a worker dies before its death is handled.
    Dropped rows stay in the node's queue. The scheduler hands them on when it removes the node.
    """
    send = node.sendcommand

    def sendcommand(name: str, **arguments: object) -> None:
        with suppress(OSError):
            send(name, **arguments)

    node.sendcommand = sendcommand
