"""`lakebroker sidecar` as a process, beside a writer that goes on; what the reput reads of it."""

from __future__ import annotations

import threading
from pathlib import Path

import grpc
import pytest

from broker_gateway.transport.certificates import trial_certificate
from lakebroker_testing.gateway import ProcessError
from store.log_reader import LogReader
from structured_streaming.errors import SourceError
from structured_streaming.source.access import Access
from structured_streaming.source.remote import BrokerLog
from tests.support.brokers.sidecar import Sidecar
from tests.support.lakes.checks import assert_exact, rows
from tests.support.logs.real_store import RealStore
from tests.support.peers.relay import Relay
from tests.support.waiting import LIMIT_S

TOKEN = "a token of some length"
NOW_MS = 1 << 41
"""Behind the start of any host."""


def test_a_lake_of_a_log_that_goes_on_has_every_row_once(tmp_path: Path) -> None:
    store, lake = RealStore(tmp_path / "store"), tmp_path / "lake"
    store.messages(200, NOW_MS)
    before = {path: path.stat().st_mtime_ns for path in [store.root, store.root / "commitlog"]}
    with Sidecar(tmp_path / "sidecar", store.root) as sidecar:
        filled = sidecar.filling(lake)
        writer = threading.Thread(target=lambda: store.messages(2000, NOW_MS))
        writer.start()
        for _ in range(10):
            filled.reach(store.end // 2)
        writer.join()
        filled.reach(store.end)
        reader = LogReader(store.root, broker="broker-a", log_id=sidecar.log_id)
        assert assert_exact(lake, reader)["messages"] == 2200
        assert sorted(path.name for path in store.root.iterdir()) == ["commitlog"]
        assert before[store.root] == store.root.stat().st_mtime_ns

        first = sidecar.log_id
        assert sidecar.terminate() == 0
        store.messages(100, NOW_MS)
        sidecar.start()
        assert sidecar.log_id == first
        again = sidecar.filling(lake)
        again.reach(store.end)
        assert assert_exact(lake, reader)["messages"] == 2300
        gone = store.delete_oldest(2)
        store.messages(100, NOW_MS)
        again.reach(store.end)
        assert rows(lake, "quarantine").num_rows == 0, "the lake had what was deleted"
        log = BrokerLog(sidecar.address, Access())
        assert log.describe().start == gone
        log.close()


def test_a_gap_of_a_sidecars_log_is_recorded(tmp_path: Path) -> None:
    store, lake = RealStore(tmp_path / "store"), tmp_path / "lake"
    store.messages(300, NOW_MS)
    with Sidecar(tmp_path / "sidecar", store.root) as sidecar:
        sidecar.filling(lake).reach(store.end)
        reached = store.end
        store.messages(2000, NOW_MS)
        begin = store.delete_oldest(3)
        sidecar.filling(lake).reach(store.end)
        (row,) = rows(lake, "quarantine").to_pylist()
        assert (row["reason"], row["physical_offset"], row["length"]) == ("missing", reached, begin - reached)


def test_a_log_that_lost_its_end_is_not_served(tmp_path: Path) -> None:
    store = RealStore(tmp_path / "store")
    store.messages(300, NOW_MS)
    with Sidecar(tmp_path / "sidecar", store.root) as sidecar:
        log = BrokerLog(sidecar.address, Access())
        assert log.describe(10_000, store.end - 1).end == store.end
        offset, size = store.places[-1]
        store.write(offset, bytes(size))
        with pytest.raises(SourceError, match=f"not the log any more that was served up to {store.end}"):
            log.describe()
        log.close()
        assert sidecar.terminate() == 0
        with pytest.raises(ProcessError, match="not the log any more"):
            sidecar.start()
        assert sidecar.process is not None
        assert sidecar.process.returncode == 255


def test_who_may_read_and_who_may_serve(tmp_path: Path) -> None:
    store, token = RealStore(tmp_path / "store"), tmp_path / "token"
    store.messages(10, NOW_MS)
    token.write_text(TOKEN)
    token.chmod(0o600)
    with Sidecar(tmp_path / "sidecar", store.root, f"--token-file={token}") as sidecar:
        log = BrokerLog(sidecar.address, Access(token.read_text()))
        assert log.describe(10_000, store.end - 1).end == store.end
        log.close()
        stranger = BrokerLog(sidecar.address, Access())
        with pytest.raises(SourceError, match="carries no token"):
            stranger.describe()
        stranger.close()
        with grpc.insecure_channel(sidecar.address) as channel:
            send = channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage", bytes, bytes)
            with pytest.raises(grpc.RpcError) as refused:
                send(b"", timeout=LIMIT_S)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(ProcessError, match="another sidecar has the state folder"):
            Sidecar(tmp_path / "sidecar", store.root).start()


def test_readers_over_tls(tmp_path: Path) -> None:
    store, token = RealStore(tmp_path / "store"), tmp_path / "token"
    store.messages(10, NOW_MS)
    token.write_text(TOKEN)
    token.chmod(0o600)
    certificate, key = trial_certificate(tmp_path / "own", "127.0.0.1")
    other, _ = trial_certificate(tmp_path / "other", "127.0.0.1")
    options = (f"--token-file={token}", "--set", f"tlsCertPath={certificate}")
    with pytest.raises(ProcessError, match="tlsKeyPath is missing; a certificate needs its key"):
        Sidecar(tmp_path / "keyless", store.root, *options).start()
    with (
        Sidecar(tmp_path / "sidecar", store.root, *options, "--set", f"tlsKeyPath={key}") as sidecar,
        Relay(sidecar.address) as line,
    ):

        def end(token: str | None, authority: Path) -> int:
            log = BrokerLog(line.address, Access(token, authority.read_bytes()))
            try:
                state = log.describe(10_000, store.end - 1)
                assert [data for _, data in log.read(state.log_id, state.start, state.end)]
                return state.end
            finally:
                log.close()

        assert end(TOKEN, certificate) == store.end
        for shown, said in (
            (None, "no token"),
            (TOKEN[:-1], "another token"),
            (f"{TOKEN}x", "another token"),
        ):
            with pytest.raises(SourceError, match=f"UNAUTHENTICATED: .*carries {said}"):
                end(shown, certificate)
        with pytest.raises(SourceError, match="certificate that is not trusted"):
            end(TOKEN, other)
        assert TOKEN.encode() not in line.seen
        assert b"topic-" not in line.seen
        assert TOKEN not in sidecar.log.read_text()


def test_what_the_brokers_file_says(tmp_path: Path) -> None:
    store, config = RealStore(tmp_path / "store"), tmp_path / "broker.conf"
    store.messages(10, NOW_MS)
    elsewhere = tmp_path / "log" / "commitlog"
    elsewhere.parent.mkdir()
    (store.root / "commitlog").rename(elsewhere)
    config.write_text(f"brokerName=named\nbrokerRole=SLAVE\nstorePathCommitLog={elsewhere}\n")
    with Sidecar(tmp_path / "sidecar", store.root, f"--config={config}", broker="") as sidecar:
        log = BrokerLog(sidecar.address, Access())
        state = log.describe(10_000, store.end - 1)
        assert (state.broker, state.end) == ("named", store.end)
        assert state.delay_levels is not None
        assert len(state.delay_levels) == 18, "RocketMQ's own where the file has none"
        log.close()
    with pytest.raises(ProcessError, match="give --broker NAME, or --config"):
        Sidecar(tmp_path / "nameless", store.root, broker="").start()
