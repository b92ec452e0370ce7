"""What goes wrong has the status that tells a client what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import grpc
import pytest

from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.embedded.apart import EngineEndedError, _rebuilt
from structured_streaming.embedded.worker import _failed
from structured_streaming.errors import LakeError, StoreAwayError
from structured_streaming.flight.failures import Hidden, status_of
from structured_streaming.storage.location import lake_folder


def test_a_statement_whose_engine_ended_may_be_asked_again() -> None:
    status = status_of(EngineEndedError())
    assert status is not None
    assert status[0] is grpc.StatusCode.UNAVAILABLE
    assert "ask again" in status[1]


def without_store() -> LakeError:
    error = LakeError("table messages: it does not answer")
    error.__cause__ = StoreAwayError("it does not answer")
    return error


@pytest.mark.parametrize(
    "error",
    [without_store(), StoreAwayError("it does not answer"), OSError(errno.EMFILE, "Too many open files")],
)
def test_a_lake_that_is_away_may_be_asked_again(error: Exception) -> None:
    """Also where the engine is in a process of its own, which an error leaves without its causes."""
    _, *told = _failed(error)
    assert status_of(_rebuilt(*told)) == (grpc.StatusCode.UNAVAILABLE, str(error))


def test_clients_are_not_told_where_the_lake_is(tmp_path: Path) -> None:
    lake, link = tmp_path / "a lake", tmp_path / "link"
    (lake / "messages" / "_delta_log").mkdir(parents=True)
    link.symlink_to(lake)
    with pytest.raises(LakeError) as broken:
        Snapshot(lake_folder(str(link)).child("messages"))
    assert str(lake) in str(broken.value)
    hidden = Hidden({str(link): "LAKE", os.path.relpath(tmp_path / "store"): "STORE"})
    status = status_of(broken.value, hidden)
    assert status is not None
    assert status[1].startswith("LAKE/messages/_delta_log holds neither")
    for text, said in (
        (f"file://{lake}/messages/a.parquet".replace(" ", "%20"), "LAKE/messages/a.parquet"),
        (f"--lake {link}; {lake}, {lake}.", "--lake LAKE; LAKE, LAKE."),
        (f"{tmp_path}/store/commitlog", "STORE/commitlog"),
        (f"{lake}2/x {tmp_path}/lake", f"{lake}2/x {tmp_path}/lake"),
    ):
        assert status_of(LakeError(text), hidden) == (grpc.StatusCode.INVALID_ARGUMENT, said)
    for location in ("", ".", "./lake", "/"):
        assert Hidden({location: "LAKE"}).taken_out("a / b ./lake lake .") == "a / b ./lake lake ."
