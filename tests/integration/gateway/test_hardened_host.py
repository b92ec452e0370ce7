"""A host where nothing but the store can be written to: installed files read-only, no home."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import ROOT, Gateway, command

_ALL_READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind / && exec "$@"'
READ_BY_PATH = """
import sys
from structured_streaming.source.data_source import LakebrokerDataSource
from store.kernels.compiled import COMPILING
source = LakebrokerDataSource({"store": sys.argv[1]})
reader = source.reader(source.schema())
print(sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)))
assert COMPILING.loaded, "what the broker kept is found"
from pathlib import Path
from store.log_reader import LogReader
from store.scan import scan, split_properties
reader = LogReader(Path(sys.argv[1]))
found = [scan(data, at) for at, data, _ in reader.read_chunks(reader.min_offset, reader.readable_offset, 1 << 20)]
for each in found:
    split_properties(each)
print(sum(map(len, found)))
"""
SWAP = (
    "    BODY_START,\n    BODY_LENGTH,\n    PROPERTIES_START,",
    "    PROPERTIES_START,\n    BODY_LENGTH,\n    BODY_START,",
)
APPEND = """
import sys
from pathlib import Path
import numpy as np
from store import columns
from store.message_store import MessageStore
from store.opening import StoreOptions
from store.log.record import Host
options = StoreOptions(broker="b", cluster="c", store_host=Host("127.0.0.1", 1), segment_size=1 << 20)
store = MessageStore.open(Path(sys.argv[1]), options)
store.load_compiled()
row = np.zeros((1, columns.COLUMNS), dtype=np.int64)
row[0, [columns.BODY_START, columns.BODY_LENGTH, columns.PROPERTIES_START, columns.PROPERTIES_LENGTH]] = 0, 5, 4, 4
row[0, columns.BODY_CRC] = -1
pending = columns.PendingColumns("t", 0, bytes(8), b"bodys----", b"xxxxk\\x01v\\x02", row, 9, 1)
for _ in range(2):
    store.append_columns([pending])  # the first one makes the segment, by the plain path
(found,) = store.scan_from(0)
record = store.record(int(found.physical_offset[1]), int(found.size[1]))
print(bytes(record.body), record.properties_map().get("k"))
store.close()
"""


def hardened(writable: Path) -> list[str]:
    """A command's beginning that leaves it one folder to write to, and no home."""
    no_home = ["env", "HOME=/dev/null", "XDG_CACHE_HOME=", "PYTHONDONTWRITEBYTECODE=1"]
    return [*no_home, "unshare", "--map-root-user", "--mount", "sh", "-c", _ALL_READ_ONLY, str(writable)]


def run(writable: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*hardened(writable), *arguments], capture_output=True, text=True, cwd=ROOT, check=False, timeout=280
    )


@pytest.mark.timeout(600)
def test_every_start_succeeds_and_every_command_scans(tmp_path: Path) -> None:
    with Gateway(tmp_path, wrapper=hardened(tmp_path), **OPTIONS) as gateway:
        for number in range(2):
            client = Client(gateway.address)
            assert client.send("t", f"m{number}".encode()).entries
            client.channel.close()
            gateway.kill()
            gateway.start()
        client = Client(gateway.address)
        received = {m.body for _ in range(3) for m in client.receive("t", "g")[1]}
        assert received == {b"m0", b"m1"}, "answered before the crashes"
        client.channel.close()
        assert gateway.terminate() == 0
    assert "Traceback" not in gateway.log.read_text()
    code = gateway.store / "lakecompiled"
    assert code.stat().st_mode & 0o777 == 0o700
    assert any(code.iterdir())
    for path in (gateway.store, *gateway.store.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path

    seen = run(tmp_path, *command("store", "inspect", str(gateway.store), "--json"))
    assert seen.returncode == 0, seen.stderr
    assert json.loads(seen.stdout)["topics"]["t"]["records"] == 2
    for arguments in (("verify", "--json"), ("rebuild",)):
        done = run(tmp_path, *command("store", arguments[0], str(gateway.store), *arguments[1:]))
        assert done.returncode == 0, done.stderr
    read = run(tmp_path, sys.executable, "-c", READ_BY_PATH, str(gateway.store))
    assert [int(line) >= 2 for line in read.stdout.split()] == [True, True], read.stderr


def test_a_changed_layout_never_meets_code_kept_before(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(ROOT / "store", sources / "store", ignore=shutil.ignore_patterns("__pycache__"))

    def append(folder: str) -> str:
        environment = {
            **os.environ,
            "PYTHONPATH": str(sources),
            "LAKEBROKER_lakeCompiledCodePath": str(tmp_path),
        }
        done = subprocess.run(
            [sys.executable, "-c", APPEND, str(tmp_path / folder)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
            timeout=280,
        )
        return done.stdout.strip() or done.stderr

    assert append("before") == "b'bodys' v"
    columns = sources / "store" / "columns.py"
    text = columns.read_text()
    assert SWAP[0] in text
    columns.write_text(text.replace(*SWAP))
    assert append("after") == "b'bodys' v"
