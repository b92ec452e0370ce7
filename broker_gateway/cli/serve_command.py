"""`lakebroker serve`: the lake over Arrow Flight SQL, for ADBC, JDBC and BI tools."""

from __future__ import annotations

import contextlib
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker_gateway.cli.extras import need_embedded
from broker_gateway.cli.lake_options import (
    Lake,
    MessageDelayLevel,
    NewerOfBrokers,
    NewerOfNameServers,
    NewerOfStores,
    TlsCa,
    TokenFile,
    newer_source,
)
from broker_gateway.cli.output import fail, tell
from broker_gateway.cli.signals import Signalled, raised_signals
from broker_gateway.cli.units import seconds, size
from store.errors import SecretError
from store.log.permissions import check_secret, read_token

if TYPE_CHECKING:
    from structured_streaming.embedded.limits import Limits
    from structured_streaming.flight.server import Listen
    from structured_streaming.flight.service import Sizes

_PORT = 31337
GRACE_S = 5.0
_LOOK_S = 1.0
_HELP = """Serves the lake to ADBC, JDBC and BI tools over Arrow Flight SQL. They only read.

It listens on this machine alone, and answers every user of it, unless it has a token. To be reached from other machines, it needs a certificate and a token. Clients show the token as a bearer token, or as the password of any user.

Tables are as old as their last batch. With --brokers, --namesrv or --store each statement also has what the logs hold beyond it, and all its tables show the same instant; while one of these brokers does not answer, statements fail.

ctrl-C or SIGTERM stops it: statements that run have 5 s to end.

Examples:

  lakebroker serve --lake ./lake

  lakebroker serve --lake ./lake --brokers 127.0.0.1:8081 --memory 4GiB

  lakebroker serve --lake s3://bucket/lake --listen 0.0.0.0:31337 --tls-cert server.pem --tls-key server-key.pem --token-file token
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("serve", help=_HELP)(serve)


def serve(
    lake: Lake,
    listen: Annotated[
        str, typer.Option(help="Address and port; port 0 takes a free one")
    ] = f"127.0.0.1:{_PORT}",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that clients show; at least 16 characters")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="The server's certificate and those above it, PEM")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM")] = None,
    memory: Annotated[
        str, typer.Option(help="What all statements take together; more goes to disk")
    ] = "1GiB",
    temp_folder: Annotated[
        str, typer.Option(help="Where that goes; else to the system's temporary folder")
    ] = "",
    statements: Annotated[
        int, typer.Option(help="That run at a time; more wait for up to 30 s", min=1, max=32)
    ] = 4,
    timeout: Annotated[
        str, typer.Option(help="What a statement has, to the last row that its client takes")
    ] = "10m",
    brokers: NewerOfBrokers = "",
    namesrv: NewerOfNameServers = "",
    store: NewerOfStores = "",
    brokers_token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    message_delay_level: MessageDelayLevel = "",
) -> None:
    statement_s = seconds("--timeout", timeout)
    if statement_s < 1:
        fail(f"--timeout {timeout}: give at least 1s", 2)
    memory_bytes = size("--memory", memory)
    need_embedded("serve", lake)
    from structured_streaming.embedded.limits import Limits
    from structured_streaming.errors import LakeError
    from structured_streaming.flight.service import Sizes

    if brokers_token_file is not None and (brokers or namesrv):
        read_secret("--brokers-token-file", brokers_token_file)
    source = newer_source(brokers, namesrv, store, brokers_token_file, tls_ca, message_delay_level)
    limits = Limits(memory_bytes=memory_bytes, temp_folder=temp_folder, seconds=0)
    sizes = Sizes(statements=statements, statement_s=statement_s)
    try:
        with raised_signals(first_alone=True) as came:
            _serve(lake, _listen(listen, token_file, tls_cert, tls_key), limits, sizes, source, came)
    except LakeError as error:
        fail(str(error))
    except Signalled as stopped:
        fail(f"stopped by {stopped}", stopped.status)


def _serve(
    lake: str, listen: Listen, limits: Limits, sizes: Sizes, source: dict[str, str], came: list[Signalled]
) -> None:
    """Until a signal came; the first lets statements end, a second one ends them at once. Raises LakeError, Signalled."""
    from structured_streaming.embedded.apart import EngineApart
    from structured_streaming.flight.failures import Hidden
    from structured_streaming.flight.server import FlightServer
    from structured_streaming.flight.service import serving
    from structured_streaming.source.addresses import written

    listen.check()
    stores = filter(None, source.get("store", "").split(","))
    hidden = Hidden({**{each.strip(): "STORE" for each in stores}, lake: "LAKE"})
    with EngineApart.open(lake, limits, source, tell=tell, strict=True) as engine:
        server = FlightServer(lambda bearer: serving(engine, sizes, bearer), listen, tell, hidden)
        server.start()
        try:
            with contextlib.suppress(Signalled):
                scheme = "grpc+tls" if listen.key else "grpc"
                tell(f"{lake} is served at {scheme}://{written(listen.host, server.port)}")
                # Python ignores what a handler raises within `__del__`, so the list is looked at too
                while not came:
                    time.sleep(_LOOK_S)
            came[0].answered = True
            tell(f"{came[0]}: statements that run have {GRACE_S:g} s")
        finally:
            server.stop(GRACE_S, at_once=lambda: len(came) > 1)


def _listen(address: str, token_file: Path | None, certificate: Path | None, key: Path | None) -> Listen:
    """Raises LakeError; ends the command for files that cannot be used."""
    from structured_streaming.flight.server import Listen
    from structured_streaming.source.addresses import parse_address

    host, port = parse_address(address, "--listen", least_port=0)
    if (certificate is None) != (key is None):
        fail("--tls-cert and --tls-key belong together: give both, or neither", 2)
    pems = b"", b""
    if certificate is not None and key is not None:
        pems = checked_pems(certificate, key)
    return Listen(host, port, None if token_file is None else read_secret("--token-file", token_file), *pems)


def checked_pems(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """Certificate and key of a server. Ends the command where they cannot be used."""
    try:
        check_secret(key, "--tls-key")
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        return certificate.read_bytes(), key.read_bytes()
    except SecretError as error:
        fail(str(error))
    except (OSError, ssl.SSLError) as error:
        fail(
            f"--tls-cert {certificate} and --tls-key {key} cannot be used: {error}; give a certificate and its key without a "
            "password, both in PEM"
        )


def read_secret(option: str, file: Path) -> bytes:
    """The token in a file. Ends the command where it cannot be used."""
    try:
        return read_token(file, option)
    except SecretError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{option} {file} cannot be read: {error.strerror}")
