"""Schemas of a registry: an HTTP server on this machine, of any manners, and a lake that goes on whatever it does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from google.protobuf import descriptor_pb2

from structured_streaming.commit.typed_lake import FolderTyped
from structured_streaming.destination import KeptUpTopics
from structured_streaming.errors import LakeError
from structured_streaming.registry import questions
from structured_streaming.registry.subject import Registry, RegistryAwayError
from structured_streaming.storage.local import LocalFolder
from structured_streaming.typed.declaration import AVRO, Declaration, Schema
from structured_streaming.typed_topics import of_registry, topics_of
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.schema_registry import SchemaRegistry
from tests.support.lakes.typed_batches import Log, framed
from tests.support.waiting import LIMIT_S, wait_until


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as made:
        yield made


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return empty_lake(str(tmp_path / "lake")).path


def order(*fields: Any) -> dict[str, Any]:
    named = [{"name": "id", "type": "long"}]
    named += [{"name": name, "type": ["null", kind], "default": None} for name, kind in fields]
    return {"type": "record", "name": "Order", "fields": named}


def add(server: SchemaRegistry, lake: Path) -> Any:
    return topics_of(str(lake)).add(of_registry("orders", server.url), lambda count: None)


def test_every_schema_of_the_subject_is_declared(server: SchemaRegistry, lake: Path) -> None:
    server.add(7, order())
    server.add(300, order(("note", "string")))
    added = add(server, lake)
    assert [(schema.version, schema.id) for schema in added.declared.schemas] == [(1, 7), (2, 300)]
    log = Log(lake)
    topics = KeptUpTopics(FolderTyped(LocalFolder(lake)))
    typed = topics.filled()
    log.batch(
        typed,
        framed(7, order(), {"id": 1}),
        framed(300, order(("note", "string")), {"id": 2, "note": "n"}),
        b"bad",
    )
    assert [(row["id"], row["note"], row["schema_version"]) for row in log.rows()] == [
        (1, None, 1),
        (2, "n", 2),
        (None, None, None),
    ]
    assert log.rows()[2]["reason"] == "it does not begin with a 0 and the id of a schema"
    assert not add(server, lake).new


def test_a_schema_that_messages_come_with_first(
    server: SchemaRegistry, lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its messages wait for it, while the lake goes on, also without the registry; then all are there once."""
    monkeypatch.setattr(questions, "REGISTRY_S", 0.0)
    server.add(7, order())
    add(server, lake)
    log, topics = Log(lake), KeptUpTopics(FolderTyped(LocalFolder(lake)))
    typed = topics.filled()
    log.batch(typed, framed(7, order(), {"id": 1}))
    later = order(("note", "string"))
    sink = log.batch(typed, framed(7, order(), {"id": 2}), framed(9, later, {"id": 3, "note": "n"}))
    log.batch(typed, framed(7, order(), {"id": 4}), sink=sink)
    assert sink.unknown == {"typed_orders": {9}}
    assert [row["id"] for row in log.rows()] == [1]
    assert len(DeltaTable(str(lake / "messages")).to_pyarrow_table()) == log.sent == 4
    assert log.behind() > 0
    files = {path.name for path in (lake / "typed_orders").glob("*.parquet")}
    assert files == {uri.rpartition("/")[2] for uri in DeltaTable(str(lake / "typed_orders")).file_uris()}

    server.answer = lambda path: (503, b"starting")
    assert not topics.changed(sink.unknown)
    assert topics.behind() == {"typed_orders": ("orders", True)}
    assert topics.filled() == ()
    assert topics.behind() == {"typed_orders": ("orders", True)}
    assert "typed_orders waits, all else goes on: registry http://127.0.0.1" in capsys.readouterr().err
    log.batch(())
    assert log.behind() > 0

    server.answer = server.own_answer
    server.add(9, later)
    wait_until(lambda: topics.changed({}))
    typed = topics.filled()
    assert topics.behind() == {"typed_orders": ("orders", False)}
    assert [(row["id"], row["note"]) for row in log.rows()] == [(1, None), (2, None), (3, "n"), (4, None)]
    log.batch(typed, framed(9, later, {"id": 5, "note": None}))
    assert [row["schema_version"] for row in log.rows()] == [1, 1, 2, 1, 2]
    assert log.behind() == 0
    assert not topics.changed({})


