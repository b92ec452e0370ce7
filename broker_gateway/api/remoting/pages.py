"""Pages of a table: which of its entries, in the order of their names, a request asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.protocol import java_json
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.fields import Fields
from broker_gateway.protocol.java_json import JsonObject

MAX_PAGE = 2000
"""Entries: `splitMetadataSize` as it is by default."""


Entry = TypeVar("Entry")


class Version(NamedTuple, Generic[Entry]):
    """A table in the order of its entries' names, as of one version of it."""

    version: DataVersion
    entries: Sequence[Entry]


class PageFields(NamedTuple):
    """Names of the fields that ask for a page."""

    sequence: str
    most: str

    def asked(self, fields: Fields) -> bool:
        """Whether a page is asked for, rather than everything."""
        names = ("dataVersion", self.sequence, self.most)
        return any(fields.optional_text(name) is not None for name in names)

    def page(self, fields: Fields, version: DataVersion, total: int) -> tuple[int, int]:
        """Where the page begins and ends, of `total` entries. Raises RequestError.

        It is the first one unless the asker knows the table's current version. Never all but the last entry: clients take
        a page that ends there for the last one.
        """
        first, count = fields.small(self.sequence), fields.small(self.most, MAX_PAGE)
        if first < 0 or count < 1:
            raise RequestError(
                f"{self.sequence}={first}, {self.most}={count}: entries from 0 on can be asked for, at least one",
                ResponseCode.INVALID_PARAMETER,
            )
        first = min(first, total) if _is(version, fields.optional_text("dataVersion")) else 0
        end = min(first + min(count, MAX_PAGE), total)
        return first, end - 1 if end == total - 1 and end - first > 1 else end


def _is(version: DataVersion, text: str | None) -> bool:
    if text is None or not text.strip():
        return False
    found = JsonObject(java_json.loads(text.encode("utf-8", "replace")), "dataVersion")
    return version == DataVersion(
        found.integer("stateVersion", 0), found.integer("counter", 0), found.integer("timestamp", 0)
    )
