"""The calls of Arrow Flight, as Flight SQL uses them.

| call | answer |
|---|---|
| GetFlightInfo | the schema of a command's rows, and a ticket for them |
| GetSchema | the schema |
| DoGet | the rows of a ticket: a statement runs here, and not before |
| DoPut | parameters of a prepared statement; updates and ingestion are refused |
| DoAction | prepared statements made and closed, statements cancelled, options of a session |
| Handshake | a bearer token for a name and a password (`access.py`) |
| ListFlights | nothing: what there is, commands tell |

A statement is planned by GetFlightInfo or when it is prepared, and run by DoGet; each run sees one instant of the lake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import grpc
import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from lakebroker_pb.arrow.flight.protocol import flight_pb2 as flight
from lakebroker_pb.arrow.flight.protocol.sql import flight_sql_pb2 as flight_sql
from lakebroker_pb.google.protobuf.any_pb2 import Any as Packed
from lakebroker_pb.lakebroker.flight.v1 import ticket_pb2 as tickets
from structured_streaming.flight import metadata, sql_info
from structured_streaming.flight.access import HEADER
from structured_streaming.flight.arrow_messages import plain_schema, schema_bytes, stream, table_of
from structured_streaming.flight.failures import CallError, bad, not_found, only_reads
from structured_streaming.flight.parameters import parameters_of
from structured_streaming.flight.prepared import Bounds, PreparedStatements
from structured_streaming.flight.running import Calls, Places, Work, limited
from structured_streaming.flight.tickets import Tickets

if TYPE_CHECKING:
    from structured_streaming.embedded.interface import SqlEngine

_Message = TypeVar("_Message", bound=Message)
_CALL_S = 60.0
"""For a call that runs no statement."""
_URL = "type.googleapis.com/"
_ROWS = 2
"""Messages of a DoPut: a schema, and a batch."""
_COMMANDS: dict[str, type[Message]] = {
    f"{_URL}{each.DESCRIPTOR.full_name}": each
    for each in (
        flight_sql.CommandGetSqlInfo,
        flight_sql.CommandGetXdbcTypeInfo,
        flight_sql.CommandGetCatalogs,
        flight_sql.CommandGetDbSchemas,
        flight_sql.CommandGetTables,
        flight_sql.CommandGetTableTypes,
        flight_sql.CommandGetPrimaryKeys,
        flight_sql.CommandGetExportedKeys,
        flight_sql.CommandGetImportedKeys,
        flight_sql.CommandGetCrossReference,
        flight_sql.CommandStatementQuery,
        flight_sql.CommandPreparedStatementQuery,
        flight_sql.CommandStatementUpdate,
        flight_sql.CommandPreparedStatementUpdate,
        flight_sql.CommandStatementIngest,
    )
}
_BOUND = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal128,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
)
"""Types of parameters, also within lists and structs. Others would become other values than were given, or be many times what they are on
the wire: views, dictionaries, runs, and lists of nothing."""
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_MOST_VALUES = 100_000
"""In a parameter."""
_WRITES = (
    flight_sql.CommandStatementUpdate,
    flight_sql.CommandPreparedStatementUpdate,
    flight_sql.CommandStatementIngest,
)


class Sizes(NamedTuple):
    """What requests may have, and what they are told of the server's bounds."""

    statement_bytes: int = 256 << 10
    parameter_bytes: int = 1 << 20
    statements: int = 4
    statement_s: float = 600.0
    wait_s: float = 30.0
    idle_s: float = 600.0


