"""`lakebroker typed …`: topics whose messages become rows of tables with the fields of a schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_gateway.cli.extras import need_lake
from broker_gateway.cli.lake_options import Lake
from broker_gateway.cli.output import fail, show, warn
from broker_gateway.cli.registry_options import (
    RegistryTlsCa,
    RegistryTokenFile,
    RegistryUrl,
    RegistryUserFile,
    registry_access,
)
from broker_gateway.cli.signals import raised_signals, status_of
from broker_gateway.cli.spark_session import session_of
from store.counting import counted

if TYPE_CHECKING:
    from structured_streaming.registry.access import RegistryAccess
    from structured_streaming.typed.declaration import Declaration, Schema
    from structured_streaming.typed.topic import TypedTopic
    from structured_streaming.typed_topics import Asked, TypedTopics

_ADD = """Makes a table with the fields of a topic's messages, or adds the fields of a newer schema to it.

Each message of the topic is one row: with the fields of its body, or with the reason why it does not fit the schema, never left out. A reput that runs goes on, and fills the table from its next look (5 s) on.

A newer schema may have fields that are new, and lack some. A field that gets a type which its column cannot hold is refused. Nothing is written anew: rows that are there have NULL in new columns.

Examples:

  lakebroker typed add orders --schema order.schema.json --lake ./lake

  lakebroker typed add orders --schema order.avsc --from-beginning --lake ./lake

  lakebroker typed add orders --schema order.desc --message shop.Order --lake ./lake

  lakebroker typed add orders --schema https://registry:8081/subjects/orders-value --registry-user-file user --lake ./lake
"""
_FILL = """Gives a topic's table all that the lake has by now, out of the bodies in `messages`, and lets the reput keep it up.

Needed where `typed list` says filling: the reput fills by itself what takes it no longer than a minute or so. `lakebroker maintain` does the same, a while in each run, but in a catalog. A command that is stopped leaves whole parts; run it again.
"""
_REMOVE = """Lets the reput fill a topic's table no more. The table stays as it is, and can be read; `typed add` with its schema lets it go on, without a gap.

To be rid of the table, delete its folder afterwards.
"""
_CHECK = """Shows which columns a schema makes, which fields get none and why; with --topic and --lake also whether it may follow the one that the topic has. Changes nothing.

Examples:

  lakebroker typed check --schema order.schema.json

  lakebroker typed check --schema order-2.schema.json --topic orders --lake ./lake
