"""Earlier lakebrokers, built from this repository's history, and the stores that they wrote (`tests/data/stores`).

`python -m tests.support.brokers.earlier_versions COMMIT` writes such a store anew.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.cached import filled_once
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import CACHE, PATIENT, ROOT, Gateway
from lakebroker_testing.messages import message, send_request
from tests.support.packages.built_wheel import build_wheel

BEFORE_FOLDERS = "1a931a39dbeaa9281e5887bd75a2ecce46b99a8c"
"""The last one before the broker's modules stood in folders: normal messages only, journal of version 1."""
BEFORE_ERASURES = "7fa7ea87d1cf16e8423fdcac48bec70df210b124"
"""The last one before erasures: messages of all types, journal of versions 1 and 2."""
STORES = Path(__file__).parents[2] / "data" / "stores"
TOPIC, LATER, ORDERED, PAID = "orders", "reminders", "ledger", "payments"
FAR_S = 9 * 365 * 86_400
"""How far away the delivery time is that has not come: with the options below it may be."""
OPTIONS = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "brokerName": "broker-a",
    "defaultTopicQueueNums": "2",
    "minInvisibleTimeMillsForRecv": "200",
    "grpcClientConsumerMinLongPollingTimeoutMillis": "200",
    "metricsPromExporterPort": "-1",
    "fileReservedTime": "1000000",
}
LATER_OPTIONS = {"maxDelayTimeMills": "0", "timerMaxDelaySec": "315360000", "recallMessageEnable": "true"}
"""Of those that know delivery times."""


class HistoryError(Exception):
    """The repository's history has no such commit."""


class Expected(NamedTuple):
    """What a store holds: bodies of `TOPIC` by what the group `billing` had done with them, and so on."""

    acked: list[str]
    in_flight: list[str]
    """Received once, never settled; their time is over by now."""
    not_received: list[str]
    dead: list[str]
    """In the dead letters of `audit`."""
    due: list[str]
    """Of `LATER`: its delivery time has come since."""
    recall_handle: str
    """Of the one whose delivery time has not."""
    ordered: list[str]
    """Of `ORDERED`, in the one message group; nothing received."""
    half: dict[str, str]
    """Ids of the half message of `PAID`, whose transaction has not ended."""


def unpacked(commit: str, folder: Path) -> Expected:
    """Puts the store that this version wrote into `folder/store`."""
    with tarfile.open(STORES / f"{commit[:7]}.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    store = folder / "store"
    store.chmod(0o700)
    expected = Expected(**json.loads((folder / "expected.json").read_text()))
    for path in (store / "commitlog").iterdir():  # kept without the zeros at its end
        with path.open("r+b") as file:
            file.truncate(1 << 20)
    return expected


def installed(commit: str) -> Path:
    """A folder with what the wheel of that commit has, built once and kept. Raises HistoryError and ProcessError."""
    folder = CACHE / f"lakebroker-{commit[:7]}"
    with filled_once(folder) as missing:
        if missing:
            _build(commit, folder)
    return folder


def earlier(commit: str, folder: Path, **options: str) -> Gateway:
    """A gateway of that commit, over the store in `folder/store`."""
    code = installed(commit)
    return Gateway(folder, wrapper=["env", "-C", str(code), f"PYTHONPATH={code}"], **{**OPTIONS, **options})


def later_options(commit: str) -> dict[str, str]:
    return {} if commit == BEFORE_FOLDERS else LATER_OPTIONS


def _build(commit: str, folder: Path) -> None:
    """Raises HistoryError and ProcessError."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise HistoryError(
            f"the history of {ROOT} has no commit {commit}: {archive.stderr.decode().strip()}; "
            "fetch all of it (git fetch --unshallow)"
        )
    with tempfile.TemporaryDirectory() as taken:
        sources = Path(taken) / "sources"
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
            packed.extractall(sources, filter="data")
        wheel = build_wheel(sources, Path(taken))
        for each in folder.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        with zipfile.ZipFile(wheel) as contents:
            contents.extractall(folder)


def _write(commit: str) -> Path:
    """Writes the store with a gateway of that commit, stops it cleanly, and packs what is needed."""
    with tempfile.TemporaryDirectory() as taken:
        folder = Path(taken)
        with earlier(commit, folder, **PATIENT, **later_options(commit)) as gateway:
            client = Client(gateway.address)
            expected = _usual(client)
            if commit != BEFORE_FOLDERS:
                expected |= _put_off(client)
            client.close()
            assert gateway.terminate() == 0, gateway.log.read_text()
        return _pack(commit, folder, expected)


def _usual(client: Client) -> dict[str, Any]:
    bodies = [f"order-{number}" for number in range(12)]
    for number, body in enumerate(bodies):
        client.send(TOPIC, body.encode(), tag="paid", keys=[f"key-{number}"])
    _, first = client.receive(TOPIC, "billing", batch=8, invisible_ms=10_000)
    _, others = client.receive(TOPIC, "audit", batch=1, invisible_ms=10_000)
    client.ack(TOPIC, "billing", *first[:5])
    client.dead_letter(TOPIC, "audit", others[0])
    time.sleep(1)  # what the journal batches is in the log
    taken = [each.body.decode() for each in first]
    return {
        "acked": taken[:5],
        "in_flight": taken[5:],
        "not_received": [body for body in bodies if body not in taken],
        "dead": [others[0].body.decode()],
        "due": [],
        "recall_handle": "",
        "ordered": [],
        "half": {},
    }


def _put_off(client: Client) -> dict[str, Any]:
    found = {}
    for name, in_s in (("soon", 30), ("far", FAR_S)):
        due = pb.Message().system_properties.delivery_timestamp
        due.FromSeconds(int(time.time()) + in_s)
        sent = client.send(LATER, name.encode(), message_type=pb.DELAY, delivery_timestamp=due)
        found[name] = sent.entries[0].recall_handle
    for number in range(3):
        client.send(ORDERED, f"line-{number}".encode(), message_type=pb.FIFO, message_group="account-1")
    half = message(PAID, b"half", message_type=pb.TRANSACTION)
    entry = client.call("SendMessage", send_request(half)).entries[0]
    return {
        "due": ["soon"],
        "recall_handle": found["far"],
        "ordered": [f"line-{number}" for number in range(3)],
        "half": {"message_id": entry.message_id, "transaction_id": entry.transaction_id},
    }


def _pack(commit: str, folder: Path, expected: dict[str, Any]) -> Path:
    store, packed = folder / "store", STORES / f"{commit[:7]}.tar.gz"
    shutil.rmtree(store / "lakecompiled", ignore_errors=True)
    for path in (store / "config").glob("trial-*"):  # a private key
        path.unlink()
    for path in (store / "commitlog").iterdir():
        end = len(path.read_bytes().rstrip(b"\0"))
        with path.open("r+b") as file:
            file.truncate(end)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))
    STORES.mkdir(parents=True, exist_ok=True)
    with tarfile.open(packed, "w:gz") as archive:
        for name in ("expected.json", "store"):
            archive.add(folder / name, name, filter=_anonymous)
    return packed


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    print(_write(sys.argv[1]))