class FlightService:
    """Answers calls; each runs on a thread of its own. Methods are named as the RPCs."""

    def __init__(
        self,
        engine: SqlEngine,
        prepared: PreparedStatements,
        tickets: Tickets,
        sizes: Sizes,
        bearer: str,
    ) -> None:
        self._engine = engine
        self._place = _place(engine)
        self._places = Places(sizes.statements, sizes.wait_s)
        self._plans = Places(sizes.statements, sizes.wait_s)
        self._prepared = prepared
        self._tickets = tickets
        self._sizes = sizes
        self._bearer = bearer
        self._calls = Calls()
        self._actions: dict[str, tuple[str, Callable[[bytes, grpc.ServicerContext], Message | None]]] = {
            "CreatePreparedStatement": ("Prepares a statement", self._create),
            "ClosePreparedStatement": ("Forgets a prepared statement", self._close),
            "CancelFlightInfo": ("Ends a statement that runs", self._cancel_info),
            "CancelQuery": ("The same, for older clients", self._cancel_query),
            "GetSessionOptions": ("Tells catalog and schema", self._session_options),
            "SetSessionOptions": (
                "Takes catalog and schema where they are as they are",
                self._set_session_options,
            ),
            "CloseSession": ("Does nothing, since no session is kept", self._close_session),
        }

    def stop(self) -> None:
        """Ends what runs, and takes no more."""
        self._calls.stop()

    def Handshake(
        self, _requests: Iterator[flight.HandshakeRequest], context: grpc.ServicerContext
    ) -> Iterator[flight.HandshakeResponse]:
        context.send_initial_metadata(((HEADER, self._bearer),))
        yield flight.HandshakeResponse()

    def ListFlights(
        self, _request: flight.Criteria, _context: grpc.ServicerContext
    ) -> Iterator[flight.FlightInfo]:
        return iter(())

    def GetFlightInfo(
        self, request: flight.FlightDescriptor, context: grpc.ServicerContext
    ) -> flight.FlightInfo:
        command = _command(request)
        with self._call(context) as work:
            schema, asked = self._planned(command, request.cmd, work)
        return flight.FlightInfo(
            schema=schema_bytes(schema) if schema is not None else b"",
            flight_descriptor=request,
            endpoint=[flight.FlightEndpoint(ticket=flight.Ticket(ticket=self._tickets.sealed(asked)))],
            total_records=-1,
            total_bytes=-1,
        )

    def GetSchema(
        self, request: flight.FlightDescriptor, context: grpc.ServicerContext
    ) -> flight.SchemaResult:
        command = _command(request)
        with self._call(context) as work:
            schema, asked = self._planned(command, request.cmd, work)
            if schema is None:
                schema = self._schema_of(self._prepared.ready(asked.prepared.handle).statement, work)
        return flight.SchemaResult(schema=schema_bytes(schema))

    def DoGet(self, request: flight.Ticket, context: grpc.ServicerContext) -> Iterator[flight.FlightData]:
        ticket = self._tickets.opened(request.ticket)
        if ticket.WhichOneof("asked") == "command":
            with self._call(context) as work:
                table = self._rows(_unpacked(ticket.command), work)
            return stream(table.schema, iter(table.to_batches()))
        return self._run(ticket, context)

    def DoPut(
        self, requests: Iterator[flight.FlightData], context: grpc.ServicerContext
    ) -> Iterator[flight.PutResult]:
        with self._call(context):
            messages: list[flight.FlightData] = []
            size = 0
            command: Any = None
            for message in requests:
                if command is None:
                    command = _command(message.flight_descriptor)
                    if not isinstance(command, flight_sql.CommandPreparedStatementQuery):
                        raise bad(
                            f"DoPut of {command.DESCRIPTOR.name}: it takes parameters of a prepared statement alone"
                        )
                    self._prepared.names(command.prepared_statement_handle)
                size += len(message.data_header) + len(message.data_body)
                if size > self._sizes.parameter_bytes:
                    raise bad(f"parameters have more than {self._sizes.parameter_bytes:,} bytes")
                if message.data_header:
                    messages.append(message)
                if len(messages) > _ROWS:
                    raise bad("several batches of parameters: a query takes one row; run it for each")
            if command is None:
                raise bad("DoPut without a message")
            self._prepared.bind(command.prepared_statement_handle, _values(table_of(messages)), size)
        result = flight_sql.DoPutPreparedStatementResult(
            prepared_statement_handle=command.prepared_statement_handle
        )
        yield flight.PutResult(app_metadata=result.SerializeToString())

    def DoAction(self, request: flight.Action, context: grpc.ServicerContext) -> Iterator[flight.Result]:
        if request.type not in self._actions:
            raise CallError(
                grpc.StatusCode.UNIMPLEMENTED,
                f"action {request.type[:80]!r}: this server only reads, without transactions, savepoints and Substrait plans; it "
                f"knows {', '.join(self._actions)}",
            )
        answer = self._actions[request.type][1](request.body, context)
        if answer is not None:
            yield flight.Result(body=answer.SerializeToString())

    def ListActions(
        self, _request: flight.Empty, _context: grpc.ServicerContext
    ) -> Iterator[flight.ActionType]:
        for name, (description, _) in self._actions.items():
            yield flight.ActionType(type=name, description=description)

    def _run(self, ticket: tickets.Ticket, context: grpc.ServicerContext) -> Iterator[flight.FlightData]:
        """A statement's rows; what it holds is given back when the last was taken, or nobody takes more."""
        with self._calls.begun(context, ticket.id) as work, self._places.taken(work):
            parameters: Any = ()
            statement = ticket.statement
            if ticket.WhichOneof("asked") == "prepared":
                ready = self._prepared.ready(ticket.prepared.handle, ticket.prepared.bound)
                statement, parameters = ready.statement, ready.parameters
            with (
                limited(work, context, self._sizes.statement_s),
                self._engine.query(statement, parameters, watch=work) as reader,
            ):
                yield from stream(reader.schema, reader)

    @contextmanager
    def _call(self, context: grpc.ServicerContext) -> Iterator[Work]:
        """Within, a call works that runs no statement."""
        with self._calls.begun(context) as work, limited(work, context, _CALL_S):
            yield work

    def _planned(
        self, command: Message, packed: bytes, work: Work
    ) -> tuple[pa.Schema | None, tickets.Ticket]:
        """The schema of a command's rows, and what their ticket is to hold.

        None: parameters were bound, and the schema may depend on their types; the engine knows it when it runs.
        """
        if isinstance(command, flight_sql.CommandStatementQuery):
            statement = self._checked(command.query)
            return self._schema_of(statement, work), tickets.Ticket(statement=statement)
        if isinstance(command, flight_sql.CommandPreparedStatementQuery):
            handle = command.prepared_statement_handle
            ready = self._prepared.ready(handle)
            asked = tickets.Ticket(prepared=tickets.Prepared(handle=handle, bound=ready.bound))
            return None if ready.parameters else self._schema_of(ready.statement, work), asked
        return self._rows(command, work).schema, tickets.Ticket(command=packed)

    def _rows(self, command: Message, work: Work) -> pa.Table:
        """The answer of a command about metadata."""
        place = self._place
        match command:
            case flight_sql.CommandGetSqlInfo():
                return sql_info.sql_info(
                    command.info,
                    statement_bytes=self._sizes.statement_bytes,
                    statements=self._sizes.statements,
                    idle_s=self._sizes.idle_s,
                )
            case flight_sql.CommandGetXdbcTypeInfo():
                return sql_info.xdbc_type_info(_given(command, "data_type"))
            case flight_sql.CommandGetCatalogs():
                return metadata.catalogs(place)
            case flight_sql.CommandGetDbSchemas():
                return metadata.db_schemas(
                    place, _given(command, "catalog"), _given(command, "db_schema_filter_pattern")
                )
            case flight_sql.CommandGetTables():
                return metadata.tables(
                    place,
                    self._engine.relations(work),
                    catalog=_given(command, "catalog"),
                    db_schema_pattern=_given(command, "db_schema_filter_pattern"),
                    pattern=_given(command, "table_name_filter_pattern"),
                    types=command.table_types,
                    with_schema=command.include_schema,
                )
            case flight_sql.CommandGetTableTypes():
                return metadata.table_types()
            case flight_sql.CommandGetPrimaryKeys():
                return metadata.primary_keys(
                    place,
                    self._engine.relations(work),
                    _given(command, "catalog"),
                    _given(command, "db_schema"),
                    command.table,
                )
            case (
                flight_sql.CommandGetExportedKeys()
                | flight_sql.CommandGetImportedKeys()
                | flight_sql.CommandGetCrossReference()
            ):
                return metadata.foreign_keys()
        raise bad(f"{command.DESCRIPTOR.name} has no rows")

    def _schema_of(self, statement: str, work: Work) -> pa.Schema:
        with self._plans.taken(work):
            return plain_schema(self._engine.describe(statement, work))

    def _checked(self, statement: str) -> str:
        size = len(statement.encode())
        if size > self._sizes.statement_bytes:
            raise bad(
                f"the statement has {size:,} bytes; give one of {self._sizes.statement_bytes:,} at most"
            )
        return statement

    def _create(self, body: bytes, context: grpc.ServicerContext) -> Message:
        request = _action(body, flight_sql.ActionCreatePreparedStatementRequest)
        statement = self._checked(request.query)
        client = context.peer()
        self._prepared.check_room(client)
        with self._call(context) as work:
            schema = self._schema_of(statement, work)
            with self._plans.taken(work):
                parameters = parameters_of(self._engine, statement, work)
        handle = self._prepared.add(client, statement, tuple(parameters.names))
        return _packed(
            flight_sql.ActionCreatePreparedStatementResult(
                prepared_statement_handle=handle,
                dataset_schema=schema_bytes(schema),
                parameter_schema=schema_bytes(parameters),
                is_update=False,
            )
        )

    def _close(self, body: bytes, _context: grpc.ServicerContext) -> None:
        self._prepared.close(
            _action(body, flight_sql.ActionClosePreparedStatementRequest).prepared_statement_handle
        )

    def _cancel_info(self, body: bytes, _context: grpc.ServicerContext) -> Message:
        self._cancel(_parsed(flight.CancelFlightInfoRequest, body).info)
        return flight.CancelFlightInfoResult(status=flight.CANCEL_STATUS_CANCELLED)

    def _cancel_query(self, body: bytes, _context: grpc.ServicerContext) -> Message:
        self._cancel(_parsed(flight.FlightInfo, _action(body, flight_sql.ActionCancelQueryRequest).info))
        return _packed(
            flight_sql.ActionCancelQueryResult(
                result=flight_sql.ActionCancelQueryResult.CANCEL_RESULT_CANCELLED
            )
        )

    def _cancel(self, info: flight.FlightInfo) -> None:
        if len(info.endpoint) != 1:
            raise bad(f"a FlightInfo of this server has one endpoint, this one has {len(info.endpoint)}")
        if not self._calls.cancel(self._tickets.opened(info.endpoint[0].ticket.ticket).id):
            raise not_found("the statement does not run: it was not begun, or it ended")

    def _session_options(self, body: bytes, _context: grpc.ServicerContext) -> Message:
        _parsed(flight.GetSessionOptionsRequest, body)
        return flight.GetSessionOptionsResult(
            session_options={
                name: flight.SessionOptionValue(string_value=value) for name, value in self._options().items()
            }
        )

    def _set_session_options(self, body: bytes, _context: grpc.ServicerContext) -> Message:
        asked = _parsed(flight.SetSessionOptionsRequest, body).session_options
        options = self._options()
        result = flight.SetSessionOptionsResult()
        for name, value in asked.items():
            if name not in options:
                result.errors[name].value = flight.SetSessionOptionsResult.INVALID_NAME
            elif value.string_value.lower() != options[name].lower():
                result.errors[name].value = flight.SetSessionOptionsResult.INVALID_VALUE
        return result

    def _close_session(self, body: bytes, _context: grpc.ServicerContext) -> Message:
        _parsed(flight.CloseSessionRequest, body)
        return flight.CloseSessionResult(status=flight.CloseSessionResult.CLOSED)

    def _options(self) -> dict[str, str]:
        return {"catalog": self._place.catalog, "schema": self._place.db_schema}


