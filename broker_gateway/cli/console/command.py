"""`lakebroker console`: the web page over gateways and a lake."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker_gateway.cli.extras import need, need_embedded
from broker_gateway.cli.gateway_calls import (
    DEFAULT_GATEWAY,
    Reached,
    TlsCa,
    TokenFile,
    check_address,
    check_token,
)
from broker_gateway.cli.output import fail, warn
from broker_gateway.cli.questions.asked import Asked, Gateway, Lake, NameServers, source_of
from broker_gateway.cli.signals import Signalled, raised_signals
from broker_gateway.cli.units import seconds
from structured_streaming.extras import CONSOLE

if TYPE_CHECKING:
    from broker_gateway.cli.console.server import Console, Listening

_HERE = "127.0.0.1"
_EVERYWHERE = "0.0.0.0"
_PORT = 8090
_PORT_OF_DATABRICKS = "DATABRICKS_APP_PORT"
_HELP = """Serves a web page over gateways and a lake: brokers, topics, groups and their lag over time, a message by key with its trace, dead letters, scheduled tasks.

With --gateway it shows what the broker knows now; with --lake what the tables have; with both, look-ups find what is newer than the tables, too.

It listens on this machine alone. Without a token, every user of this machine can open it. It only reads; with --allow-replay, users can send dead letters again. To be reached from other machines it needs a token and a certificate, and answers to the names that the certificate has. Behind a proxy that signs users in, such as that of Databricks Apps, give --behind-proxy.

ctrl-C or SIGTERM stops it.

Examples:

  lakebroker console

  lakebroker console --gateway broker-host:8081 --lake ./lake --tls-ca ca.pem --token-file token

  lakebroker console --lake s3://bucket/lake --host 0.0.0.0 --tls-cert server.pem --tls-key server-key.pem --page-token-file page-token
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("console", help=_HELP)(console)


def console(
    gateway: Gateway = "",
    namesrv: NameServers = "",
    lake: Lake = "",
    host: Annotated[
        str | None,
        typer.Option(
            help=f"Address to listen on, 0.0.0.0 for all; {_HERE}, or behind a proxy {_EVERYWHERE}",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help=f"Port; 0 takes a free one; {_PORT}, or behind a proxy {_PORT_OF_DATABRICKS}",
        ),
    ] = None,
    allow_replay: Annotated[
        bool, typer.Option("--allow-replay", help="Let the page send dead letters again, after it asked")
    ] = False,
    page_token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="LAKEBROKER_CONSOLE_TOKEN_FILE",
            help="File with the token that opens the page; at least 16 characters",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="The page's certificate and those above it, PEM")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM")] = None,
    behind_proxy: Annotated[
        bool,
        typer.Option(
            "--behind-proxy",
            help="Listen on all addresses, or on --host, in plaintext, for a proxy that says who may come: nothing else may reach the port",
        ),
    ] = False,
    interval: Annotated[str, typer.Option(help="How often brokers are asked while a tab is open")] = "2s",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
) -> None:
    interval_s = seconds("--interval", interval)
    if not 0.5 <= interval_s <= 60:
        fail(f"--interval {interval}: give 0.5s to 60s", 2)
    need("console", CONSOLE)
    listening = _listening(host, port, page_token_file, (tls_cert, tls_key), behind_proxy)
    made = _console(gateway, namesrv, lake, allow_replay, interval_s, token_file, tls_ca)
    mode = "with replay of dead letters" if made.replays.allowed else "read-only"
    with contextlib.suppress(Signalled), raised_signals():
        warn([f"the console of {made.places.named} is at {listening.url} ({mode})"])
        from broker_gateway.cli.console.server import serve  # which takes a second

        serve(made, listening)


