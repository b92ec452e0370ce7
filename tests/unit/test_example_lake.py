"""docs/tables.md and docs/views.md: the tables' columns are those of the product, and the answers shown are those that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.tables import TABLES
from tests.support.lakes.example import PAGES, answered, make

TABLES_PAGE = PAGES[0]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.open(str(make(tmp_path_factory.mktemp("examples") / "lake"))) as opened:
        yield opened


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_answers_shown_are_those_that_there_are(engine: EmbeddedEngine, page: Path) -> None:
    assert page.read_text() == answered(page, engine), (
        "python -m tests.support.lakes.example writes them anew"
    )


def test_the_page_has_every_table_as_it_is() -> None:
    parts = re.split(r"^## `(\w+)`$", TABLES_PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert sorted(parts[::2]) == sorted(TABLES)
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        table = TABLES[name]
        assert part.strip().startswith(table.comment)
        key, order = re.findall(r"^Row key: (.+)\. Sorted by: (.+)\.$", part, re.MULTILINE)[0]
        assert re.findall(r"`(\w+)`", key) == list(table.key)
        assert re.findall(r"`(\w+)`", order) == list(table.order)
        listed = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", part, re.MULTILINE)
        assert listed == [(column.name, spelt(column.type), column.comment) for column in table.columns]
        assert part.count("```sql") == 1, name


def spelt(kind: pa.DataType) -> str:
    """A type as SQL has it."""
    if pa.types.is_map(kind):
        return f"MAP<{spelt(kind.key_type)}, {spelt(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{spelt(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{field.name}: {spelt(field.type)}' for field in kind)}>"
    names = {
        "string": "STRING", "int32": "INT", "int64": "BIGINT", "bool": "BOOLEAN", "binary": "BINARY",
        "timestamp[us, tz=UTC]": "TIMESTAMP",
    }  # fmt: skip
    return names[str(kind)]
