"""What a location of the form `catalog.schema` names. Imports no pyspark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from structured_streaming.errors import LocationError

_PART = re.compile(r"[^\s./\\`;:,'\"]+")


class CatalogSchema(NamedTuple):
    """A schema of a catalog that Spark knows."""

    catalog: str
    schema: str

    def __str__(self) -> str:
        return f"{self.catalog}.{self.schema}"

    @property
    def quoted(self) -> str:
        """As it stands in SQL."""
        return f"`{self.catalog}`.`{self.schema}`"

    def table(self, name: str) -> str:
        """A table, as it stands in SQL."""
        return f"{self.quoted}.`{name}`"


def catalog_schema(location: str) -> CatalogSchema | None:
    """None where the location names a folder: it has a slash, is there, or is not of two parts with a dot between."""
    parts = location.split(".")
    if "/" in location or len(parts) != 2 or not all(parts) or Path(location).exists():
        return None
    for part in parts:
        if not _PART.fullmatch(part):
            raise LocationError(
                f"lake location {location!r}: {part!r} is no name of a catalog or schema; for a folder of that name give "
                f"./{location}"
            )
    return CatalogSchema(*parts)
