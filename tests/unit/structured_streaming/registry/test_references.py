"""Schemas that refer to others of their registry: read as one, within bounds; what bodies of them become."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from structured_streaming.commit.typed_lake import FolderTyped
from structured_streaming.destination import KeptUpTopics
from structured_streaming.errors import LakeError
from structured_streaming.registry import subject as subject_module
from structured_streaming.registry.references import MOST_REFERENCES
from structured_streaming.registry.subject import Registered, Registry, RegistryAwayError
from structured_streaming.storage.local import LocalFolder
from structured_streaming.typed.avro_bodies import AvroBodies
from structured_streaming.typed.json_bodies import JsonBodies
from structured_streaming.typed.protobuf_bodies import ProtobufBodies
from structured_streaming.typed_topics import columns, of_registry, topics_of
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.schema_registry import SchemaRegistry
from tests.support.lakes.typed_batches import Log, framed

F = descriptor_pb2.FieldDescriptorProto


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as made:
        yield made


def only(server: SchemaRegistry, message: str = "") -> Registered:
    """The one version of the subject, as a declaration has it."""
    (found,) = Registry(server.url, message).schemas()
    return found._replace(schema=dataclasses.replace(found.schema, version=1))


def refused(server: SchemaRegistry) -> str:
    """Why the one version cannot be used; the topic cannot be declared by it either."""
    found = only(server)
    with pytest.raises(LakeError) as raised:
        of_registry("orders", server.url)
    assert str(raised.value) == found.problem != ""
    return found.problem


def record(name: str, *fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields], **more}


CURRENCY = {"type": "enum", "name": "Currency", "namespace": "shop.money", "symbols": ["EUR", "JPY"]}
MONEY = record("Money", ("amount", "long"), ("currency", "Currency"), namespace="shop.money")
LINE = record("Line", ("sku", "string"), ("price", "shop.money.Money"), namespace="shop")
ORDER = record(
    "Order",
    ("id", "long"),
    ("total", ["null", "shop.money.Money"]),
    ("lines", {"type": "array", "items": "Line"}),
    ("paid", {"type": "map", "values": "shop.money.Money"}),
    namespace="shop",
)


def test_avro_types_of_others(server: SchemaRegistry) -> None:
    server.add(1, CURRENCY, subject="currency")
    server.add(2, MONEY, subject="money", references=[("currency", "currency", 1)])
    server.add(3, LINE, subject="line", references=[("money", "money", 1)])
    server.add(4, ORDER, references=[("line", "line", 1), ("money", "money", 1)])
    found = only(server)
    made = fastavro.parse_schema([CURRENCY, MONEY, LINE, ORDER])[
        -1
    ]  # by fastavro's own way to put types beside each other
    price = {"amount": 5, "currency": "JPY"}
    value = {"id": 7, "total": price, "lines": [{"sku": "s", "price": price}], "paid": {"a": price}}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, [CURRENCY, MONEY, LINE, ORDER], ("shop.Order", value))
    index, body = stream.getvalue()[:1], stream.getvalue()[1:]
    assert index == b"\x06", "the fourth of the union"
    assert made["name"] == "shop.Order"
    decoded = AvroBodies([found.schema]).decode(pa.array([body], pa.binary()))
    assert decoded.reasons == [None]
    assert decoded.values.to_pylist() == [{**value, "paid": [("a", price)]}]
    assert [path for path in server.asked if "currency" in path] == ["/subjects/currency/versions/1"]


def test_an_avro_type_that_contains_itself_by_another(server: SchemaRegistry) -> None:
    server.add(1, record("B", ("a", ["null", "A"])), subject="b")
    server.add(2, record("A", ("b", ["null", "B"])), references=[("b", "b", 1)])
    with pytest.raises(LakeError, match="contains itself"):
        columns("avro", only(server).schema)


JSON_MONEY = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "currency": {"$ref": "currency.json#/$defs/code"}},
}
JSON_CURRENCY = {"$defs": {"code": {"enum": ["EUR", "JPY"]}}}


@pytest.mark.parametrize("base", ["", "https://shop.example/schemas/order.json"])
@pytest.mark.parametrize("own", ["", "https://other.example/money.json"])
def test_json_schemas_by_ref(server: SchemaRegistry, base: str, own: str) -> None:
    """Relative to where the schema says that it is; `own`: a schema that says it is elsewhere than it is referred to."""
    root = "https://shop.example/schemas/" if base else ""
    currency = "https://other.example/currency.json" if own else "currency.json"
    server.add(1, JSON_CURRENCY, "JSON", "currency")
    server.add(
        2, {**JSON_MONEY, **({"$id": own} if own else {})}, "JSON", "money", [(currency, "currency", 1)]
    )
    order = {
        "type": "object",
        "properties": {
            "id": {"$ref": "#/definitions/id"},
            "total": {"$ref": f"{root}money.json"},
            "lines": {"type": "array", "items": {"$ref": "money.json#/properties/amount"}},
        },
        "definitions": {"id": {"type": "integer"}},
        **({"$id": base} if base else {}),
    }
    server.add(3, order, "JSON", references=[("money.json", "money", 1)])
    bodies = JsonBodies([only(server).schema])
    good = {"id": 1, "total": {"amount": 5, "currency": "JPY"}, "lines": [1, 2]}
    bad = {"id": 1, "total": {"amount": 5, "currency": "USD"}}
    decoded = bodies.decode(pa.array([json.dumps(good).encode(), json.dumps(bad).encode()], pa.binary()))
    assert decoded.values.to_pylist()[0] == good
    assert [reason is None for reason in decoded.reasons] == [True, False]


def test_a_json_schema_that_is_in_none_of_them(server: SchemaRegistry) -> None:
    server.add(1, {"type": "object", "properties": {"a": {"$ref": "b.json"}}}, "JSON")
    with pytest.raises(LakeError, match="leads out of the schema"):
        columns("json", only(server).schema)


def proto(name: str, message: str, *fields: tuple[str, int, str], imports: tuple[str, ...] = ()) -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name=name, package="shop", syntax="proto3", dependency=list(imports)
    )
    made = file.message_type.add(name=message)
    for field, number, of in fields:
        kind = F.TYPE_MESSAGE if of else F.TYPE_INT64
        added = made.field.add(name=field, number=number, type=kind, label=F.LABEL_OPTIONAL)
        if of:
            added.type_name = of
    return file


def test_protobuf_imports(server: SchemaRegistry) -> None:
    time = proto(
        "default",
        "Time",
        ("at", 1, ".google.protobuf.Timestamp"),
        imports=("google/protobuf/timestamp.proto",),
    )
    money = proto(
        "default", "Money", ("amount", 1, ""), ("at", 2, ".shop.Time"), imports=("shop/time.proto",)
    )
    order = proto(
        "default", "Order", ("id", 1, ""), ("total", 2, ".shop.Money"), imports=("shop/money.proto",)
    )
    for number, file in ((1, time), (2, money), (3, order)):
        server.files[number] = file.SerializeToString()
    server.add(1, "...", "PROTOBUF", "time")
    server.add(2, "...", "PROTOBUF", "money", [("shop/time.proto", "time", 1)])
    server.add(3, "...", "PROTOBUF", references=[("shop/money.proto", "money", 1)])
    found = only(server)
    assert found.schema.message == "shop.Order"
    # field 1 is 7; field 2 a message, whose field 1 is 5 and field 2 one whose field 1 is a time of 9 s
    body = b"\x00" + b"\x08\x07" + b"\x12\x08" + b"\x08\x05" + b"\x12\x04" + b"\x0a\x02\x08\x09"
    decoded = ProtobufBodies([found.schema]).decode(pa.array([body], pa.binary()), 1)
    assert decoded.reasons == [None]
    (row,) = decoded.values.to_pylist()
    assert (row["id"], row["total"]["amount"], row["total"]["at"]["at"].second) == (7, 5, 9)


def test_schemas_that_lead_to_themselves(server: SchemaRegistry) -> None:
    server.add(1, MONEY, subject="a", references=[("b", "b", 1)])
    server.add(2, MONEY, subject="b", references=[("a", "a", 1)])
    server.add(3, ORDER, references=[("a", "a", 1)])
    said = refused(server)
    assert "leads to itself: version 1 of a refers to version 1 of b refers to version 1 of a" in said
    assert len(server.asked) < 10


@pytest.mark.parametrize(
    ("references", "problem"),
    [
        ([{"name": "x", "subject": "y"}], "has no version, a number from 1 on"),
        ([{"name": "x", "subject": "y", "version": -1}], "has no version, a number from 1 on"),
        ([{"name": "x", "subject": "y", "version": True}], "has no version, a number from 1 on"),
        ([7], "has no name and subject"),
        ({"name": "x"}, "has no name and subject"),
        ([{"name": "x" * 501, "subject": "y", "version": 1}], "more than 500 characters"),
        ([{"name": "\ud800", "subject": "y", "version": 1}], "a name or subject that is no text"),
        ([{"name": "x", "subject": "\ud800", "version": 1}], "a name or subject that is no text"),
    ],
)
def test_references_that_are_none(server: SchemaRegistry, references: Any, problem: str) -> None:
    server.add(1, ORDER)
    server.subjects["orders-value"][1]["references"] = references
    assert problem in refused(server)


def test_references_are_bounded(server: SchemaRegistry) -> None:
    for number in range(20):
        server.add(
            100 + number,
            MONEY,
            subject=f"deep-{number}",
            references=[(f"d{number}", f"deep-{number + 1}", 1)],
        )
    server.add(1, ORDER, references=[("d", "deep-0", 1)])
    assert "more than 16 levels deep" in refused(server)
    server.subjects["orders-value"].clear()
    many = [(f"m{number}", f"many-{number}", 1) for number in range(MOST_REFERENCES + 1)]
    for _, subject, _ in many:
        server.add(2, CURRENCY, subject=subject)
    server.add(3, ORDER, references=many)
    server.subjects["orders-value"] = {2: server.subjects["orders-value"][1]}
    assert "refers to more than 100 schemas" in refused(server)
    server.add(4, {**CURRENCY, "doc": "x" * 200_000}, subject="large")
    server.subjects["orders-value"] = {}
    server.add(5, {**ORDER, "doc": "x" * 100_000}, references=[("l", "large", 1)])
    server.subjects["orders-value"] = {3: server.subjects["orders-value"][1]}
    assert "are larger than 262,144 bytes" in refused(server)


def test_one_name_of_two_versions_and_of_another_format(server: SchemaRegistry) -> None:
    server.add(1, MONEY, subject="money")
    server.add(2, MONEY, subject="money")
    server.add(3, LINE, subject="line", references=[("money", "money", 2)])
    server.add(4, ORDER, references=[("money", "money", 1), ("line", "line", 1)])
    assert "is version 2 of money and version 1 of money; let it be one" in refused(server)
    server.subjects["orders-value"] = {}
    server.add(7, LINE, subject="within", references=[("line", "money", 1)])
    server.add(8, ORDER, references=[("line", "within", 1)])
    server.subjects["orders-value"] = {3: server.subjects["orders-value"][1]}
    assert "is version 1 of within and version 1 of money; let it be one" in refused(server)
    server.add(5, {"type": "object"}, "JSON", subject="other")
    server.subjects["orders-value"] = {}
    server.add(6, ORDER, references=[("x", "other", 1)])
    server.subjects["orders-value"] = {2: server.subjects["orders-value"][1]}
    assert "refers to version 1 of other, which is 'JSON'" in refused(server)


def test_what_an_asking_had_no_time_for_is_asked_by_the_next(
    server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [(f"r{number}", f"r{number}", 1) for number in range(20)]
    for number, (_, subject, _) in enumerate(others):
        server.add(10 + number, CURRENCY, subject=subject)
    server.add(1, record("Order", ("id", "long")), references=others)
    now, real = [0.0], server.answer

    def slow(path: str) -> tuple[int, bytes]:
        now[0] += 10
        return real(path)

    server.answer = slow
    monkeypatch.setattr(subject_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for _ in range(10):
        with contextlib.suppress(RegistryAwayError):
            (found,) = Registry(server.url).schemas()
            break
    assert found.schema.id == 1
    asked = [path for path in server.asked if "/r" in path.removeprefix("/subjects")]
    assert len(asked) == len(set(asked)) == 20


def test_a_version_that_the_registry_gives_badly_keeps_no_other_from_its_place(
    server: SchemaRegistry,
) -> None:
    """Each with its reason: a reference that is not there, one without a descriptor, one of a strange type, one of itself, one that is
    as deep as can be read."""
    simple = record("Order", ("id", "long"))
    server.add(1, simple)
    server.add(2, simple, references=[("m", "money", 1)])
    server.add(3, "syntax", "PROTOBUF")
    server.files[3] = b"\xff"
    server.add(4, {}, "THRIFT", subject="strange")
    server.add(5, simple, references=[("s", "strange", 1)])
    server.add(6, {}, "THRIFT")
    depth = next(depth for depth in range(100, 10**6) if not _is_read('{"a":' * depth + "1" + "}" * depth))
    server.add(7, '{"a":' * (depth - 1) + "1" + "}" * (depth - 1), "JSON", subject="deep")
    server.add(8, {"$ref": "deep"}, "JSON", references=[("deep", "deep", 1)])
    server.add(9, record("Order", ("id", "long"), ("n", "long")))
    found = Registry(server.url).schemas()
    assert [(each.schema.id, bool(each.problem)) for each in found] == [
        (1, False),
        (2, True),
        (3, True),
        (5, True),
        (6, True),
        (8, True),
        (9, False),
    ]
    problems = {each.schema.id: each.problem for each in found}
    assert "money/versions/1 answers 404" in problems[2]
    assert "gives no descriptor of schema 3" in problems[3]
    assert "strange gives no schema of version 1" in problems[5]
    assert "gives no schema of version 5" in problems[6]
    server.wants = "Bearer t"
    with pytest.raises(LakeError, match="answers 401"):
        Registry(server.url).schemas()


def _is_read(text: str) -> bool:
    try:
        json.loads(text)
    except RecursionError:
        return False
    return True


def test_a_version_that_cannot_be_made_keeps_no_other_from_it(server: SchemaRegistry, tmp_path: Path) -> None:
    lake = empty_lake(str(tmp_path / "lake")).path
    server.add(1, record("Order", ("id", "long")))
    server.add(
        2, record("Order", ("id", "long"), ("total", "shop.money.Money")), references=[("m", "money", 1)]
    )
    server.add(3, MONEY, subject="money", references=[("c", "currency", 1)])
    server.add(4, CURRENCY, subject="currency", references=[("m", "money", 1)])
    added = topics_of(str(lake)).add(of_registry("orders", server.url), lambda count: None)
    assert [schema.id for schema in added.declared.schemas] == [1]
    log, topics = Log(lake), KeptUpTopics(FolderTyped(LocalFolder(lake)))
    simple = record("Order", ("id", "long"))
    log.batch(topics.filled(), framed(1, simple, {"id": 5}), framed(2, simple, {"id": 6}))
    topics.filled()
    rows = log.rows()
    assert [row["id"] for row in rows] == [5, None]
    assert rows[1]["reason"].startswith(
        f"schema id 2: version 2 of {server.url}: it leads to itself: version 1 of money"
    )
