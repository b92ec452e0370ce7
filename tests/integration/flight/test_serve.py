"""`lakebroker serve` as a process: started as asked or not at all, stopped cleanly, closed to those without the token."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path

import adbc_driver_flightsql.dbapi
import adbc_driver_manager
import grpc
import pyarrow.flight as flight
import pytest
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from broker_gateway.transport.certificates import trial_certificate
from lakebroker_pb.arrow.flight.protocol.sql import flight_sql_pb2 as sql
from lakebroker_testing.logs import written
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.flight.server import FlightServer, Listen
from structured_streaming.flight.service import Sizes, serving
from tests.support.lakes.served import (
    ENDLESS,
    MESSAGES,
    TOKEN,
    Client,
    Served,
    ServeProcess,
    peak_bytes,
    rows_of,
)
from tests.support.waiting import wait_until

HEADER = "adbc.flight.sql.authorization_header"


def messages(uri: str, **options: str) -> object:
    made = adbc_driver_flightsql.dbapi.connect(uri, db_kwargs=options, autocommit=True)
    with made as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM messages")
        return cursor.fetchall()[0][0]


def token_file(folder: Path) -> str:
    file = folder / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return str(file)


def test_it_serves_until_a_signal_and_a_second_ends_it_at_once(lake: Path, tmp_path: Path) -> None:
    with ServeProcess(tmp_path, lake, grace_s=3600) as server, Client(server.uri, "") as client:
        assert messages(server.uri) == MESSAGES
        assert "tables alone" in server.said()
        ticket = client.info(sql.CommandStatementQuery(query=ENDLESS)).endpoints[0].ticket.ticket
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            rows = rows_of(channel, ticket)
            next(rows)
            server.process.terminate()
            wait_until(lambda: "SIGTERM: statements that run have 3600 s" in server.said(), server.said)
            assert server.stop(signal.SIGINT) == 128 + signal.SIGINT, server.said()


@pytest.mark.parametrize(("grace_s", "at_once"), [(0.1, False), (3600, True)])
def test_a_stop_ends_statements_that_run_on(engine: EmbeddedEngine, grace_s: float, at_once: bool) -> None:
    listen, hurry = Listen(token=TOKEN.encode()), threading.Event()
    server = FlightServer(lambda bearer: serving(engine, Sizes(), bearer), listen, pytest.fail)
    server.start()
    with Served(server.port).client() as client, grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        rows = rows_of(
            channel, client.info(sql.CommandStatementQuery(query=ENDLESS)).endpoints[0].ticket.ticket
        )
        next(rows)
        stopping = threading.Thread(target=server.stop, args=(grace_s, hurry.is_set))
        stopping.start()
        if at_once:
            hurry.set()
        with pytest.raises(grpc.RpcError) as ended:
            for _ in rows:
                pass
        stopping.join()
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


def test_the_port_takes_tls_and_the_token_alone(lake: Path, tmp_path: Path) -> None:
    certificate, key = trial_certificate(tmp_path / "tls", "127.0.0.1")
    options = ("--tls-cert", str(certificate), "--tls-key", str(key), "--token-file", token_file(tmp_path))
    trusted = {"adbc.flight.sql.client_option.tls_root_certs": certificate.read_text()}
    with ServeProcess(tmp_path, lake, *options) as server:
        assert server.uri.startswith("grpc+tls://")
        assert messages(server.uri, **trusted, **{HEADER: f"Bearer {TOKEN}"}) == MESSAGES
        assert messages(server.uri, **trusted, username="me", password=TOKEN) == MESSAGES
        with pytest.raises(adbc_driver_manager.ProgrammingError, match="UNAUTHENTICATED"):
            messages(server.uri, **trusted)
        with pytest.raises(adbc_driver_manager.Error):
            messages(server.uri, **{HEADER: f"Bearer {TOKEN}"})
        with pytest.raises(adbc_driver_manager.Error):
            messages(server.uri.replace("+tls", ""), **{HEADER: f"Bearer {TOKEN}"})
        assert server.stop() == 0
        assert TOKEN not in server.said()


def test_records_that_only_the_log_has_are_there_and_strangers_cannot_fill_its_memory(
    lake: Path, tmp_path: Path
) -> None:
    store = written(tmp_path / "store", "broker-b", 50)
    with ServeProcess(tmp_path, lake, "--store", str(store), "--token-file", token_file(tmp_path)) as server:
        assert messages(server.uri, **{HEADER: f"Bearer {TOKEN}"}) == MESSAGES + 50
        before = peak_bytes(server.process.pid)
        for _ in range(4):
            with Client(server.uri, "wrong-token-wrong") as stranger, pytest.raises(flight.FlightError):
                stranger.info(sql.CommandStatementQuery(query="x" * (64 << 20)))
        assert peak_bytes(server.process.pid) - before < 48 << 20
        assert messages(server.uri, **{HEADER: f"Bearer {TOKEN}"}) == MESSAGES + 50
        assert server.stop(signal.SIGINT) == 0
        assert "SIGINT: statements that run have 5 s" in server.said()


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert done.exit_code in (1, 2)
    assert not done.stdout
    line: str = done.stderr
    assert line.startswith("lakebroker: ")
    return line


def test_what_cannot_be_served_is_said(lake: Path, tmp_path: Path) -> None:
    here = ("--lake", str(lake), "--listen", "127.0.0.1:0")
    certificate, key = (str(each) for each in trial_certificate(tmp_path / "tls", "127.0.0.1"))
    token = token_file(tmp_path)
    for address in ("0.0.0.0:0", "[::]:0", "some-host:0"):
        line = refused("--lake", str(lake), "--listen", address)
        assert "is reached from other machines: give --tls-cert and --tls-key and --token-file" in line
        assert "give --token-file" in refused(
            "--lake", str(lake), "--listen", address, "--tls-cert", certificate, "--tls-key", key
        )
    assert "give --tls-cert" in refused("--lake", str(lake), "--listen", "0.0.0.0:0", "--token-file", token)
    assert "write it as host:port" in refused("--lake", str(lake), "--listen", "127.0.0.1")
    assert "is no lake" in refused("--lake", str(tmp_path / "nowhere"), "--listen", "127.0.0.1:0")
    assert "give both, or neither" in refused(*here, "--tls-cert", certificate)
    assert "cannot be used" in refused(*here, "--tls-cert", key, "--tls-key", certificate)
    assert "cannot be read: No such file" in refused(*here, "--token-file", str(tmp_path / "none"))
    assert "--timeout" in refused(*here, "--timeout", "0.5s")
    assert "--memory" in refused(*here, "--memory", "much")
    Path(token).chmod(0o644)
    assert "can be read by every user" in refused(*here, "--token-file", token)
    Path(token).chmod(0o600)
    Path(token).write_text("short")
    assert "shorter than 16" in refused(*here, "--token-file", token)
    Path(token).write_text("ein-schlüssel-aus-vielen-zeichen")
    assert "is not of letters and digits" in refused(*here, "--token-file", token)
    Path(key).chmod(0o644)
    assert "can be read by every user" in refused(*here, "--tls-cert", certificate, "--tls-key", key)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "cannot be opened" in refused("--lake", str(lake), "--listen", address)
