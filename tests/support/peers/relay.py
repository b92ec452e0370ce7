"""A way to a server that is slow, or can fall silent, as a cut line or a stopped host does: nothing arrives and nothing is said."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque


class Relay:
    """Forwards connections to `host:port`, every byte `slow_s` later; while silent it takes new ones and moves no byte."""

    def __init__(self, address: str, silent: bool = False, slow_s: float = 0.0) -> None:
        host, _, port = address.rpartition(":")
        self._server = (host, int(port)) if address else None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._silent = silent
        self._slow_s = slow_s
        self._held: deque[tuple[float, socket.socket, bytes]] = deque()
        self._ended = False
        self.seen = bytearray()
        """All bytes that came, of both directions."""
        self._peers: dict[socket.socket, socket.socket | None] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join()
        for each in (self._listener, *self._peers):
            each.close()

    def silence(self) -> None:
        """From now on nothing arrives, in both directions."""
        self._silent = True

    def speak(self) -> None:
        """What was held back arrives, and all that follows."""
        self._silent = False

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            while not self._ended:
                with contextlib.suppress(BlockingIOError):
                    self._accept()
                ready = [] if self._silent else [each for each in self._peers if each.fileno() >= 0]
                for each in ready:
                    selector.register(each, selectors.EVENT_READ)
                for key, _ in selector.select(0.005):
                    source = key.fileobj
                    if (
                        isinstance(source, socket.socket) and source in self._peers
                    ):  # else its other side ended it
                        self._forward(source)
                for each in ready:
                    selector.unregister(each)
                self._deliver()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setblocking(True)
        server = socket.create_connection(self._server) if self._server is not None else None
        self._peers[client] = server
        if server is not None:
            self._peers[server] = client

    def _forward(self, source: socket.socket) -> None:
        target = self._peers[source]
        try:
            data = source.recv(1 << 16)
            self.seen += data
            if target is not None and data:
                self._held.append((time.monotonic() + self._slow_s, target, data))
                return
        except OSError:
            pass
        self._end(source)

    def _deliver(self) -> None:
        while self._held and self._held[0][0] <= time.monotonic():
            _, target, data = self._held.popleft()
            try:
                target.sendall(data)
            except OSError:  # closed
                self._end(target)

    def _end(self, source: socket.socket) -> None:
        target = self._peers.get(source)
        for each in (source, target):
            if each is not None:
                each.close()
                self._peers.pop(each, None)
