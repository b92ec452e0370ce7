"""What systemd is told of a broker: that it serves, that it stops, that it is alive (sd_notify(3)).

A service manager names a socket in NOTIFY_SOCKET, and in WATCHDOG_USEC how long the broker may be silent. Without them
nothing is sent. What cannot be sent is lost: systemd then acts as if the broker were silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping

_EXTENDED_S = 60
"""What a start may take from each word of its progress on."""


def tell(**fields: object) -> None:
    """Sends `FIELD=value` lines, such as READY=1; nothing without a service manager."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    text = "\n".join(f"{name}={value}" for name, value in fields.items())
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(text.encode(), address.replace("@", "\0", 1))


def tell_starting(status: str) -> None:
    """That the start goes on, and may take longer than TimeoutStartSec."""
    tell(STATUS=status, EXTEND_TIMEOUT_USEC=_EXTENDED_S * 1_000_000)


def watchdog_s(environment: Mapping[str, str] = os.environ) -> float | None:
    """How often to be heard, s: half of what the service manager allows this process; None where it does not listen."""
    given, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID")
    if not given.isdecimal() or not int(given) or process not in (None, str(os.getpid())):
        return None
    return int(given) / 2_000_000


async def beat() -> None:
    """Says that the event loop moves, until it is cancelled; ends at once where nobody listens."""
    period_s = watchdog_s()
    while period_s is not None:
        tell(WATCHDOG=1)
        await asyncio.sleep(period_s)
