"""Plain calls of Flight, also those that no driver makes: what is wrong, too much or another's is refused, and the rest goes on."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from google.protobuf.message import Message

from lakebroker_pb.arrow.flight.protocol import flight_pb2 as wire
from lakebroker_pb.arrow.flight.protocol.sql import flight_sql_pb2 as sql
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.limits import Limits
from structured_streaming.embedded.running import Watch
from structured_streaming.flight.failures import Hidden
from structured_streaming.flight.server import CONNECTIONS
from structured_streaming.flight.service import Sizes
from tests.support.lakes.copies import copy_folder
from tests.support.lakes.served import (
    AUTHORIZED,
    ENDLESS,
    METHOD,
    SLOW,
    TOKEN,
    Client,
    Served,
    described,
    packed,
    rows_of,
    serve,
)
from tests.support.waiting import LIMIT_S, wait_until

ONE = sql.CommandStatementQuery(query="SELECT 1 AS one")
Refused = (pa.ArrowException, flight.FlightError)


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with served.client() as client:
        yield client


def prepare(client: Client, statement: str) -> bytes:
    (body,) = client.action(
        "CreatePreparedStatement", sql.ActionCreatePreparedStatementRequest(query=statement)
    )
    from lakebroker_pb.google.protobuf.any_pb2 import Any as Packed

    result = sql.ActionCreatePreparedStatementResult.FromString(Packed.FromString(body).value)
    return result.prepared_statement_handle


def goes_on(client: Client) -> None:
    assert client.answer(ONE).to_pylist() == [{"one": 1}]


def exchanged(client: Client) -> pa.Table:
    """It may be refused as it begins, or as it is read."""
    _, reader = client.flight.do_exchange(described(ONE), client.options)
    return reader.read_all()


@pytest.mark.parametrize(
    "command",
    [b"", b"SELECT 1", b"\xff" * 100, bytes(1000), packed(wire.Criteria()), packed(ONE)[:-3]],
)
def test_commands_that_are_none_are_refused(client: Client, command: bytes) -> None:
    for call in (client.flight.get_flight_info, client.flight.get_schema):
        with pytest.raises(Refused):
            call(flight.FlightDescriptor.for_command(command), client.options)
    with pytest.raises(Refused, match="path names nothing"):
        client.flight.get_flight_info(flight.FlightDescriptor.for_path("messages"), client.options)
    goes_on(client)


def test_tickets_of_others_are_refused(client: Client, engine: EmbeddedEngine) -> None:
    with serve(engine) as other, other.client() as its:
        foreign = its.info(ONE).endpoints[0].ticket.ticket
    own = client.info(ONE).endpoints[0].ticket.ticket
    for ticket in (
        b"",
        b"SELECT 1",
        packed(ONE),
        packed(sql.TicketStatementQuery(statement_handle=b"1")),
        foreign,
        own[:-1],
    ):
        with pytest.raises(Refused, match="none of this server's"):
            client.rows(ticket).read_all()
    assert client.rows(own).read_all().to_pylist() == [{"one": 1}]


def test_a_ticket_that_is_too_old_is_refused(engine: EmbeddedEngine) -> None:
    with serve(engine, Sizes(idle_s=-1)) as served, served.client() as client:
        ticket = client.info(ONE).endpoints[0].ticket.ticket
        with pytest.raises(KeyError, match="older than -1 s"):
            client.rows(ticket).read_all()


def test_statements_are_bounded_in_size(client: Client) -> None:
    fits = f"SELECT 1 AS one -- {'x' * (255 << 10)}"
    assert client.answer(sql.CommandStatementQuery(query=fits)).to_pylist() == [{"one": 1}]
    with pytest.raises(Refused, match="262,144 at most"):
        client.info(sql.CommandStatementQuery(query=f"SELECT '{'x' * (256 << 10)}'"))
    with pytest.raises(Refused, match="262,144 at most"):
        prepare(client, f"SELECT '{'x' * (256 << 10)}'")
    with pytest.raises(Refused, match="larger than max"):
        client.info(sql.CommandStatementQuery(query="x" * (3 << 20)))
    goes_on(client)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT " + "(" * 50_000 + "1" + ")" * 50_000,
        "SELECT " + "1+" * 50_000 + "1",
        "SELECT " + "-" * 1000 + "1",
        " UNION ALL ".join(["SELECT 1"] * 20_000),
        "SELECT " + ", ".join(["?"] * 10_000),
    ],
    ids=["brackets", "sums", "comment", "unions", "parameters"],
)
def test_statements_that_are_hard_to_read_leave_the_server_whole(client: Client, statement: str) -> None:
    with contextlib.suppress(Refused):
        client.action("CreatePreparedStatement", sql.ActionCreatePreparedStatementRequest(query=statement))
    goes_on(client)


def test_other_files_and_settings_are_out_of_reach(client: Client, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("secret\n")
    for statement in (
        f"SELECT * FROM '{secret}'",
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM read_text('{secret}')",
        f"SELECT * FROM read_blob('{secret}')",
        f"SELECT * FROM glob('{tmp_path}/*')",
        f"ATTACH '{tmp_path}/other.db'",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
        f"EXPLAIN ANALYZE COPY (SELECT 1) TO '{tmp_path}/out.csv'",
        f"SELECT * FROM query('COPY (SELECT 1) TO ''{tmp_path}/out.csv''')",
        f"EXPORT DATABASE '{tmp_path}/out'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '100GB'",
        "PRAGMA enable_external_access",
        "SELECT 1; DELETE FROM messages",
        "SELECT getenv('PATH')",
    ):
        with pytest.raises(Refused):
            client.answer(sql.CommandStatementQuery(query=statement))
        with pytest.raises(Refused):
            prepare(client, statement)
    assert [each.name for each in tmp_path.iterdir()] == ["secret.csv"]
    goes_on(client)


def test_an_error_of_the_lake_does_not_tell_where_it_is(lake: Path, tmp_path: Path) -> None:
    copy = tmp_path / "lake"
    copy_folder(lake, copy)
    hidden = Hidden({str(copy): "LAKE"})
    with EmbeddedEngine.open(str(copy), Limits(seconds=0)) as engine, serve(engine, hidden=hidden) as served:
        shutil.rmtree(copy / "messages" / "_delta_log")
        with served.client() as client, pytest.raises(Refused) as refused:
            client.answer(sql.CommandStatementQuery(query="SELECT count(*) FROM messages"))
    assert "LAKE/messages" in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


def test_writes_are_refused(client: Client) -> None:
    rows = pa.table({"a": [1]})
    for command in (
        sql.CommandStatementUpdate(query="DELETE FROM messages"),
        sql.CommandPreparedStatementUpdate(prepared_statement_handle=prepare(client, "SELECT 1")),
        sql.CommandStatementIngest(table="messages"),
    ):
        with pytest.raises(NotImplementedError, match="only reads"):
            client.bind(command, rows)
        with pytest.raises(NotImplementedError, match="only reads"):
            client.info(command)
    for action in ("BeginTransaction", "CreatePreparedSubstraitPlan", "RenewFlightEndpoint", "shutdown"):
        with pytest.raises(NotImplementedError, match="only reads"):
            client.action(action, b"")
    with pytest.raises(NotImplementedError):
        exchanged(client)
    goes_on(client)


def test_parameters_are_one_row_of_plain_columns(client: Client) -> None:
    handle = prepare(client, "SELECT ? AS a, ? AS b")
    command = sql.CommandPreparedStatementQuery(prepared_statement_handle=handle)
    with pytest.raises(Refused, match="bind them first"):
        client.info(command)
    for rows, why in (
        (pa.table({"a": [1]}), "2 parameters, and 1 columns"),
        (pa.table({"a": [1, 2], "b": [1, 2]}), "2 rows of parameters"),
        (pa.table({"a": pa.array([], pa.int32()), "b": pa.array([], pa.int32())}), "0 rows of parameters"),
        (pa.table({"a": pa.array(["x"]).dictionary_encode(), "b": [1]}), "several batches"),
        (pa.table({"a": ["x" * (1 << 20)], "b": [1]}), "more than 1,048,576 bytes"),
    ):
        with pytest.raises(Refused, match=why):
            client.bind(command, rows)
    client.bind(command, pa.table({"a": ["x"], "b": [5]}))
    info = client.info(command)
    assert client.rows(info.endpoints[0].ticket.ticket).read_all().to_pylist() == [{"a": "x", "b": 5}]
    client.bind(command, pa.table({"a": ["y"], "b": [6]}))
    with pytest.raises(Refused, match="bound anew"):
        client.rows(info.endpoints[0].ticket.ticket).read_all()
    assert client.answer(command).to_pylist() == [{"a": "y", "b": 6}]
    client.action(
        "ClosePreparedStatement", sql.ActionClosePreparedStatementRequest(prepared_statement_handle=handle)
    )
    with pytest.raises(KeyError, match="prepare it again"):
        client.info(command)
    with pytest.raises(KeyError, match="prepare it again"):
        client.info(sql.CommandPreparedStatementQuery(prepared_statement_handle=b"guessed-16-bytes"))


@pytest.mark.parametrize(
    "value",
    [
        pa.array([1 << 62], pa.timestamp("s")),
        pa.array([-(1 << 63)], pa.timestamp("us")),
        pa.array([0], pa.timestamp("us", "Bogus/Zone")),
        pa.array([(1 << 31) - 1], pa.int32()).cast(pa.date32()),
        pa.array([1 << 62], pa.duration("s")),
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]),
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([Decimal(7)], pa.decimal256(70, 0)),
        pa.array([[[("k", 1)]]], pa.list_(pa.map_(pa.string(), pa.int64()))),
        pa.array([[(1, 2, 3)]], pa.list_(pa.month_day_nano_interval())),
        pa.array([{"a": {"b": Decimal(7)}}], pa.struct([("a", pa.struct([("b", pa.decimal256(70, 0))]))])),
        pa.array([{}], pa.struct([])),
        pa.FixedSizeListArray.from_arrays(pa.nulls(1_000_000), 1_000_000),
        pa.array([["x"]], pa.list_(pa.string_view())),
    ],
    ids=lambda value: str(value.type),
)
def test_values_that_cannot_be_bound_are_refused(client: Client, value: pa.Array) -> None:
    command = sql.CommandPreparedStatementQuery(prepared_statement_handle=prepare(client, "SELECT ? AS a"))
    with pytest.raises(pa.ArrowInvalid, match=r"parameter 1.* a .*cannot be bound"):
        client.bind(command, pa.table({"a": value}))
    goes_on(client)


def test_a_parameter_has_so_many_values_at_most(client: Client) -> None:
    """However few bytes they are on the wire."""
    command = sql.CommandPreparedStatementQuery(
        prepared_statement_handle=prepare(client, "SELECT len(?) AS n")
    )
    bits = pa.ListArray.from_arrays([0, 1_000_000], pa.array([True]).take(pa.array([0] * 1_000_000)))
    with pytest.raises(pa.ArrowInvalid, match=r"parameter 1 has 1,000,001 values, at most 100,000"):
        client.bind(command, pa.table({"a": bits}))
    goes_on(client)


def test_a_flood_of_prepared_statements_fills_the_place_of_its_connection_alone(served: Served) -> None:
    with Client(served.uri, TOKEN) as flood:
        handles = [prepare(flood, f"SELECT {n}") for n in range(64)]
        with pytest.raises(Refused, match="64 prepared statements at most"):
            prepare(flood, "SELECT 64")
        with Client(served.uri, TOKEN) as other:
            prepare(other, "SELECT 1")
        command = sql.CommandPreparedStatementQuery(prepared_statement_handle=handles[7])
        assert flood.answer(command).column(0).to_pylist() == [7]
        for handle in handles:
            flood.action(
                "ClosePreparedStatement",
                sql.ActionClosePreparedStatementRequest(prepared_statement_handle=handle),
            )
        prepare(flood, "SELECT 64")


def test_a_statement_has_its_time(engine: EmbeddedEngine) -> None:
    with serve(engine, Sizes(statements=1, statement_s=0.5, wait_s=60)) as served, served.client() as client:
        for statement in (SLOW, ENDLESS):
            with pytest.raises(flight.FlightTimedOutError, match=r"a call has 0\.5 s"):
                client.answer(sql.CommandStatementQuery(query=statement))
        goes_on_in_time(client)


def test_planning_has_its_time(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(engine) as served, served.client() as client:
        with monkeypatch.context() as patched:
            patched.setattr("structured_streaming.flight.service._CALL_S", 0.5)
            patched.setattr(engine, "describe", lambda _, work: wait_until(work.check, "the end of its time"))
            for call in (client.info, lambda command: prepare(client, command.query)):
                with pytest.raises(flight.FlightTimedOutError, match=r"a call has 0\.5 s"):
                    call(ONE)
        goes_on(client)


def goes_on_in_time(client: Client) -> None:
    """Where a busy host lets the time of a call pass, it is called again."""

    def answered() -> bool:
        with contextlib.suppress(flight.FlightTimedOutError):
            goes_on(client)
            return True
        return False

    wait_until(answered, "an answer in time")


def test_a_client_that_takes_no_rows_loses_its_place(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("structured_streaming.flight.running.ANSWER_S", 0.2)
    sizes = Sizes(statements=1, statement_s=0.2, wait_s=LIMIT_S)
    with (
        serve(engine, sizes) as served,
        served.client() as client,
        grpc.insecure_channel(f"127.0.0.1:{served.port}") as channel,
    ):

        def begun() -> Any:
            """Rows of which the first was taken in time."""
            info = client.info(sql.CommandStatementQuery(query=ENDLESS))
            rows = rows_of(channel, info.endpoints[0].ticket.ticket, timeout=None)
            with contextlib.suppress(grpc.RpcError):
                next(rows)
                return rows
            return None

        rows = wait_until(begun, "a first row in time")
        goes_on_in_time(client)
        with pytest.raises(grpc.RpcError):
            list(rows)


def test_so_many_statements_run_at_a_time_and_others_are_told(engine: EmbeddedEngine) -> None:
    sizes = Sizes(statements=2, wait_s=0.5)
    with (
        serve(engine, sizes) as served,
        served.client() as one,
        served.client() as two,
        served.client() as three,
    ):
        ticket = three.info(ONE).endpoints[0].ticket.ticket
        readers = []
        for client in (one, two):
            info = client.info(sql.CommandStatementQuery(query=ENDLESS))
            readers.append(client.rows(info.endpoints[0].ticket.ticket))
            readers[-1].read_chunk()
        with pytest.raises(Refused, match="as many statements run already"):
            three.rows(ticket).read_all()
        assert three.answer(sql.CommandGetTableTypes()).num_rows == 2
        readers[0].cancel()
        wait_until(lambda: answers(three), "a free place")


def answers(client: Client) -> bool:
    try:
        goes_on(client)
    except Refused:
        return False
    return True


def test_a_running_statement_is_cancelled_by_its_info(engine: EmbeddedEngine) -> None:
    sizes = Sizes(statements=1, wait_s=60)
    with serve(engine, sizes) as served, served.client() as client, served.client() as other:
        for cancel in (cancel_info, cancel_query):
            info = client.info(sql.CommandStatementQuery(query=SLOW))
            with pytest.raises(KeyError, match="does not run"):
                cancel(other, info)
            failed: list[grpc.RpcError] = []
            ticket = info.endpoints[0].ticket.ticket
            asking = threading.Thread(target=fails, args=(served.port, ticket, failed))
            asking.start()
            wait_until(lambda info=info, cancel=cancel: ran(cancel, other, info), "its run")
            asking.join(LIMIT_S)
            assert failed[0].code() is grpc.StatusCode.CANCELLED  # type: ignore[attr-defined]
        goes_on(client)
        with pytest.raises(Refused, match="none of this server's"):
            other.action("CancelFlightInfo", wire.CancelFlightInfoRequest(info=wire.FlightInfo(
                    endpoint=[wire.FlightEndpoint(ticket=wire.Ticket(ticket=b"x"))])).SerializeToString())  # fmt: skip


def cancel_info(client: Client, info: flight.FlightInfo) -> None:
    request = wire.CancelFlightInfoRequest(info=wire.FlightInfo.FromString(info.serialize()))
    (body,) = client.action("CancelFlightInfo", request.SerializeToString())
    assert wire.CancelFlightInfoResult.FromString(body).status == wire.CANCEL_STATUS_CANCELLED


def cancel_query(client: Client, info: flight.FlightInfo) -> None:
    client.action("CancelQuery", sql.ActionCancelQueryRequest(info=info.serialize()))


def fails(port: int, ticket: bytes, failed: list[grpc.RpcError]) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            list(rows_of(channel, ticket))
        except grpc.RpcError as error:
            failed.append(error)


def ran(cancel: Callable[[Client, flight.FlightInfo], None], client: Client, info: flight.FlightInfo) -> bool:
    try:
        cancel(client, info)
    except KeyError:
        return False
    return True


def test_metadata_comes_as_flight_sql_has_it(client: Client) -> None:
    (place,) = client.answer(sql.CommandGetDbSchemas()).to_pylist()
    assert client.answer(sql.CommandGetCatalogs()).to_pylist() == [{"catalog_name": place["catalog_name"]}]
    keys = client.answer(sql.CommandGetPrimaryKeys(table="message_index"))
    assert keys["column_name"].to_pylist() == ["broker", "log_id", "physical_offset", "key_type", "key"]
    for command in (
        sql.CommandGetExportedKeys(table="messages"),
        sql.CommandGetImportedKeys(table="messages"),
        sql.CommandGetCrossReference(pk_table="messages", fk_table="consume_queue"),
    ):
        found = client.answer(command)
        assert (found.num_rows, found.num_columns) == (0, 13)
    assert client.answer(sql.CommandGetXdbcTypeInfo(data_type=sql.XDBC_BIGINT)).num_rows == 1
    info = client.answer(sql.CommandGetSqlInfo(info=[sql.FLIGHT_SQL_SERVER_READ_ONLY]))
    assert info.to_pylist() == [{"info_name": 3, "value": True}]
    named = client.answer(sql.CommandGetTables(table_name_filter_pattern="dead%", table_types=["VIEW"]))
    assert named["table_name"].to_pylist() == ["dead_letters"]
    for command in (ONE, sql.CommandGetTables(include_schema=True), sql.CommandGetSqlInfo()):
        schema = client.flight.get_schema(described(command), client.options).schema
        assert schema.equals(client.answer(command).schema), command
    assert list(client.flight.list_flights(b"", client.options)) == []
    assert {each.type for each in client.flight.list_actions(client.options)} > {"CreatePreparedStatement"}


def test_options_of_a_session_are_its_catalog_and_schema(client: Client) -> None:
    (place,) = client.answer(sql.CommandGetDbSchemas()).to_pylist()
    (body,) = client.action("GetSessionOptions", b"")
    options = wire.GetSessionOptionsResult.FromString(body).session_options
    assert {name: value.string_value for name, value in options.items()} == {
        "catalog": place["catalog_name"],
        "schema": place["db_schema_name"],
    }
    asked = wire.SetSessionOptionsRequest(
        session_options={"catalog": options["catalog"], "color": options["catalog"]}
    )
    asked.session_options["schema"].string_value = "other"
    (body,) = client.action("SetSessionOptions", asked.SerializeToString())
    errors = wire.SetSessionOptionsResult.FromString(body).errors
    assert {name: each.value for name, each in errors.items()} == {
        "color": wire.SetSessionOptionsResult.INVALID_NAME,
        "schema": wire.SetSessionOptionsResult.INVALID_VALUE,
    }
    (body,) = client.action("CloseSession", b"")
    assert wire.CloseSessionResult.FromString(body).status == wire.CloseSessionResult.CLOSED


def test_every_call_needs_the_token(served: Served) -> None:
    channel = grpc.insecure_channel(f"127.0.0.1:{served.port}")
    methods = wire.DESCRIPTOR.services_by_name["FlightService"].methods
    with channel:
        for method in methods:
            for shown in (
                (),
                (("authorization", "Bearer wrong-token-wrong-token"),),
                (("authorization", f"Basic {TOKEN}"),),
            ):
                call = channel.stream_stream(METHOD + method.name)
                with pytest.raises(grpc.RpcError) as refused:
                    list(call(iter([b""]), metadata=shown, timeout=LIMIT_S))
                expected = grpc.StatusCode.UNAUTHENTICATED
                assert refused.value.code() is expected, method.name  # type: ignore[attr-defined]
                assert TOKEN not in refused.value.details()  # type: ignore[attr-defined]


def test_large_requests_of_strangers_are_not_taken(served: Served) -> None:
    with (
        Client(served.uri, "") as stranger,
        pytest.raises(Refused, match=r"carries no token|larger than max"),
    ):
        stranger.info(sql.CommandStatementQuery(query="x" * (64 << 20)))


@pytest.mark.parametrize("method", ["GetFlightInfo", "DoPut"])
def test_requests_that_are_no_messages_leave_their_connection_whole(served: Served, method: str) -> None:
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(f"127.0.0.1:{served.port}", options) as channel:

        def answers(name: str, data: bytes) -> list[bytes]:
            return [*channel.stream_stream(METHOD + name)(iter([data]), metadata=AUTHORIZED, timeout=LIMIT_S)]

        for _ in range(40):  # of which a connection may have 32 at a time
            with pytest.raises(grpc.RpcError) as refused:
                answers(method, b"\xff")
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
        assert answers("ListFlights", b"") == []


def test_compressed_requests_are_not_taken(served: Served) -> None:
    channel = grpc.insecure_channel(f"127.0.0.1:{served.port}", compression=grpc.Compression.Gzip)
    with channel:
        call = channel.unary_unary(METHOD + "GetFlightInfo")
        with pytest.raises(grpc.RpcError) as refused:
            call(bytes(1 << 20), metadata=AUTHORIZED, timeout=LIMIT_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_connections_are_bounded_and_those_there_are_go_on(engine: EmbeddedEngine) -> None:
    with serve(engine) as served, served.client() as client:
        goes_on(client)
        idle = [connected(served.port) for _ in range(CONNECTIONS + 20)]
        refused = [each for each in idle if not settings(each)]
        assert len(refused) >= 20
        goes_on(client)
        for each in idle:
            each.close()
        wait_until(lambda: taken(served), "a new connection")


def connected(port: int) -> socket.socket:
    """With the beginning of HTTP/2 sent."""
    made = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
    with contextlib.suppress(OSError):
        made.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
    return made


def settings(connection: socket.socket) -> bytes:
    """What the server answers; nothing where it closed."""
    try:
        return connection.recv(9)
    except OSError:
        return b""


def taken(served: Served) -> bool:
    with served.client() as client:
        return answers(client)


def test_calls_without_end_are_bounded(engine: EmbeddedEngine) -> None:
    """Parameters that never come: other calls are refused meanwhile, and answered afterwards."""
    with serve(engine) as served:
        handle = b""
        with served.client() as client:
            handle = prepare(client, "SELECT ?")
        command = described(sql.CommandPreparedStatementQuery(prepared_statement_handle=handle))
        first = wire.FlightData(flight_descriptor=wire.FlightDescriptor.FromString(command.serialize()))
        waiting: list[Any] = []
        ends = threading.Event()
        channels = [grpc.insecure_channel(f"127.0.0.1:{served.port}", (("grpc.use_local_subchannel_pool", 1),)) for _ in range(4)]  # fmt: skip
        for n in range(80):
            call = channels[n % 4].stream_stream(METHOD + "DoPut", wire.FlightData.SerializeToString)
            waiting.append(call(unfinished(first, ends), metadata=AUTHORIZED, timeout=LIMIT_S))
        refused = grpc.StatusCode.RESOURCE_EXHAUSTED
        wait_until(lambda: any(call.done() and call.code() is refused for call in waiting), "a refusal")
        ends.set()
        for channel in channels:
            channel.close()
        wait_until(lambda: taken(served), "an answer")


def test_calls_whose_request_never_comes_are_ended(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("structured_streaming.flight.server._REQUEST_S", 1.0)
    with serve(engine) as served, contextlib.ExitStack() as held:
        ends = threading.Event()
        held.callback(ends.set)
        waiting = []
        for _ in range(4):
            options = (("grpc.use_local_subchannel_pool", 1),)
            channel = held.enter_context(grpc.insecure_channel(f"127.0.0.1:{served.port}", options))
            for method in ("GetFlightInfo", "DoGet") * 10:
                call = channel.stream_stream(METHOD + method, wire.FlightDescriptor.SerializeToString)
                waiting.append(call(nothing(ends), metadata=AUTHORIZED, timeout=LIMIT_S))
        codes = {status(call) for call in waiting}
        assert codes <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert grpc.StatusCode.CANCELLED in codes
        wait_until(lambda: taken(served), "an answer")


def nothing(ends: threading.Event) -> Iterator[Message]:
    ends.wait(LIMIT_S)
    yield from ()


def test_so_many_statements_are_planned_at_a_time(lake: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    class Held(EmbeddedEngine):
        def describe(self, statement: str, watch: Watch | None = None) -> pa.Schema:
            begun.set()
            assert goes_on.wait(LIMIT_S)
            return super().describe(statement, watch)

    with Held.open(str(lake)) as engine, serve(engine, Sizes(statements=1, wait_s=0.1)) as served:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(planned, served)
            assert begun.wait(LIMIT_S)
            with pytest.raises(Refused, match="as many statements run already"):
                planned(served)
            goes_on.set()
            first.result()
        planned(served)


def planned(served: Served) -> None:
    with served.client() as client:
        client.info(ONE)


def unfinished(first: Message, ends: threading.Event) -> Iterator[Message]:
    yield first
    ends.wait(LIMIT_S)


def status(call: Any) -> grpc.StatusCode | None:
    with contextlib.suppress(grpc.RpcError):
        next(iter(call), None)
    return call.code()  # type: ignore[no-any-return]
