"""A server of the remoting protocol that answers as a test tells it to: soundly, with damage, or not at all."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def answering(*parts: bytes, answer: Callable[[], bytes] | None = None) -> Iterator[str]:
    """The address of a server that takes a request, sends that, and closes; without parts it keeps silent.

    With `answer` each request gets what it says then.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(1 << 16)
                        for part in parts if answer is None else [answer()]:
                            connection.sendall(part)
                        if not parts and answer is None:
                            ended.wait()
                        connection.shutdown(socket.SHUT_WR)
                        connection.recv(1 << 16)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def frame(header: object, body: bytes = b"") -> bytes:
    """A frame of the remoting protocol with a header in JSON."""
    text = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body
