"""What DuckDB's errors are taken for: by how they begin, since what stands behind may be the text of a message."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as parquet
import pytest
from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, SubTreeFileSystem

from lakebroker_testing.ports import free_ports
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.failures import FilesGoneError, LakeAwayError, plain
from structured_streaming.embedded.pinned import DatasetTables
from structured_streaming.errors import LakeError, StoreAwayError
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


def test_a_store_that_is_away_while_rows_are_read_is_told_from_other_errors() -> None:
    client = S3FileSystem(
        access_key="key",
        secret_key="secret",
        endpoint_override=f"http://127.0.0.1:{free_ports(1)[0]}",
        region="us-east-1",
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=1),
    )
    form, schema = dataset.ParquetFileFormat(), pa.schema([("a", pa.int64())])
    files = [form.make_fragment("a.parquet", SubTreeFileSystem("bucket", client))]
    with duckdb.connect() as connection:
        connection.register("t", dataset.FileSystemDataset(files, schema, form))
        with pytest.raises(duckdb.Error) as away:
            connection.execute("SELECT sum(a) FROM t")
    error = plain(away.value)
    assert isinstance(error, LakeAwayError)
    assert not isinstance(error, FilesGoneError)


@pytest.mark.parametrize(
    ("said", "away"),
    [
        ("UNKNOWN (HTTP status 503) during HeadObject operation: No response body.", True),
        ("ACCESS_DENIED during HeadObject operation: No response body.", False),
    ],
)
def test_only_a_store_that_may_answer_later_is_away(said: str, away: bool) -> None:
    text = f"Invalid Input Error: arrow_scan: get_next failed(): IOError: When reading 'a' in bucket 'b': AWS Error {said}"
    assert isinstance(plain(duckdb.InvalidInputException(text)), LakeAwayError) == away


class Away(LocalFolder):
    """A table in a store that is away: nothing can be said of it."""

    def child(self, name: str) -> Away:
        return Away(self.path / name)

    def exists(self) -> bool:
        raise StoreAwayError("it does not answer")


def test_a_version_that_a_store_does_not_tell_of_is_not_taken_for_gone(tmp_path: Path) -> None:
    with (
        duckdb.connect() as cursor,
        pytest.raises(StoreAwayError),
        DatasetTables(Away(tmp_path)).held(cursor, {"messages": 1}),
    ):
        pass


@pytest.mark.parametrize(
    "text", ["FileNotFoundError: a.parquet", "IO Error: no file", "No such file, [errno 2]"]
)
def test_texts_of_messages_are_no_errors_about_files(standing: EmbeddedEngine, text: str) -> None:
    for statement in (f"SELECT error('{text}')", f"SELECT CAST('{text}' AS INT)"):
        with pytest.raises(LakeError) as failed:
            standing.query(statement).read_all()
        assert not isinstance(failed.value, FilesGoneError), statement
