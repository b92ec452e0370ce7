"""Old segments are deleted while the gateway runs, and nothing that is still needed goes with them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from tests.support.brokers.gateways import AT_ONCE, BODY, SEGMENT, drain, first_segment
from tests.support.brokers.scraped import metric
from tests.support.waiting import wait_until


def test_segments_go_and_the_broker_starts_from_what_is_left(tmp_path: Path) -> None:
    with Gateway(tmp_path, **AT_ONCE) as gateway:
        client = Client(gateway.address)
        client.send("t", b"first")
        (first,) = drain(client, "t", "g")
        client.ack("t", "g", first)
        client.send("t", b"in flight")
        (flying,) = drain(client, "t", "g")
        for _ in range(60):
            assert client.send("bulk", BODY).status.code == pb.OK
        wait_until(lambda: first_segment(gateway) >= 4 * SEGMENT)
        last = client.send("t", b"last").entries[0].message_id
        client.channel.close()
        gateway.kill()
        gateway.start()
        client = Client(gateway.address)
        assert [m.system_properties.message_id for m in drain(client, "t", "g")] == [last]
        assert client.ack("t", "g", flying).status.code == pb.OK, "delivery state outlives the message"
        assert "sends are refused" not in gateway.log.read_text()
        client.channel.close()


def test_what_the_lake_does_not_have_stays(tmp_path: Path) -> None:
    with Gateway(tmp_path, **AT_ONCE, lakeLocation=str(tmp_path / "lake")) as gateway:
        client = Client(gateway.address)
        for _ in range(40):
            assert client.send("bulk", BODY).status.code == pb.OK
        wait_until(lambda: "the lake has the log up to 0 only" in gateway.log.read_text())
        last_run = partial(metric, gateway.metrics_port, "lakebroker_task_last_run_seconds", task="retention")
        seen = last_run()
        wait_until(lambda: last_run() > seen)
        assert first_segment(gateway) == 0
        client.channel.close()


def test_damage_is_logged_and_counted(tmp_path: Path) -> None:
    options = {**OPTIONS, "mappedFileSizeCommitLog": str(SEGMENT), "lakeSelfCheckInterval": "100"}
    with Gateway(tmp_path, **options) as gateway:
        client = Client(gateway.address)
        for _ in range(15):
            assert client.send("bulk", BODY).status.code == pb.OK

        wait_until(lambda: metric(gateway.metrics_port, "lakebroker_store_self_checks") > 0)
        assert metric(gateway.metrics_port, "lakebroker_store_damaged_places") == 0
        first = gateway.store / "commitlog" / f"{0:020d}"
        first.rename(tmp_path / "aside")
        wait_until(lambda: metric(gateway.metrics_port, "lakebroker_store_damaged_places") == 1)
        assert f"segment {first} cannot be looked at" in gateway.log.read_text()
        (tmp_path / "aside").rename(first)
        wait_until(lambda: metric(gateway.metrics_port, "lakebroker_store_damaged_places") == 0)
        client.channel.close()