def _console(
    gateway: str,
    namesrv: str,
    lake: str,
    allow_replay: bool,
    interval_s: float,
    token_file: Path | None,
    tls_ca: Path | None,
) -> Console:
    """Ends the command for places that cannot be used; a gateway that is away, or a lake that is not made yet, is none."""
    from broker_gateway.cli.console.asking import Places
    from broker_gateway.cli.console.lake_engine import LakeEngine
    from broker_gateway.cli.console.poll import Poll
    from broker_gateway.cli.console.replays import Replays
    from broker_gateway.cli.console.server import Console
    from broker_gateway.cli.console.workers import Workers

    if not (gateway or namesrv or lake):
        gateway = DEFAULT_GATEWAY
    if gateway and not namesrv:
        check_address(gateway)
    if allow_replay and (namesrv or not gateway):
        fail("--allow-replay sends to one gateway: name it with --gateway, without --namesrv", 2)
    if token_file is not None:
        check_token(token_file)
    reached = Reached("" if namesrv else gateway, namesrv, token_file, tls_ca) if gateway or namesrv else None
    engine = None
    if lake:
        _check_lake(lake)
        engine = LakeEngine(lake, source_of(Asked(lake, reached or Reached("", "", None, None), False)))
    places = Places(reached, engine)
    return Console(places, Poll(places, interval_s), Workers(), Replays(reached, allow_replay))


def _check_lake(lake: str) -> None:
    from broker_gateway.cli.console.lake_engine import NOT_YET
    from structured_streaming.errors import LacksTableError, LakeError, NoLakeError
    from structured_streaming.lake import checked_place, open_lake

    need_embedded(f"--lake {lake}", lake)
    try:
        try:
            open_lake(lake)
        except NoLakeError:
            checked_place(lake)  # where there can be none, it is of no use to wait for one
            warn([NOT_YET.format(lake)])
        except LacksTableError as error:  # who makes it may be about to make that, too
            warn([f"{error}; it is looked for again"])
    except LakeError as error:
        fail(str(error))


def _listening(
    host: str | None,
    port: int | None,
    page_token_file: Path | None,
    pair: tuple[Path | None, Path | None],
    behind_proxy: bool,
) -> Listening:
    """Ends the command where it cannot be listened there, or must not."""
    from broker_gateway.cli.console.names import names_of
    from broker_gateway.cli.console.server import Listening
    from broker_gateway.cli.serve_command import checked_pems, read_secret
    from structured_streaming.source.addresses import is_loopback

    certificate, key = pair
    if (certificate is None) != (key is None):
        fail("--tls-cert and --tls-key belong together: give both, or neither", 2)
    names = frozenset[str]()
    if certificate is not None and key is not None:
        pem, _ = checked_pems(certificate, key)
        try:
            names = names_of(pem)
        except ValueError as error:
            fail(f"--tls-cert {certificate}: its names cannot be read: {error}")
    token = "" if page_token_file is None else read_secret("--page-token-file", page_token_file).decode()
    if host is None:
        host = _EVERYWHERE if behind_proxy else _HERE
    if port is None:
        port = _port_behind_proxy() if behind_proxy else _PORT
    if not behind_proxy and not is_loopback(host) and not (token and key):
        fail(
            f"--host {host}: other machines could look in; give --page-token-file, --tls-cert and --tls-key, or --behind-proxy where "
            "a proxy says who may come",
            2,
        )
    if certificate is not None and not is_loopback(host) and not names:
        fail(
            f"--tls-cert {certificate} names no host, so that no browser takes it: make one whose subjectAltName has the names by which "
            f"--host {host} is reached"
        )
    return Listening(_bound(host, port), host, token, behind_proxy, certificate, key, names)


def _port_behind_proxy() -> int:
    text = os.environ.get(_PORT_OF_DATABRICKS, str(_PORT))
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        fail(f"{_PORT_OF_DATABRICKS}={text} is no port: give one with --port", 2)
    return int(text)


def _bound(host: str, port: int) -> socket.socket:
    from broker_gateway.runtime.errors import reason

    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError as error:
        fail(
            f"cannot listen on {host}:{port}: {reason(error)}; take another address or port (--host, --port)"
        )
    return made
