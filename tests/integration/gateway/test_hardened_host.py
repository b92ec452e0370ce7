"""A host where nothing but the store can be written to: installed files read-only, no home."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import ROOT, Gateway
from store.kernels.code_folders import CODE_FOLDERS, STORE_FOLDER
from tests.suite.evidence import LONG, rounds
from tests.support.machines.read_only import read_only
from tests.support.waiting import LIMIT_S

CRASHES = rounds(1, 2)

COMMANDS = """
import sys
from typer.testing import CliRunner
from broker_gateway.cli.main import app
for words in ("inspect --json", "verify --json", "rebuild"):
    command, *options = words.split()
    done = CliRunner().invoke(app, ["store", command, sys.argv[1], *options])
    assert done.exit_code == 0, done.output
    print(done.stdout if command == "inspect" else "")
"""
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


def hardened(writable: Path) -> list[str]:
    """A command's beginning that leaves it one folder to write to, and no home."""
    no_home = ["env", "-u", "TMPDIR", "HOME=/dev/null", "XDG_CACHE_HOME=", "PYTHONDONTWRITEBYTECODE=1"]
    return [*no_home, *read_only(writable)]


def run(writable: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*hardened(writable), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=LIMIT_S,
    )


def keep_code(store: Path) -> None:
    """As earlier starts left it, here those of this user, if there were any."""
    with Gateway(store.parent) as earlier:
        assert earlier.terminate() == 0
    users = CODE_FOLDERS.wanted()[-1]
    if users.exists():
        kept = shutil.copytree(users, store / STORE_FOLDER)
        for path in (kept, *kept.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize(
    "kept",
    [pytest.param(True, id="code kept before"), pytest.param(False, id="all is compiled", marks=LONG)],
)
def test_every_start_succeeds_and_every_command_scans(tmp_path: Path, kept: bool) -> None:
    if kept:
        keep_code(tmp_path / "store")
    with Gateway(tmp_path, wrapper=hardened(tmp_path), **OPTIONS) as gateway:
        for number in range(CRASHES):
            client = Client(gateway.address)
            assert client.send("t", f"m{number}".encode()).entries
            client.channel.close()
            gateway.kill()
            gateway.start()
        client = Client(gateway.address)
        received = {m.body for _ in range(3) for m in client.receive("t", "g")[1]}
        assert received == {b"m%d" % number for number in range(CRASHES)}, "answered before the crashes"
        client.channel.close()
        assert gateway.terminate() == 0
    assert "Traceback" not in gateway.log.read_text()
    code = gateway.store / STORE_FOLDER
    assert code.stat().st_mode & 0o777 == 0o700
    assert any(code.iterdir())
    for path in (gateway.store, *gateway.store.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path

    seen = run(tmp_path, sys.executable, "-c", COMMANDS, str(gateway.store))
    assert seen.returncode == 0, seen.stderr
    assert json.loads(seen.stdout)["topics"]["t"]["records"] == CRASHES
    read = run(tmp_path, sys.executable, "-c", READ_BY_PATH, str(gateway.store))
    assert [int(line) >= CRASHES for line in read.stdout.split()] == [True, True], read.stderr
