"""Brokers that the data source finds at a name server: they join, leave and move while it reads. Without Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakebroker_testing.gateway import Gateway, NameServer
from lakebroker_testing.logs import written
from lakebroker_testing.prestarted import run
from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.reput_options import Goal, ReputOptions, checked
from structured_streaming.source import name_servers, stream
from structured_streaming.source.access import Access
from structured_streaming.source.data_source import LakebrokerDataSource
from structured_streaming.source.log_ends import LogEnds
from tests.support.peers.answering import answering, frame
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is away here has closed its port; what is late on a busy machine is not away."""
    for name in ("ASK_S", "LOOK_S"):
        monkeypatch.setattr(name_servers, name, LIMIT_S)
    monkeypatch.setattr(stream, "PATIENCE_S", LIMIT_S)


class Rows:
    """Reads batches as Spark asks for them, and counts the rows of each broker."""

    def __init__(self, notes: Path, **options: str) -> None:
        self._notes = notes
        source = LakebrokerDataSource({"notes": str(notes), **options})
        self.stream: Any = source.streamReader(source.schema())
        self.offset = self.stream.initialOffset()
        self.counts: Counter[str] = Counter()

    def until(self, reached: Callable[[], bool]) -> None:
        """Reads on until that is so."""

        def read_on() -> bool:
            if not reached():
                self._read()
            return reached()

        wait_until(read_on, lambda: f"more than {self.counts}; {self.said()}")

    def _read(self) -> None:
        latest = self.stream.latestOffset(self.offset, self.stream.getDefaultReadLimit())
        for part in self.stream.partitions(self.offset, latest) if latest != self.offset else ():
            for batch in self.stream.read(part):
                self.counts.update(batch["broker"].to_pylist())
        self.offset = latest

    def said(self) -> str:
        return self._notes.read_text() if self._notes.exists() else ""


def gateway(folder: Path, name: str, count: int, name_server: NameServer) -> Gateway:
    if not (folder / name).exists():
        written(folder / name / "store", name, count)
    return Gateway(folder / name, brokerName=name, namesrvAddr=name_server.address)


def registered(server: NameServer, count: int) -> None:
    """Waits until so many brokers are known: a gateway serves before it is registered."""
    known = name_servers.NameServers([server.address])
    wait_until(lambda: len(known.look().targets) == count, f"registration of {count} brokers")


def test_a_union_asks_all_that_are_registered(tmp_path: Path) -> None:
    told: list[str] = []
    with NameServer(tmp_path / "ns") as server:
        ends = LogEnds([], Access(), [server.address], told.append)
        with pytest.raises(SourceError, match="know no lakebroker"):
            ends.now()
        with gateway(tmp_path, "broker-a", 100, server):
            registered(server, 1)
            assert ends.now().logs.keys() == {"broker-a"}
            with gateway(tmp_path, "broker-b", 200, server):
                registered(server, 2)
                assert ends.now().logs.keys() == {"broker-a", "broker-b"}
                server.terminate()
                for _ in range(2):
                    assert ends.now().logs.keys() == {"broker-a", "broker-b"}
            ends.close()
    assert len(told) == 1
    assert "no name server answers" in told[0]
    with pytest.raises(UnreachableError, match="no name server answers"):
        LogEnds([], Access(), [server.address]).now()


def test_brokers_join_move_and_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_servers, "POLL_S", 0.2)
    with NameServer(tmp_path / "ns") as server, gateway(tmp_path, "broker-a", 100, server) as first:
        registered(server, 1)
        rows = Rows(tmp_path / "notes", namesrv=server.address)
        rows.until(lambda: rows.counts == {"broker-a": 100})
        with gateway(tmp_path, "broker-b", 200, server) as second:
            rows.until(lambda: rows.counts == {"broker-a": 100, "broker-b": 200})
            assert f"broker broker-b joined: {second.address}\n" in rows.said()
            second.terminate()
            left = "broker broker-b left the name servers and is no longer asked"
            rows.until(lambda: left in rows.said())
        with gateway(tmp_path, "broker-b", 200, server) as second:  # on other ports
            joined = f"broker broker-b joined: {second.address}\n"
            rows.until(lambda: joined in rows.said())
            server.terminate()
            rows.until(lambda: "no name server answers" in rows.said())
            before = len(rows.said().splitlines())
            second.kill()
            rows.until(lambda: f"no broker at {second.address}" in rows.said())
        first.terminate()
        rows.until(lambda: f"no broker at {first.address}" in rows.said())
    assert len(rows.said().splitlines()) == before + 2, rows.said()
    assert rows.counts == {"broker-a": 100, "broker-b": 200}
    rows.stream.stop()


def test_a_broker_that_a_name_server_forgot_is_read_while_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_servers, "POLL_S", 0.2)
    brokers: dict[str, str] = {}
    looks = 0

    def answer() -> bytes:
        nonlocal looks
        looks += 1
        table = {name: {"brokerAddrs": {"0": address}} for name, address in brokers.items()}
        return frame({"code": 0, "opaque": 1}, json.dumps({"brokerAddrTable": table}).encode())

    def looked_again() -> Callable[[], bool]:
        until = looks + 2
        return lambda: looks >= until

    with (
        NameServer(tmp_path / "ns") as server,
        gateway(tmp_path, "broker-a", 100, server) as one,
        gateway(tmp_path, "broker-b", 100, server) as other,
        answering(answer=answer) as address,
    ):
        brokers |= {each.folder.name: f"127.0.0.1:{each.remoting_port}" for each in (one, other)}
        rows = Rows(tmp_path / "notes", namesrv=address)
        rows.until(lambda: rows.counts == {"broker-a": 100, "broker-b": 100})
        del brokers["broker-b"]
        rows.until(looked_again())
        run("topic", "create", "orders", "--gateway", other.address, check=True)
        end = rows.offset["broker-b"]["offset"]
        rows.until(lambda: rows.offset["broker-b"]["offset"] > end)
        assert rows.said() == ""
        other.kill()
        rows.until(lambda: "broker broker-b left the name servers and is no longer asked" in rows.said())
        rows.until(looked_again())
        assert len(rows.said().splitlines()) == 1
    rows.stream.stop()


def test_a_run_that_ends_by_itself_takes_those_that_are_there(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")

    def refused(address: str) -> str:
        """The one line that ends a reput before Spark starts."""
        done = run("reput", "--namesrv", address, "--lake", lake)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        return line

    with NameServer(tmp_path / "ns") as server:
        assert refused(server.address) == f"lakebroker: name servers {server.address} know no lakebroker"
        with gateway(tmp_path, "broker-a", 1, server) as one, gateway(tmp_path, "broker-b", 1, server) as two:
            registered(server, 2)
            named = checked(ReputOptions(lake, namesrv=server.address, once=True))
            assert set(named.brokers.split(",")) == {one.address, two.address}
            assert named.namesrv == ""
            assert set(json.loads(Goal(named).ends)) == {"broker-a", "broker-b"}
            going_on = ReputOptions(lake, namesrv=server.address)
            assert checked(going_on) == going_on
    assert refused(server.address).startswith(f"lakebroker: no name server answers: {server.address}: ")
    assert not (tmp_path / "lake").exists()
