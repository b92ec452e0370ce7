"""One GET after the other, each on a connection of its own, bounded in bytes and time; an answer leads nowhere else.

A socket's timeout is for one read alone: who sends a byte now and then is cut off by a timer.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import SplitResult

ANSWER_S = 5.0
"""For a connection, and between parts of an answer."""
WHOLE_S = 20.0
"""For an answer."""
_MOST_ADDRESSES = 4
"""Of a host: those that are tried."""


class Answer(NamedTuple):
    """`content` is cut off a byte behind the most that was asked for."""

    status: int
    content: bytes


def get(place: SplitResult, headers: dict[str, str], tls: ssl.SSLContext | None, most: int) -> Answer:
    """What is at a URL, at most so many bytes. Raises OSError, TimeoutError where it takes too long."""
    target = place.path + (f"?{place.query}" if place.query else "")
    host, port = place.hostname or "", place.port or (443 if tls is not None else 80)
    connection = http.client.HTTPConnection(host, port)
    cut = threading.Event()
    try:
        plain = _connected(host, port)
        with plain, _cut_off(plain, cut):
            connection.sock = tls.wrap_socket(plain, server_hostname=host) if tls is not None else plain
            connection.request("GET", target, headers={**headers, "Connection": "close"})
            with connection.getresponse() as response:
                answer = Answer(response.status, response.read(most + 1))
            if cut.is_set():
                raise TimeoutError("it was cut off")
            return answer
    except (OSError, http.client.HTTPException) as error:
        if cut.is_set():
            raise TimeoutError(f"it takes more than {WHOLE_S:g} s") from error
        if isinstance(error, http.client.HTTPException):
            raise OSError(f"its answer is no HTTP ({type(error).__name__})") from error
        raise
    finally:
        connection.close()


def _connected(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    problem: OSError | None = None
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, address in found[:_MOST_ADDRESSES]:
        try:
            return socket.create_connection((str(address[0]), port), ANSWER_S)
        except OSError as error:
            problem = error
    raise problem or OSError(f"host {host} has no address")


@contextlib.contextmanager
def _cut_off(plain: socket.socket, cut: threading.Event) -> Iterator[None]:
    """Ends a connection when its time is over, also below TLS, which takes a socket's place."""
    own = plain.dup()

    def end() -> None:
        cut.set()
        with contextlib.suppress(OSError):  # it has ended
            own.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(WHOLE_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        own.close()
