"""A consumer that goes back further than the log: the lake has its records, retention deletes segments, and it just receives."""

from __future__ import annotations

import shutil
from pathlib import Path

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from tests.support.brokers.gateways import first_segment, receive_all
from tests.support.lakes.maintained import reput
from tests.support.waiting import wait_until

SEGMENT = 1 << 20
COUNT = 60
AT_ONCE = {
    **OPTIONS,
    "mappedFileSizeCommitLog": str(SEGMENT),
    "fileReservedTime": "0",
    "deleteWhen": ";".join(str(hour) for hour in range(24)),
    "cleanResourceInterval": "100",
    "brokerName": "broker-a",
}


def body(number: int) -> bytes:
    return b"%d|" % number + b"x" * 50_000


def update_offset(client: Client, queue_id: int, offset: int) -> None:
    queue = pb.MessageQueue(topic=pb.Resource(name="old"), id=queue_id)
    group = pb.Resource(name="replay")
    request = rpc.UpdateOffsetRequest(group=group, message_queue=queue, offset=offset)
    assert client.call("UpdateOffset", request).status.code == pb.OK


def numbers(messages: list[pb.Message]) -> list[int]:
    return sorted(int(each.body.split(b"|")[0]) for each in messages)


def test_a_group_goes_back_to_the_beginning_of_the_lake(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with Gateway(tmp_path, **AT_ONCE, lakeLocation=str(lake)) as gateway:
        client = Client(gateway.address)
        sent = {}
        for number in range(COUNT):
            answer = client.send("old", body(number), tag="t", keys=[f"k{number}"])
            sent[answer.entries[0].message_id] = number
        client.receive("another", "replay")  # the group is there
        log_end = (COUNT * 50_000 // SEGMENT) * SEGMENT
        reput(gateway.store, str(lake))

        def gone() -> bool:
            client.send("filler", b"x" * 50_000)
            return first_segment(gateway) >= log_end

        wait_until(gone, lambda: gateway.log.read_text()[-2000:])
        queue = pb.MessageQueue(topic=pb.Resource(name="old"), id=0)
        query = rpc.QueryOffsetRequest(message_queue=queue, query_offset_policy=pb.BEGINNING)
        assert client.call("QueryOffset", query).offset == 0
        for queue_id in range(8):
            update_offset(client, queue_id, 0)
        half = receive_all(client, "old", "replay", COUNT // 2, settle=True)
        client.channel.close()
        gateway.kill()
        gateway.start()
        client = Client(gateway.address)
        found = half + receive_all(client, "old", "replay", COUNT - len(half), settle=True)
        assert numbers(found) == list(range(COUNT)), "each once"
        assert {each.system_properties.message_id: int(each.body.split(b"|")[0]) for each in found} == sent
        assert {each.system_properties.tag for each in found} == {"t"}
        by_queue: dict[int, list[int]] = {}
        for each in found:
            system = each.system_properties
            by_queue.setdefault(system.queue_id, []).append(system.queue_offset)
        assert all(offsets == sorted(offsets) for offsets in by_queue.values())
        assert client.receive("old", "replay", wait_ms=500) == (pb.MESSAGE_NOT_FOUND, [])

        # the whole disk is gone: what was not settled is in the lake
        rest = [client.send("old", body(number)).entries[0].message_id for number in range(COUNT, COUNT + 20)]
        open_ones = receive_all(client, "old", "replay", 5)
        client.channel.close()
        assert gateway.terminate() == 0
        reput(gateway.store, str(lake))
        shutil.rmtree(gateway.store)
        gateway.start()
        client = Client(gateway.address)
        found = receive_all(client, "old", "replay", 20, settle=True)
        assert {each.system_properties.message_id for each in found} == set(rest)
        again = {each.system_properties.message_id for each in open_ones}
        assert {
            each.system_properties.message_id: each.system_properties.delivery_attempt for each in found
        } == {each: 2 if each in again else 1 for each in rest}
        assert client.receive("old", "replay", wait_ms=500) == (pb.MESSAGE_NOT_FOUND, [])
        client.channel.close()
        assert "Traceback" not in gateway.log.read_text()
