"""What DuckDB's errors are taken for: by how they begin, since what stands behind may be the text of a message."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as parquet
import pytest

from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.failures import FilesGoneError, plain
from structured_streaming.errors import LakeError
from structured_streaming.storage.local import LocalFolder


def test_a_file_of_a_dataset_that_is_gone_is_told_from_other_errors(tmp_path: Path) -> None:
    rows = pa.table({"a": list(range(1000))})
    parquet.write_table(rows, tmp_path / "a.parquet")
    files = LocalFolder(tmp_path).arrow_filesystem()
    with duckdb.connect() as connection:
        connection.register("t", dataset.dataset(["a.parquet"], filesystem=files, schema=rows.schema))
        (tmp_path / "a.parquet").unlink()
        with pytest.raises(duckdb.Error) as gone:
            connection.execute("SELECT sum(a) FROM t")
    assert isinstance(plain(gone.value), FilesGoneError)


@pytest.mark.parametrize(
    "text", ["FileNotFoundError: a.parquet", "IO Error: no file", "No such file, [errno 2]"]
)
def test_texts_of_messages_are_no_errors_about_files(standing: EmbeddedEngine, text: str) -> None:
    for statement in (f"SELECT error('{text}')", f"SELECT CAST('{text}' AS INT)"):
        with pytest.raises(LakeError) as failed:
            standing.query(statement).read_all()
        assert not isinstance(failed.value, FilesGoneError), statement
