"""What a start says of the store that it finds."""

from __future__ import annotations

import shutil
from pathlib import Path

from structlog.testing import capture_logs

from broker_gateway.app.open_store import TOLD, open_store
from broker_gateway.config.gateway import load_config
from store.log.record import Host, PendingRecord

HOST = Host("127.0.0.1", 10911)
SMALL = {"mappedFileSizeCommitLog": str(16 << 20)}


def opened(root: Path, **given: str) -> list[dict[str, object]]:
    """The warnings of a start."""
    options = {"storePathRootDir": str(root), "brokerIP1": "127.0.0.1", **given}
    with capture_logs() as logs:
        open_store(load_config(None, options, {})[0], lambda: False).close()
    return [dict(each) for each in logs if each["log_level"] == "warning"]


def test_a_segment_size_without_effect_is_warned_about(tmp_path: Path) -> None:
    assert opened(tmp_path / "store", mappedFileSizeCommitLog="1048576") == []
    (said,) = opened(tmp_path / "store", mappedFileSizeCommitLog="2097152")
    assert "mappedFileSizeCommitLog" in str(said["event"])
    assert (said["given"], said["store"]) == (2097152, 1048576)
    assert opened(tmp_path / "store") == []


def test_a_folder_that_others_could_read_is_named_with_its_modes(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (said,) = opened(tmp_path, mappedFileSizeCommitLog="1048576")
    assert (said["path"], said["mode"], said["now"], said["files"]) == (str(tmp_path), "0777", "0700", 1)


def test_many_files_of_the_index_that_cannot_be_read_have_few_lines(tmp_path: Path) -> None:
    opened(tmp_path, mappedFileSizeCommitLog="1048576")
    for number in range(100):
        (tmp_path / "lakeindex" / f"{number + 1:020d}").write_bytes(b"nothing")
    told = [each for each in opened(tmp_path) if "queue index" in str(each["event"])]
    assert [each.get("files") for each in told] == [*[None] * TOLD, 100 - TOLD]


def test_a_scan_after_a_crash_is_announced_before_it_begins(tmp_path: Path) -> None:
    def lines() -> list[dict[str, object]]:
        options = {"storePathRootDir": str(tmp_path), "brokerIP1": "127.0.0.1"}
        with capture_logs() as logs:
            store = open_store(load_config(None, {**options, **SMALL}, {})[0], lambda: False)
            store.append([PendingRecord("t", 0, b"", b"", 1000, HOST.packed)])
            store.close()
        return [dict(each) for each in logs]

    first, second = lines(), lines()
    shutil.rmtree(tmp_path / "lakeindex")
    (tmp_path / "abort").touch()
    third = lines()
    assert not any("cleanly" in str(each["event"]) for each in [*first, *second])
    announced, recovered = [
        number for number, each in enumerate(third) if "cleanly" in str(each["event"]) or "records" in each
    ]
    assert announced < recovered
    assert third[announced]["mib"] == 16
