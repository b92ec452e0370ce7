"""The console's port, and the page's library on it."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass, field
from pathlib import Path

from broker_gateway.cli.console.asking import Places
from broker_gateway.cli.console.gate import Gate, Rules
from broker_gateway.cli.console.names import LOOPBACK, bracketed, hosts_of, is_every_address
from broker_gateway.cli.console.poll import Poll
from broker_gateway.cli.console.replays import Replays
from broker_gateway.cli.console.workers import Workers
from broker_gateway.cli.output import warn

_STOP_S = 3
_ABSENCE_S = 30.0
"""How long a tab may be without a connection until it starts anew, without what was typed and chosen: a laptop that changes its
network, a host that stands still."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where, and for whom. `certificate` and `key` are files, PEM, or None for plaintext; `names`: the certificate's."""

    port: socket.socket
    host: str
    token: str = field(repr=False)
    behind_proxy: bool
    certificate: Path | None = None
    key: Path | None = None
    names: frozenset[str] = frozenset()

    @property
    def url(self) -> str:
        """Of the first page; of all addresses, by a name of the certificate."""
        whole = sorted(
            (each for each in self.names if not each.startswith("*")),
            key=lambda each: (each in LOOPBACK, each),
        )
        named = whole[0] if whole and is_every_address(self.host) else bracketed(self.host)
        return f"{'https' if self.key else 'http'}://{named}:{self.port.getsockname()[1]}/"


@dataclass(frozen=True, slots=True)
class Console:
    """What pages use."""

    places: Places
    poll: Poll
    workers: Workers
    replays: Replays


def serve(console: Console, listening: Listening) -> None:
    """Until SIGINT or SIGTERM, which it passes on when it has stopped."""
    import uvicorn
    from fastapi import FastAPI
    from nicegui import app as pages
    from nicegui import core, ui

    from broker_gateway.cli.console.connections import MOST_HEAD_BYTES, Connection, PassedOn
    from broker_gateway.cli.console.log_limit import limit_logs
    from broker_gateway.cli.console.pages import refusal, register

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    register(console)
    ui.run_with(
        app,
        title="lakebroker console",
        dark=None,
        tailwind=False,
        reconnect_timeout=_ABSENCE_S,
        message_history_length=100,
        show_welcome_message=False,
        favicon="🪵",
    )
    pages.config.socket_io_js_transports = ["websocket"]
    core.sio.eio.transports = ["websocket"]  # sessions that poll by HTTP would be no tabs to the gate
    core.sio.on("log", lambda *_: None)  # what a tab says is not written among what the console says
    rules = Rules(
        hosts_of(listening.host, listening.port.getsockname()[1]),
        listening.token,
        listening.key is not None,
        listening.behind_proxy,
        listening.names,
    )
    config = uvicorn.Config(
        Gate(app, rules, refusal),
        http=PassedOn if listening.behind_proxy else Connection,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=listening.behind_proxy,
        timeout_graceful_shutdown=_STOP_S,
        ws_max_size=1 << 20,
        limit_concurrency=1000,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    limit_logs()
    pages.on_startup(console.poll.start)
    try:
        uvicorn.Server(config).run(sockets=[listening.port])
    finally:
        console.poll.stop()
        warn(filter(None, [console.replays.stop()]))
        console.workers.close()
        if console.places.lake is not None:
            console.places.lake.close()