def serving(engine: SqlEngine, sizes: Sizes, bearer: str) -> FlightService:
    """The service over an engine, with the usual bounds. Raises LakeError."""
    prepared = PreparedStatements(Bounds(idle_s=sizes.idle_s))
    return FlightService(engine, prepared, Tickets(sizes.idle_s), sizes, bearer)


def _place(engine: SqlEngine) -> metadata.Place:
    with engine.query("SELECT current_catalog() AS catalog, current_schema() AS db_schema") as reader:
        row = reader.read_all().to_pylist()[0]
    return metadata.Place(row["catalog"], row["db_schema"])


def _given(command: Any, name: str) -> Any:
    """A field that may be absent."""
    return getattr(command, name) if command.HasField(name) else None


def _command(descriptor: flight.FlightDescriptor) -> Any:
    """The command of a descriptor. Raises CallError for none, and for one that would change something."""
    if descriptor.type != flight.FlightDescriptor.CMD:
        raise bad("the descriptor has no command; ask by Flight SQL: a path names nothing here")
    command = _unpacked(descriptor.cmd)
    if isinstance(command, _WRITES):
        raise only_reads(command.DESCRIPTOR.name)
    return command


def _unpacked(packed: bytes) -> Message:
    message = _parsed(Packed, packed)
    kind = _COMMANDS.get(message.type_url)
    if kind is None:
        raise CallError(
            grpc.StatusCode.UNIMPLEMENTED,
            f"command {message.type_url[:80]!r}: it is none of Flight SQL's that this server answers",
        )
    return _parsed(kind, message.value)


