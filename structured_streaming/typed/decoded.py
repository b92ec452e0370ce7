"""What reading bodies by a schema gives, whatever the format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from structured_streaming.typed.fields import TypedField

REASON_CHARACTERS = 300
ANY = 0
"""In the place of a version: bodies do not say theirs."""


class Decoded(NamedTuple):
    """Of some bodies: `values` have a column for each field, null where the body does not fit; `versions` of the schema that
    each fits, 0 where none; `reasons` why not, None where it fits."""

    values: pa.Table
    versions: list[int]
    reasons: list[str | None]


class Decoder(Protocol):
    """Reads bodies by the schemas of one declaration. What does not fit is told, never raised."""

    @property
    def fields(self) -> Sequence[TypedField]:
        """Of all versions."""

    @property
    def bytes_of_lists(self) -> int:
        """Memory for each byte of a body that lists may take, however short the body is; 0 without lists."""

    @property
    def left_out(self) -> Sequence[str]:
        """Fields of the newest version that have no column, each with why."""

    def decode(self, bodies: pa.BinaryArray, version: int = ANY) -> Decoded:
        """Of bodies without nulls, which are few enough to be in memory as rows; by one version, where that is given. A row
        depends on its body alone."""


def cut(reason: str) -> str:
    """A reason as it stands in a row."""
    text = " ".join(reason.split())
    return text if len(text) <= REASON_CHARACTERS else text[: REASON_CHARACTERS - 1] + "…"
