"""The HTTP port of the metrics: few connections at a time, none for long."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import WSGIApplication

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

log = structlog.get_logger(__name__)

MOST_CONNECTIONS = 16
"""Beyond that a connection is closed as it comes."""
_REQUEST_S = 10
"""For a request to come and its answer to be taken."""


class _Server(ThreadingWSGIServer):
    """Each connection has a thread."""

    def __init__(self, *arguments: Any) -> None:
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(*arguments)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request for metrics failed", peer=client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def serve_registry(
    registry: CollectorRegistry, host: str, port: int, around: Callable[[WSGIApplication], WSGIApplication]
) -> tuple[WSGIServer, threading.Thread]:
    """Serves in a thread, with `around` it what asks who may; port 0 takes a free one. Raises OSError."""
    kind = _Server6 if ":" in host else _Server
    server = make_server(host, port, around(make_wsgi_app(registry)), kind, handler_class=_Handler)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    return server, thread
