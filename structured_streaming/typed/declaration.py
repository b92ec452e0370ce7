"""What a lake knows of a typed topic: its schema, all versions of it, and since when messages are in its table.

It is a property of the typed table itself (`DECLARED`), so a version of the schema and its columns come with one commit of
that table, and nobody sees one without the other. It holds no secrets. Imports no pyspark.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from structured_streaming.errors import LakeError
from structured_streaming.tables import JOURNAL_TOPIC
from structured_streaming.typed.fields import SchemaError

DECLARED = "lakebroker.typed"
"""Property of a typed table: the declaration, as JSON."""
JSON, AVRO, PROTOBUF = "json", "avro", "protobuf"
FORMATS = (JSON, AVRO, PROTOBUF)
ACTIVE, FILLING, STOPPED = "active", "filling", "stopped"
"""States: kept up by the reput; what was in the lake before is still to come; left as it is."""
MOST_SCHEMA, MOST_DECLARED, MOST_VERSIONS = 256 << 10, 1 << 20, 100
"""Bytes of a schema and of a declaration, and schemas that one has."""
MOST_REFUSED = 100
"""Ids that are remembered; beyond, no unknown id is asked for."""
MOST_TYPED = 100
"""Typed topics of a lake: each is a table, and a file in a batch."""
NAME = re.compile(r"typed_[a-z0-9_]{1,100}")
REGISTRY = re.compile(r"(https?://[^/@\s?#]+(?:/[^@\s?#]*?)?)/subjects/([^/@\s?#]{1,500})")
"""URL of a subject."""
_TOPIC = re.compile(r"[%|A-Za-z0-9_-]{1,255}")
_LONGEST_TEXT = 4 * MOST_DECLARED * MOST_TYPED


class UnknownSchemaError(LakeError):
    """Bodies have ids of schemas that a declaration does not have; its registry is to be asked, and the bodies read again."""

    def __init__(self, table: str, ids: Sequence[int]) -> None:
        self.table = table
        self.ids = list(ids[:MOST_REFUSED])
        shown = ", ".join(map(str, self.ids[:5]))
        super().__init__(f"messages of {table} have ids of schemas that are not known yet: {shown}")


@dataclass(frozen=True, slots=True)
class Schema:
    """A version of a topic's schema, from 1 on. `text`: JSON, or of Protobuf a descriptor set in base64; `message`: which of
    its messages; `id`: the registry's, 0 without."""

    version: int
    text: str
    message: str = ""
    id: int = 0


@dataclass(frozen=True, slots=True)
class Declaration:
    """Of a typed topic. `start`: up to where the table leaves out each log, by `broker/log_id`. `registry`: URL of the subject
    without credentials, empty without one; `refused`: ids that it does not have, or no column can hold, with why. `since`: the lake's
    newest batch when the table was made: those up to it did not go there, though they may name a table that had its name before."""

    topic: str
    table: str
    format: str
    schemas: tuple[Schema, ...]
    state: str = ACTIVE
    start: tuple[tuple[str, int], ...] = ()
    registry: str = ""
    refused: tuple[tuple[int, str], ...] = ()
    since: int = -1

    @property
    def newest(self) -> Schema:
        return self.schemas[-1]

    @property
    def starts(self) -> dict[str, int]:
        """By `broker/log_id`."""
        return dict(self.start)

    @property
    def refuses_all(self) -> bool:
        """Whether no further id is asked for."""
        return len(self.refused) >= MOST_REFUSED

    def evolved(self, schema: Schema) -> Declaration:
        """With one more schema. Raises LakeError where there are too many."""
        return checked(dataclasses.replace(self, schemas=(*self.schemas, schema)))


def table_name(topic: str) -> str:
    """Of a topic, where none is given."""
    return "typed_" + re.sub(r"[^a-z0-9_]", "_", topic.lower())[:100]


def checked(declared: Declaration) -> Declaration:
    """The declaration. Raises LakeError for one that no lake takes, naming the value."""
    if not _TOPIC.fullmatch(declared.topic):
        raise LakeError(f"topic {declared.topic!r} is no name of a topic")
    if declared.topic == JOURNAL_TOPIC:
        raise LakeError(f"topic {declared.topic} is the broker's journal; its tables are typed already")
    if not NAME.fullmatch(declared.table):
        raise LakeError(
            f"table {declared.table!r}: give a name of small letters, digits and _ that begins with typed_"
        )
    if declared.format not in FORMATS:
        raise LakeError(f"format {declared.format!r}: give one of {', '.join(FORMATS)}")
    if declared.state not in (ACTIVE, FILLING, STOPPED):
        raise LakeError(f"state {declared.state!r} of typed topic {declared.topic} is none that is known")
    if declared.registry and not REGISTRY.fullmatch(declared.registry):
        raise LakeError(
            f"registry {declared.registry!r}: give the URL of a subject, such as http://registry:8081/subjects/{declared.topic}-value, "
            "without credentials"
        )
    if not declared.schemas or len(declared.schemas) > MOST_VERSIONS:
        raise LakeError(
            f"typed topic {declared.topic} has {len(declared.schemas)} schemas, 1 to {MOST_VERSIONS} are possible; declare it "
            "into another table (--table)"
        )
    for schema in declared.schemas:
        if len(schema.text.encode("utf-8", "replace")) > MOST_SCHEMA:
            raise SchemaError(
                f"schema {schema.version} of typed topic {declared.topic} is larger than {MOST_SCHEMA:,} bytes"
            )
    if len(written(declared).encode("utf-8", "replace")) > MOST_DECLARED:
        raise LakeError(
            f"the schemas of typed topic {declared.topic} take more than {MOST_DECLARED:,} bytes together; declare it into "
            "another table (--table)"
        )
    return declared


def written(declared: Declaration) -> str:
    """As `read` takes it."""
    return json.dumps(dataclasses.asdict(declared), sort_keys=True)


def read(place: object, text: str) -> Declaration:
    """What the property of the table at `place` says. Raises LakeError."""
    try:
        given = json.loads(text)
        schemas = tuple(Schema(**each) for each in given.pop("schemas"))
        start = tuple((str(log), int(offset)) for log, offset in given.pop("start"))
        refused = tuple((int(number), str(reason)) for number, reason in given.pop("refused", ()))
        since = int(given.pop("since", -1))
        return checked(Declaration(**given, schemas=schemas, start=start, refused=refused, since=since))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LakeError(
            f"property {DECLARED} of {place} cannot be read ({error}): it was altered, or is of a later version of lakebroker; "
            "restore it (RESTORE TABLE), or use that version"
        ) from error


def declaration_of(place: object, configuration: Mapping[str, str]) -> Declaration | None:
    """Of a table by its properties; None for one that is not typed. Raises LakeError."""
    text = configuration.get(DECLARED)
    return None if text is None else read(place, text)


def packed(declared: Iterable[Declaration]) -> str:
    """Declarations as an option of a data source; empty without any."""
    texts = [written(each) for each in declared]
    return base64.b64encode(zlib.compress(json.dumps(texts).encode())).decode() if texts else ""


def unpacked(option: str) -> tuple[Declaration, ...]:
    """What `packed` made. Raises LakeError."""
    if not option:
        return ()
    try:
        engine = zlib.decompressobj()
        texts: Any = json.loads(engine.decompress(base64.b64decode(option), _LONGEST_TEXT))
    except (ValueError, zlib.error) as error:
        raise LakeError(f"option typed is not what the reput writes: {error}") from error
    return tuple(read("option typed", text) for text in texts)