def _action(body: bytes, kind: type[_Message]) -> _Message:
    """The request of an action, which travels packed."""
    packed = _parsed(Packed, body)
    if packed.type_url != f"{_URL}{kind.DESCRIPTOR.full_name}":
        raise bad(f"the action's body is {packed.type_url[:80]!r}, not {kind.DESCRIPTOR.name}")
    return _parsed(kind, packed.value)


def _packed(message: Message) -> Packed:
    """As results of Flight SQL's own actions travel; those of Flight's do not."""
    return Packed(type_url=f"{_URL}{message.DESCRIPTOR.full_name}", value=message.SerializeToString())


def _parsed(kind: type[_Message], data: bytes) -> _Message:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise bad(f"{len(data):,} bytes that are no {kind.DESCRIPTOR.name}") from error


def _values(table: pa.Table) -> tuple[object, ...]:
    """The values of the one row. Times of nanoseconds lose what is below a microsecond, as the lake's are."""
    if table.num_rows != 1:
        raise bad(f"{table.num_rows:,} rows of parameters: a query takes one; run it for each")
    return tuple(_bound(at, column) for at, column in enumerate(table.columns, 1))


def _bound(at: int, column: pa.ChunkedArray) -> object:
    kind = column.type
    if not (pa.types.is_null(kind) or _is_bound(kind)):
        raise bad(f"parameter {at} is a {kind}, which cannot be bound; bind it as text, and CAST it")
    try:
        if (count := sum(map(_count, column.chunks))) > _MOST_VALUES:
            raise bad(
                f"parameter {at} has {count:,} values, at most {_MOST_VALUES:,} can be bound; give it in parts"
            )
        return _microseconds(column).to_pylist()[0]
    except (OverflowError, ValueError, LookupError, pa.ArrowException) as error:
        raise bad(f"parameter {at}, a {kind}, has a value that cannot be bound: {error}") from error


def _is_bound(kind: pa.DataType) -> bool:
    if any(test(kind) for test in _LISTS):
        return _is_bound(kind.value_type)
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_bound(kind.field(at).type) for at in range(kind.num_fields))
    return any(test(kind) for test in _BOUND)


def _count(values: pa.Array) -> int:
    """With those within them."""
    if any(test(values.type) for test in _LISTS):
        return len(values) + _count(values.flatten())
    if pa.types.is_struct(values.type):
        return len(values) + sum(map(_count, values.flatten()))
    return len(values)


def _microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return column.cast(pa.timestamp("us", kind.tz), safe=False)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return column.cast(pa.duration("us"), safe=False)
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return column.cast(pa.time64("us"), safe=False)
    return column
