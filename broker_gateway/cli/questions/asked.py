"""Where a question goes: `--lake`, `--gateway` (or `--namesrv`), or both; in their place environment variables."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from broker_gateway.cli.extras import need_embedded
from broker_gateway.cli.gateway_calls import DEFAULT_GATEWAY, Reached, check_address, check_token
from broker_gateway.cli.output import fail, tell
from broker_gateway.cli.questions.brokers import OfBrokers
from broker_gateway.cli.questions.wanted import Answers
from broker_gateway.cli.signals import raised_signals, status_of

Lake = Annotated[
    str,
    typer.Option(
        envvar="LAKEBROKER_LAKE",
        help="Ask the lake at this place, a folder or s3://bucket/lake; with --gateway or --namesrv and what is newer there",
    ),
]
Gateway = Annotated[
    str,
    typer.Option(
        envvar="LAKEBROKER_GATEWAY",
        help=f"Ask the gateway at this gRPC address, host:port; without --lake too: {DEFAULT_GATEWAY}, if one is there",
    ),
]
NameServers = Annotated[
    str,
    typer.Option(
        "--namesrv",
        help="Name servers, host:port;…: ask every lakebroker that they know, in place of --gateway",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="With --lake: a broker that does not answer is an error, not what the lake has of it"
    ),
]
_REMEDY = "add --gateway HOST:PORT for what is newer"
_LOOK_S = 2.0


class Asked(NamedTuple):
    """The places that a command names, checked."""

    lake: str
    reached: Reached
    strict: bool

    @property
    def of_brokers(self) -> bool:
        """Whether brokers are asked."""
        return bool(self.reached.gateway or self.reached.name_servers)


def asked(
    lake: str, gateway: str, name_servers: str, token_file: Path | None, tls_ca: Path | None, strict: bool
) -> Asked:
    """Ends the command where it names no place, and this machine has no gateway where one is expected."""
    if not (lake or gateway or name_servers):
        if not _listens(DEFAULT_GATEWAY):
            fail(
                "whom to ask? give --lake LOCATION (or LAKEBROKER_LAKE), --gateway HOST:PORT (or LAKEBROKER_GATEWAY), or both; "
                f"there is no gateway at {DEFAULT_GATEWAY} either",
                2,
            )
        gateway = DEFAULT_GATEWAY
    if gateway and not name_servers:
        check_address(gateway)
    if lake:
        need_embedded(f"--lake {lake}", lake)
    return Asked(lake, Reached(gateway, name_servers, token_file, tls_ca), strict)


@contextlib.contextmanager
def opened(place: Asked) -> Iterator[Answers]:
    """Who answers there. What a lake's answer fails with, within, ends the command."""
    if not place.lake:
        yield OfBrokers(place.reached)
        return
    from broker_gateway.cli.questions.lake import OfLake
    from structured_streaming.embedded.engine import EmbeddedEngine
    from structured_streaming.errors import LakeError

    try:
        with (
            raised_signals(),
            EmbeddedEngine.open(
                place.lake,
                source=source_of(place),
                tell=tell,
                strict=place.strict,
                newer=_REMEDY,
            ) as engine,
        ):
            brokers = OfBrokers(place.reached) if place.of_brokers else None
            yield OfLake(engine, _named(place), brokers=brokers)
    except LakeError as error:
        fail(str(error))
    except KeyboardInterrupt as stopped:
        fail("interrupted", status_of(stopped))


def source_of(place: Asked) -> dict[str, str]:
    """Options of the data source for the brokers' logs."""
    if not place.of_brokers:
        return {}
    reached = place.reached
    if reached.token_file is not None:
        check_token(reached.token_file)
    given = {
        "namesrv": reached.name_servers,
        "brokers": "" if reached.name_servers else reached.gateway,
        "tokenFile": str(reached.token_file or ""),
        "tlsCa": str(reached.tls_ca or ""),
    }
    return {name: value for name, value in given.items() if value}


def _named(place: Asked) -> str:
    of_brokers = f" and the logs of brokers at {place.reached.named}" if place.of_brokers else ""
    return f"the lake {place.lake}{of_brokers}"


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _LOOK_S).close()
    except OSError:
        return False
    return True