"""
Topic = Annotated[str, typer.Argument(help="The topic")]
SchemaPlace = Annotated[
    str,
    typer.Option(
        "--schema",
        help="File: JSON Schema, Avro schema, Protobuf descriptor set (protoc --descriptor_set_out --include_imports), or .proto; or "
        "the URL of a registry's subject, such as http://registry:8081/subjects/orders-value",
    ),
]
Message = Annotated[str, typer.Option("--message", help="Of Protobuf: the message, such as shop.Order")]
ProtoPath = Annotated[
    list[Path] | None,
    typer.Option(
        "--proto-path", help="Of a .proto: folder that its imports begin at, else its own; may be given again"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    typed = typer.Typer(help="Tables with the fields of a topic's messages.", no_args_is_help=True)
    typed.command("add", help=_ADD)(add)
    typed.command("fill", help=_FILL)(fill)
    typed.command("list", help="Shows the typed topics of a lake.")(list_topics)
    typed.command("check", help=_CHECK)(check)
    typed.command("remove", help=_REMOVE)(remove)
    app.add_typer(typed, name="typed")


def add(
    topic: Topic,
    schema: SchemaPlace,
    lake: Lake,
    form: Annotated[
        str, typer.Option("--format", help="json, avro or protobuf; else by the file's name")
    ] = "",
    message: Message = "",
    proto_path: ProtoPath = None,
    table: Annotated[str, typer.Option(help="Name of the table; else typed_ and the topic's")] = "",
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning", help="Also the messages that the lake has by now; else those from now on"
        ),
    ] = False,
    registry_token_file: RegistryTokenFile = None,
    registry_user_file: RegistryUserFile = None,
    registry_tls_ca: RegistryTlsCa = None,
    as_json: AsJson = False,
) -> None:
    need_lake("typed add", lake)
    from structured_streaming.errors import LakeError

    access = _access(schema, registry_token_file, registry_user_file, registry_tls_ca)
    try:
        with raised_signals():
            asked = _asked(
                topic,
                schema,
                form,
                message,
                proto_path or [],
                table,
                from_beginning=from_beginning,
                access=access,
            )
            added = _topics(lake, access).add(asked, _counting())
            shown = _columns(added.declared.format, added.declared.newest)
    except LakeError as error:
        fail(str(error))
    except KeyboardInterrupt as stopped:
        fail(f"stopped by {stopped}; run it again to go on", status_of(stopped))
    declared = added.declared
    warn(f"no column for {each}" for each in shown.decoder.left_out)
    warn(f"schema id {number} is refused: {reason}" for number, reason in declared.refused)
    if as_json:
        typer.echo(json.dumps({**_row(declared), "added": added.new, "rows": added.rows}))
        return
    version = declared.newest.version
    typer.echo(
        f"{declared.table}: schema {version} of topic {topic} "
        + (
            f"is declared, {counted(len(shown.decoder.fields), 'field')}"
            if added.new
            else "was declared before"
        )
        + (f"; {counted(added.rows, 'row')} of what the lake had" if from_beginning or added.rows else "")
    )


def fill(
    topic: Topic,
    lake: Lake,
    registry: RegistryUrl = "",
    registry_token_file: RegistryTokenFile = None,
    registry_user_file: RegistryUserFile = None,
    registry_tls_ca: RegistryTlsCa = None,
) -> None:
    need_lake("typed fill", lake)
    from structured_streaming.errors import LakeError

    access = registry_access(registry, registry_token_file, registry_user_file, registry_tls_ca)
    try:
        with raised_signals():
            access.check()
            added = _topics(lake, access).fill(topic, _counting())
    except LakeError as error:
        fail(str(error))
    except KeyboardInterrupt as stopped:
        fail(f"stopped by {stopped}; run it again to go on", status_of(stopped))
    typer.echo(f"{added.declared.table}: {counted(added.rows, 'row')} of what the lake had")


def list_topics(lake: Lake, as_json: AsJson = False) -> None:
    need_lake("typed list", lake)
    from structured_streaming.errors import LakeError

    try:
        topics = _topics(lake)
        rows = [{**_row(declared), "bytes_behind": topics.lacks(declared)} for declared in topics.all()]
    except LakeError as error:
        fail(str(error))
    show(rows, ["topic", "table", "format", "schemas", "state", "bytes_behind"], as_json)


def check(
    schema: SchemaPlace,
    form: Annotated[
        str, typer.Option("--format", help="json, avro or protobuf; else by the file's name")
    ] = "",
    message: Message = "",
    proto_path: ProtoPath = None,
    topic: Annotated[str, typer.Option(help="The topic whose schema it would follow")] = "",
    lake: Annotated[
        str, typer.Option(envvar="LAKEBROKER_LAKE", help="With --topic: the lake that has the topic's table")
    ] = "",
    registry_token_file: RegistryTokenFile = None,
    registry_user_file: RegistryUserFile = None,
    registry_tls_ca: RegistryTlsCa = None,
    as_json: AsJson = False,
) -> None:
    need_lake("typed check", lake)
    from structured_streaming.errors import LakeError
    from structured_streaming.typed.fields import column_name
    from structured_streaming.typed.topic import TypedTopic
    from structured_streaming.typed_topics import followed, named

    if topic and not lake:
        fail(f"--lake is missing: name the lake that has the table of {topic}", 2)
    access = _access(schema, registry_token_file, registry_user_file, registry_tls_ca)
    try:
        asked = _asked(topic or "topic", schema, form, message, proto_path or [], access=access)
        made = _columns(asked.format, asked.schemas[-1])
        if topic:
            before = named(_topics(lake).all(), topic)
            made = TypedTopic(followed(before, asked._replace(registry=before.registry)))
    except LakeError as error:
        fail(str(error))
    rows = [
        {"field": each.name, "column": column_name(each.name), "type": str(each.type)}
        for each in made.decoder.fields
    ]
    if as_json:
        typer.echo(json.dumps({"columns": rows, "left_out": list(made.decoder.left_out)}))
        return
    show(rows, ["field", "column", "type"], False)
    warn(f"no column for {each}" for each in made.decoder.left_out)


def remove(topic: Topic, lake: Lake) -> None:
    need_lake("typed remove", lake)
    from structured_streaming.errors import LakeError

    try:
        declared = _topics(lake).remove(topic)
    except LakeError as error:
        fail(str(error))
    typer.echo(f"{declared.table} is left as it is from now on")


def _counting() -> Callable[[int], None]:
    """Says how many messages were read by now."""
    read = 0

    def tell(count: int) -> None:
        nonlocal read
        read += count
        warn([f"{counted(read, 'message')} read"])

    return tell


def _access(
    place: str, token_file: Path | None, user_file: Path | None, tls_ca: Path | None
) -> RegistryAccess:
    """For the registry of a subject at `place`; of no effect for a file."""
    from structured_streaming.registry.access import NOTHING
    from structured_streaming.typed.declaration import REGISTRY

    found = REGISTRY.fullmatch(place)
    return NOTHING if found is None else registry_access(found[1], token_file, user_file, tls_ca)


def _asked(
    topic: str,
    place: str,
    form: str,
    message: str,
    roots: Sequence[Path],
    table: str = "",
    *,
    from_beginning: bool = False,
    access: RegistryAccess,
) -> Asked:
    """Raises LakeError."""
    from broker_gateway.cli.schema_file import read_schema
    from structured_streaming.typed_topics import Asked, of_registry

    if place.startswith(("http://", "https://")):
        for option, given in (("--format", form), ("--proto-path", ", ".join(map(str, roots)))):
            if given:
                fail(f"{option} {given}: a registry says what its schemas are; leave it out", 2)
        return of_registry(topic, place, message, table, from_beginning=from_beginning, access=access)
    kind, schema = read_schema(Path(place), form, message, roots)
    return Asked(topic, kind, [schema], table, from_beginning)


def _topics(lake: str, access: RegistryAccess | None = None) -> TypedTopics:
    """Raises LakeError."""
    from structured_streaming.catalog.names import catalog_schema
    from structured_streaming.registry.access import NOTHING
    from structured_streaming.typed_topics import TypedTopics, topics_of

    schema = catalog_schema(lake)
    if schema is None:
        return topics_of(lake, access or NOTHING)
    from structured_streaming.catalog.lake_tables import check_tables
    from structured_streaming.catalog.typed_tables import CatalogTyped

    session = session_of()
    check_tables(session, schema)
    return TypedTopics(CatalogTyped(session, schema), access or NOTHING)


def _columns(form: str, schema: Schema) -> TypedTopic:
    from structured_streaming.typed_topics import columns

    return columns(form, schema)


def _row(declared: Declaration) -> dict[str, Any]:
    return {
        "topic": declared.topic,
        "table": declared.table,
        "format": declared.format,
        "schemas": len(declared.schemas),
        "state": declared.state,
    }
