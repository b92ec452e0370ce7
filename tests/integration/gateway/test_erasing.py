"""Erasing by AdminService of a gateway process: over gRPC, remoting, the log service and by path nobody gets what is erased."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from broker_gateway.protocol.codes import RequestCode, ResponseCode
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from store.log.record import decode_record
from store.log_source import FolderLog, LogSource
from structured_streaming.source.access import Access
from structured_streaming.source.logs import open_log
from tests.support.rocketmq.requests import ask, pull

COUNT = 8


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    options = {**OPTIONS, "defaultTopicQueueNums": "1", "flushIntervalCommitLog": "60000"}
    with Gateway(tmp_path_factory.mktemp("erasing"), **options) as made:
        yield made


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    made = Client(gateway.address)
    yield made
    made.close()


def send(client: Client, topic: str) -> list[str]:
    """Ids; every other message has the key `gone`."""
    answers = [
        client.send(topic, b"%d" % number, keys=["gone" if number % 2 else f"k{number}"])
        for number in range(COUNT)
    ]
    assert {each.status.code for each in answers} == {pb.OK}
    return [each.entries[0].message_id for each in answers]


def bodies(client: Client, topic: str, group: str) -> list[bytes]:
    found: list[bytes] = []
    while some := client.receive(topic, group)[1]:
        client.ack(topic, group, *some)
        found += [each.body for each in some]
    return found


LEFT = [b"%d" % number for number in range(0, COUNT, 2)]


def test_nobody_gets_it_over_any_protocol(gateway: Gateway, client: Client) -> None:
    ids = send(client, "t")
    answer = client.erase("t", keys=["gone"])
    assert [each.message_id for each in answer.records] == ids[1::2]
    assert {(each.topic, tuple(each.keys), each.kept_until_ms) for each in answer.records} == {
        ("t", ("gone",), 0)  # its segment is being written to
    }
    assert answer.new_records == COUNT // 2
    assert bodies(client, "t", "g") == LEFT
    pulled, position, at = [], 0, 0
    while at < COUNT:
        found = pull(gateway.remoting_address, "t", at)
        at, position = int(found.ext_fields["nextBeginOffset"]), 0
        while position < len(found.body):
            record = decode_record(found.body, position)
            pulled.append(bytes(record.body))
            position += record.size
    assert pulled == LEFT
    found = ask(
        gateway.remoting_address,
        RequestCode.QUERY_MESSAGE,
        topic="t",
        key="gone",
        maxNum=32,
        beginTimestamp=0,
        endTimestamp=1 << 60,
    )
    assert found.code == ResponseCode.QUERY_NOT_FOUND
    offset = answer.records[0].physical_offset
    assert (
        ask(gateway.remoting_address, RequestCode.VIEW_MESSAGE_BY_ID, offset=offset).code
        == ResponseCode.SYSTEM_ERROR
    )


def test_it_is_on_disk_and_told_when_it_is_answered(gateway: Gateway, client: Client) -> None:
    send(client, "flushed")
    answer = client.erase("flushed", keys=["gone"])
    offsets = [each.physical_offset for each in answer.records]
    folder = FolderLog(gateway.store)
    state = folder.describe()
    told: list[int] = []
    for _, data in folder.read(state.log_id, state.start, state.end):
        told += journaled(bytes(data))
    assert set(offsets) <= set(told)
    remote = open_log(f"broker:{gateway.address}", Access())
    logs: list[LogSource] = [folder, remote]
    assert all(set(offsets) <= set(log.erased(state.log_id).tolist()) for log in logs)
    assert folder.erased(state.log_id).tolist() == remote.erased(state.log_id).tolist()
    assert state.erased_version == remote.describe().erased_version > 0
    for log in logs:
        log.close()


def journaled(data: bytes) -> list[int]:
    """What journal records in bytes of a log say is erased."""
    found: list[int] = []
    at = 0
    while at < len(data):
        record = decode_record(data, at, verify=False)
        at += record.size
        if record.topic == "rmq_sys_lakebroker_journal":
            batch = journal_pb2.Batch.FromString(bytes(record.body))
            found += [offset for each in batch.erasures for offset in each.physical_offset]
    return found


def test_what_is_wrong_is_said(client: Client) -> None:
    wrong: list[tuple[str, list[str], str]] = [
        ("t", [], "nothing is named"),
        ("", ["a"], "keys are of a topic"),
        ("t", ["a"] * 1001, "at most 1000"),
    ]
    for topic, keys, said in wrong:
        with pytest.raises(grpc.RpcError) as error:
            client.erase(topic, keys=keys)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert said in error.value.details()


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 32)
    token.chmod(0o600)
    with Gateway(tmp_path / "gateway", lakeTokenFile=str(token)) as gateway:
        client = Client(gateway.address)
        with pytest.raises(grpc.RpcError) as error:
            client.erase(message_ids=["x"])
        assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
        client.close()
