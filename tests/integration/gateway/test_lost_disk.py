"""A broker whose disk is gone goes on with an empty one: from the lake, on loopback, as its operator does it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway, ProcessError
from lakebroker_testing.prestarted import run
from tests.support.brokers.gateways import receive_all
from tests.support.lakes.maintained import reput


def test_a_broker_goes_on_with_an_empty_disk(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    options = {**OPTIONS, "lakeLocation": str(lake), "flushIntervalCommitLog": "50"}
    with Gateway(tmp_path, **options) as gateway:
        client = Client(gateway.address)
        sent = [client.send("orders", b"%d" % number).entries[0] for number in range(20)]
        first = client.receive("orders", "billing", batch=8, invisible_ms=60_000)[1]
        client.ack("orders", "billing", *first[:5])
        client.channel.close()
        assert gateway.terminate() == 0
        reput(gateway.store, lake)
        shutil.rmtree(gateway.store)

        gateway.start()
        told = gateway.log.read_text()
        assert "the store was empty: topics, groups and offsets are those of the lake" in told
        assert f"waiting={len(sent) - 5}" in told
        client = Client(gateway.address)
        again = [client.send("orders", b"again").entries[0] for _ in range(20)]
        settled = {each.system_properties.message_id for each in first[:5]}
        wanted = {each.message_id for each in sent + again} - settled
        found = receive_all(client, "orders", "billing", len(wanted), wait_ms=3000)
        assert {each.system_properties.message_id for each in found} == wanted
        assert client.receive("orders", "billing", wait_ms=200)[1] == []
        client.ack("orders", "billing", *found)
        client.channel.close()
        gateway.kill()
        gateway.start()
        assert "the store was empty" not in gateway.log.read_text().split("boot success")[-1]
        assert gateway.terminate() == 0
        reput(gateway.store, lake)
        done = run("lake", "check", "--lake", str(lake), "--store", str(gateway.store))
        assert done.returncode == 0, done.stderr
    rows = DeltaTable(str(lake / "consume_queue")).to_pyarrow_table(
        columns=["topic", "queue_id", "queue_offset"]
    )
    entries = [tuple(row.values()) for row in rows.to_pylist()]
    assert len(entries) == len(set(entries)), "no place in a queue was given out twice"
    assert sum(topic == "orders" for topic, _, _ in entries) == len(sent) + len(again)


def test_a_lake_that_cannot_be_read_is_named_at_the_first_start(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with Gateway(tmp_path / "old", **OPTIONS) as gateway:
        client = Client(gateway.address)
        client.send("orders", b"1")
        client.channel.close()
        assert gateway.terminate() == 0
        reput(gateway.store, lake)
    (lake / "consume_queue" / "_delta_log" / f"{0:020}.json").write_text("torn")
    with pytest.raises(ProcessError, match="without lakeLocation, or with another lake") as ended:
        (again := Gateway(tmp_path / "new", lakeLocation=str(lake))).start()
    assert again.process is not None
    assert again.process.returncode == 255
    assert "Traceback" not in str(ended.value)
