"""A gateway on a disk that fails an fdatasync, or loses its power: what clients were told stays true."""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from tests.suite.evidence import EVIDENCE
from tests.support.logs.contents import stored
from tests.support.waiting import LIMIT_S, wait_until

ROUNDS = 15 if EVIDENCE else 1
CUTS_A_ROUND = 5 if EVIDENCE else 2
ANSWERED_BEFORE_A_CUT = 30


class FaultyGateway(Gateway):
    """A gateway run by `faulty_gateway.py`; its store is alone on its disk."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.disk = folder / "disk"
        self.disk.mkdir(parents=True)
        self._control = folder / "control"
        os.mkfifo(self._control)
        driver = Path(__file__).parents[1] / "support" / "brokers" / "faulty_gateway.py"
        wrapper = [sys.executable, str(driver), str(self.disk / "store"), str(self._control)]
        super().__init__(
            folder,
            wrapper=wrapper,
            **OPTIONS,
            flushDiskType="SYNC_FLUSH",
            storePathRootDir=str(self.disk / "store"),
            mappedFileSizeCommitLog=str(1 << 20),
            lakeJournalSnapshotBytes="131072",
            **options,
        )

    @property
    def store(self) -> Path:
        return self.disk / "store"

    def tell(self, *words: str) -> Path:
        """Gives an order; the file that says when it is done."""
        done = self.folder / f"done-{time.monotonic_ns()}"
        with self._control.open("w") as control:
            control.write(" ".join([*words, str(done)]) + "\n")
        return done


SENDERS = 4


class Senders:
    """Threads that send until `stop`; what was answered with OK, and every other status."""

    def __init__(self, address: str, count: int = SENDERS) -> None:
        self.sent: dict[str, bytes] = {}
        self.refused: list[pb.Status] = []
        self.refused_once = set[int]()
        """Senders that were told that nothing is stored any more: none of their sends is under way that began before."""
        self._stopping = False
        self._threads = [threading.Thread(target=self._send, args=(address, n)) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, count: int) -> None:
        """Until so many more are answered with OK."""
        enough = len(self.sent) + count
        wait_until(lambda: len(self.sent) >= enough)

    def stop(self) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "a send hangs"

    def _send(self, address: str, number: int) -> None:
        client = Client(address, f"sender-{number}")
        rng = random.Random(number)
        try:
            while not self._stopping:
                body = rng.randbytes(rng.choice((10, 1000, 30_000)))
                answer = client.send("t", body)
                if answer.status.code == pb.OK:
                    self.sent[answer.entries[0].message_id] = body
                else:
                    self.refused.append(answer.entries[0].status if answer.entries else answer.status)
                    self.refused_once.add(number)
        except grpc.RpcError as error:
            if not self._stopping:
                raise AssertionError("a send failed") from error
        finally:
            client.channel.close()


def healthy(gateway: FaultyGateway) -> Gateway:
    """A gateway over its store that leaves the disk as it is."""
    return Gateway(gateway.folder / "again", **OPTIONS, storePathRootDir=str(gateway.store))


def take_all(client: Client, group: str) -> dict[str, bytes]:
    """Bodies by message id of all that a new group receives."""
    found: dict[str, bytes] = {}
    while messages := client.receive("t", group, invisible_ms=60_000)[1]:
        found |= {m.system_properties.message_id: m.body for m in messages}
    return found


def test_a_failed_fdatasync(tmp_path: Path) -> None:
    """No send is answered as stored any more, and the stop says that the log was not written."""
    with FaultyGateway(tmp_path, flushIntervalCommitLog="20") as gateway:
        client = Client(gateway.address)
        senders = Senders(gateway.address)
        senders.wait_for(50)
        wait_until(gateway.tell("fail").exists)
        wait_until(lambda: len(senders.refused) >= 50 and len(senders.refused_once) == SENDERS)
        answered = len(senders.sent)
        # flushes by interval come in between, and would succeed: that must not count
        wait_until(lambda: len(senders.refused) >= 300)
        senders.stop()
        assert len(senders.sent) == answered
        sent = dict(senders.sent)
        pending = [each for each in senders.refused if each.code == pb.MASTER_PERSISTENCE_TIMEOUT]
        later = [each for each in senders.refused if each.code != pb.MASTER_PERSISTENCE_TIMEOUT]
        assert 0 < len(pending) <= 4, "every send that waited is answered as not persisted, once"
        assert {each.code for each in later} == {pb.INTERNAL_SERVER_ERROR}
        for each in senders.refused:
            assert "could not be flushed" in each.message
            assert "Input/output error" in each.message
            assert "read-only" in each.message
            assert "restart" in each.message
        again = client.send("t", b"again")
        assert again.status.code == pb.INTERNAL_SERVER_ERROR
        received = take_all(client, "while-read-only")
        assert set(sent) <= set(received), "what was answered can still be received"
        assert {i: received[i] for i in sent} == sent
        messages = client.receive("t", "acknowledging", invisible_ms=60_000)[1]
        acked = client.ack("t", "acknowledging", *messages)
        assert acked.status.code == pb.INTERNAL_SERVER_ERROR, (
            "an acknowledgement that nothing keeps is refused"
        )
        assert "read-only" in acked.status.message
        client.channel.close()
        assert gateway.terminate() == 255
        log = gateway.log.read_text()
        assert log.count("nothing is journaled any more") == 1
        assert "lakebroker: the broker stopped, but the end of its log may not be on disk: " in log
        assert "the last snapshot could not be written" in log
        assert "Traceback" not in log
        assert (gateway.store / "abort").exists(), "the next start looks at all of it"
    with healthy(gateway) as again:
        client = Client(again.address)
        found = take_all(client, "after-restart")
        assert {i: found.get(i) for i in sent} == sent
        assert client.send("t", b"well again").status.code == pb.OK
        client.channel.close()
        assert again.terminate() == 0
    assert set(sent) <= stored(gateway.store).keys()


@pytest.mark.timeout(7200 if EVIDENCE else 600)
def test_power_cuts_under_load(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    answered = cuts = 0
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        left: list[tuple[Path, dict[str, bytes]]] = []
        with FaultyGateway(folder) as gateway:
            senders = Senders(gateway.address)
            client = Client(gateway.address)
            for cut in range(CUTS_A_ROUND):
                senders.wait_for(ANSWERED_BEFORE_A_CUT)
                _, messages = client.receive("t", "g", invisible_ms=60_000)
                if messages:
                    client.ack("t", "g", *messages[:5])
                known = dict(senders.sent)  # answered before the order: before the cut
                target = folder / f"cut-{cut}"
                wait_until(gateway.tell("cut", str(target)).exists)
                left.append((target, known))
            senders.stop()
            client.channel.close()
        for target, known in left:
            with Gateway(folder / "again", **OPTIONS, storePathRootDir=str(target / "store")) as gateway:
                client = Client(gateway.address)
                found = take_all(client, "new")
                assert {i: found.get(i) for i in known} == known
                assert client.send("t", b"goes on").status.code == pb.OK
                client.channel.close()
                assert gateway.terminate() == 0
            log = gateway.log.read_text()
            assert "damage in the log" not in log
            assert set(known) <= stored(target / "store").keys()
        answered += len(senders.sent)
        cuts += len(left)
        shutil.rmtree(folder)
    record_property("rounds", ROUNDS)
    record_property("cuts", cuts)
    record_property("answered", answered)
    assert answered > 50 * ROUNDS
