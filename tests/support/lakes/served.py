"""A lake served over Flight SQL, and what clients see of it: drivers' connections, plain calls of Flight."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi
import grpc
import pyarrow as pa
import pyarrow.flight as flight
from google.protobuf.message import Message

from lakebroker_pb.arrow.flight.protocol import flight_pb2 as wire
from lakebroker_pb.google.protobuf.any_pb2 import Any as Packed
from lakebroker_testing.logs import LogWriter
from lakebroker_testing.prestarted import Process, start
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.flight.failures import Hidden
from structured_streaming.flight.server import FlightServer, Listen
from structured_streaming.flight.service import Sizes, serving
from tests.support.brokers import with_constants
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import commit, cuts, manifest
from tests.support.waiting import LIMIT_S, wait_until

METHOD = "/arrow.flight.protocol.FlightService/"
TOKEN = "0123456789abcdef"
AUTHORIZED = (("authorization", f"Bearer {TOKEN}"),)
MESSAGES = 303
"""Of the lake: 300, a compressed one, one rolled back, a dead letter."""
ENDLESS = "SELECT i, repeat('x', 100) AS text FROM range(1000000000000) r(i)"
"""Rows without end."""
SLOW = "SELECT sum(a.i * b.i) FROM range(100000000) a(i), range(100000000) b(i)"
"""One row, in days."""
_HEADER = "adbc.flight.sql.authorization_header"
_GRACE = "broker_gateway.cli.serve_command.GRACE_S"


def made_lake(folder: Path) -> Path:
    """A lake of two batches; its store is beside it."""
    with LogWriter(folder / "store") as writer:
        writer.everything()
    lake = folder / "lake"
    empty_lake(str(lake))
    start, middle, end = cuts(writer.folder, 2)
    for first, last in ((start, middle), (middle, end)):
        commit(lake, manifest(lake, writer.folder, first, last))
    return lake


@contextmanager
def serve(engine: EmbeddedEngine, sizes: Sizes = Sizes(), hidden: Hidden = Hidden()) -> Iterator[Served]:
    """The engine on a free port of loopback, with a token. Nothing goes wrong there that nobody expected."""
    told: list[str] = []
    listen = Listen(token=TOKEN.encode())
    server = FlightServer(lambda bearer: serving(engine, sizes, bearer), listen, told.append, hidden)
    server.start()
    try:
        yield Served(server.port)
    finally:
        server.stop(0)
    assert not told, told


@dataclass(frozen=True, slots=True)
class Served:
    """Where it is."""

    port: int

    @property
    def uri(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def adbc(self, **options: str) -> Any:
        """A connection of the ADBC driver, with the token unless options say otherwise."""
        given = options or {_HEADER: f"Bearer {TOKEN}"}
        return adbc_driver_flightsql.dbapi.connect(self.uri, db_kwargs=given, autocommit=True)

    def client(self, token: str = TOKEN) -> Client:
        return Client(self.uri, token)


class ServeProcess:
    """`lakebroker serve` on a free port of loopback, ended with the block; what it says goes into `folder`. With `grace_s` a fresh
    Python, where statements have so long at a stop."""

    process: Process

    def __init__(self, folder: Path, lake: Path, *arguments: str, grace_s: float | None = None) -> None:
        self._errors = folder / "serve.txt"
        words = ("serve", "--lake", str(lake), "--listen", "127.0.0.1:0", *arguments)
        environment = {name: value for name, value in os.environ.items() if name != "LAKEBROKER_TOKEN_FILE"}
        begin = start if grace_s is None else partial(with_constants.start, {_GRACE: grace_s})
        with self._errors.open("wb") as errors:
            self.process = begin(*words, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        wait_until(lambda: self.process.poll() is not None or self._uris(), self.said)
        assert self._uris(), self.said()

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def uri(self) -> str:
        return self._uris()[0]

    @property
    def port(self) -> int:
        return int(self.uri.rpartition(":")[2])

    def said(self) -> str:
        return self._errors.read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its status, after the signal."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def _uris(self) -> list[str]:
        return re.findall(r"is served at (grpc\S*://\S+)", self.said())


def peak_bytes(pid: int) -> int:
    """What a process had in memory at most."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) << 10


class Client:
    """Calls of Flight, with a token."""

    def __init__(self, uri: str, token: str) -> None:
        self.flight = flight.connect(uri)
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        self.options = flight.FlightCallOptions(headers=headers, timeout=LIMIT_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.flight.close()

    def info(self, command: Message) -> flight.FlightInfo:
        return self.flight.get_flight_info(described(command), self.options)

    def rows(self, ticket: bytes) -> flight.FlightStreamReader:
        return self.flight.do_get(flight.Ticket(ticket), self.options)

    def answer(self, command: Message) -> pa.Table:
        return self.rows(self.info(command).endpoints[0].ticket.ticket).read_all()

    def action(self, name: str, body: Message | bytes) -> list[bytes]:
        data = body if isinstance(body, bytes) else packed(body)
        return [bytes(each.body) for each in self.flight.do_action(flight.Action(name, data), self.options)]

    def bind(self, command: Message, rows: pa.Table) -> bytes:
        """Sends rows by DoPut; the last answer's metadata."""
        writer, reader = self.flight.do_put(described(command), rows.schema, self.options)
        with writer:
            writer.write_table(rows)
            writer.done_writing()
            return bytes(reader.read() or b"")


def described(command: Message) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(packed(command))


def packed(message: Message) -> bytes:
    return Packed(
        type_url=f"type.googleapis.com/{message.DESCRIPTOR.full_name}", value=message.SerializeToString()
    ).SerializeToString()


def counted(rows: pa.Table) -> Counter[str]:
    """Rows whatever their order."""
    return Counter(map(repr, rows.to_pylist()))


def rows_of(channel: grpc.Channel, ticket: bytes, timeout: float | None = LIMIT_S) -> Any:
    """By gRPC itself: pyarrow takes an answer that says cancelled for ctrl-C in the main thread."""
    call = channel.unary_stream(METHOD + "DoGet", wire.Ticket.SerializeToString)
    return call(wire.Ticket(ticket=ticket), metadata=AUTHORIZED, timeout=timeout)