def test_a_registry_that_takes_its_time_holds_up_nobody(
    server: SchemaRegistry, lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a start nor the looks at what is declared; one question at a time goes to it."""
    monkeypatch.setattr(questions, "REGISTRY_S", 0.0)
    server.add(7, order())
    add(server, lake)
    later, may_answer = order(("note", "string")), threading.Event()

    def slow(path: str) -> tuple[int, bytes]:
        may_answer.wait(LIMIT_S)
        return server.own_answer(path)

    server.answer = slow
    log, topics = Log(lake), KeptUpTopics(FolderTyped(LocalFolder(lake)), wait_s=0.0)
    try:
        log.batch(topics.filled(), framed(9, later, {"id": 3, "note": "n"}))
        asked = len(server.asked)
        assert not topics.changed({"typed_orders": {9}})
        assert topics.filled() == ()
        said = capsys.readouterr().err
        assert f"typed_orders waits, all else goes on: registry {server.url} has not answered yet" in said
        assert not topics.changed({})
        assert capsys.readouterr().err == ""
        assert len(server.asked) <= asked + 1
        server.add(9, later)
    finally:
        may_answer.set()
    wait_until(lambda: topics.changed({}))
    topics.filled()
    assert [(row["id"], row["note"]) for row in log.rows()] == [(3, "n")]


def test_so_many_registries_are_asked_at_once(
    server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MOST_AT_ONCE", 2)
    server.add(7, order())
    made = questions.Questions()
    for number in range(4):
        made.ask(Declaration("t", f"typed_t{number}", AVRO, (Schema(1, "{}"),), registry=server.url), [1])
    first = made.answered("typed_t0", 100.0)
    assert first is not None
    assert [each.schema.id for each in first.answer.result()] == [7]
    second = made.answered("typed_t1", 100.0)
    assert second is not None
    assert made.answered("typed_t2", 100.0) is None
    made.ask(first.declared, [1])
    assert made.answered("typed_t0", 100.0) is None, "it is too early"
    made.ask(first.declared, [1], now=True)
    assert made.answered("typed_t0", 100.0) is not None


def test_ids_that_are_none_of_the_subject_are_asked_for_once(server: SchemaRegistry, lake: Path) -> None:
    server.add(7, order())
    add(server, lake)
    log, topics = Log(lake), KeptUpTopics(FolderTyped(LocalFolder(lake)))
    typed = topics.filled()
    bodies = [framed(number, order(), {"id": 1}) for number in range(1000, 1300)]
    log.batch(typed, framed(7, order(), {"id": 1}), *bodies)
    assert log.rows() == []
    typed = topics.filled()
    found = log.rows()
    assert [row["reason"] is None for row in found] == [True, *[False] * 300]
    assert found[1]["reason"] == "schema id 1000: it is none of the subject's"
    assert found[-1]["reason"] == "schema id 1299: it is not known, and too many others were not before it"
    asked = len(server.asked)
    sink = log.batch(typed, *bodies, framed(5000, order(), {"id": 1}))
    assert sink.unknown == {}
    assert len(server.asked) == asked
    assert len(log.rows()) == 602


def test_a_schema_that_no_column_can_hold_is_refused_with_the_reason(
    server: SchemaRegistry, lake: Path
) -> None:
    server.add(7, order(("note", "string")))
    add(server, lake)
    log, topics = Log(lake), KeptUpTopics(FolderTyped(LocalFolder(lake)))
    typed = topics.filled()
    other = order(("note", "long"))
    server.add(8, other)
    log.batch(typed, framed(8, other, {"id": 1, "note": 5}))
    topics.filled()
    (row,) = log.rows()
    assert row["reason"].startswith("schema id 8: field note is int64 in this schema and string in the table")


@pytest.mark.parametrize(
    ("answer", "kind", "problem"),
    [
        ((200, b"["), LakeError, "no JSON"),
        ((200, b"[" * 100_000), LakeError, "no JSON"),
        ((200, b'{"a":1}'), LakeError, "does not list versions"),
        ((200, b"[" + b"1," * (1 << 20) + b"1]"), LakeError, "more than 1,048,576 bytes"),
        ((404, b"no such subject"), LakeError, "answers 404: no such subject; look at the URL"),
        ((302, b"http://127.0.0.1:1/"), LakeError, "answers 302"),
        ((500, b"oops"), RegistryAwayError, "answers 500: oops"),
        ((429, b"later"), RegistryAwayError, "answers 429"),
    ],
)
def test_answers_that_are_none(
    server: SchemaRegistry, answer: tuple[int, bytes], kind: type[LakeError], problem: str
) -> None:
    server.answer = lambda path: answer
    with pytest.raises(kind) as raised:
        Registry(server.url).schemas()
    assert problem in str(raised.value)
    assert len(server.asked) == 1
    assert isinstance(raised.value, RegistryAwayError) == (kind is RegistryAwayError)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"id": 1},
        {"schema": "{}"},
        {"id": "x", "schema": "{}"},
        {"id": 1, "schema": "{}", "schemaType": "XML"},
        [],
        7,
    ],
)
def test_versions_that_are_none(server: SchemaRegistry, given: Any) -> None:
    server.answer = lambda path: (200, b"[1]" if path.endswith("versions") else json.dumps(given).encode())
    with pytest.raises(LakeError, match="gives no schema of version 1"):
        of_registry("orders", server.url)


def test_a_registry_that_does_not_answer_is_away() -> None:
    with SchemaRegistry() as gone:
        pass
    with pytest.raises(RegistryAwayError, match="does not answer"):
        Registry(gone.url).schemas()


@pytest.mark.parametrize(
    "url",
    [
        "http://u:p@127.0.0.1/subjects/x",
        "http://127.0.0.1/x",
        "ftp://127.0.0.1/subjects/x",
        "http://127.0.0.1/subjects/a/b",
    ],
)
def test_urls_that_are_none_of_a_subject(url: str) -> None:
    with pytest.raises(LakeError, match="without credentials"):
        Registry(url)


def test_protobuf_comes_as_a_descriptor(server: SchemaRegistry) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="default", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_INT64)
    server.add(4, 'syntax = "proto3"; ...', "PROTOBUF")
    server.files[4] = file.SerializeToString()
    (found,) = Registry(server.url).schemas()
    assert (found.format, found.schema.message, found.schema.id) == ("protobuf", "shop.Order", 4)
