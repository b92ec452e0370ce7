"""Pop state and retries of a real broker become ours, and ours its; made of records as it writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.broker_journal import journal_at_rest
from broker_gateway.metadata.catalog import Catalog, Group
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.migration.check_points import TIMER_TOPIC
from broker_gateway.migration.exchange import KV_STORE_FOLDER, export_to_rocketmq, import_from_rocketmq
from broker_gateway.migration.pop_state import read_check_points
from broker_gateway.migration.rocketmq_files import ConfigFileError, read_config
from tests.support.logs.real_exchange import ORDERS, REVIVE, Real

POP_MS = 1_700_000_000_000
FAR_MS = 4_000_000_000_000


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Real]:
    real = Real(tmp_path)
    yield real
    real.store.close()


def check_point(
    start: int, count: int, until: int = FAR_MS, pop: int = POP_MS, **more: Any
) -> dict[str, Any]:
    return {
        **{"t": "orders", "c": "g", "q": 0, "so": start, "pt": pop, "it": until - pop, "bn": "b"},
        **{"n": count, "d": list(range(count)), "bm": 0, "ro": 0, **more},
    }


def ack(start: int, offset: int, pop: int = POP_MS) -> dict[str, Any]:
    return {"t": "orders", "c": "g", "q": 0, "so": start, "pt": pop, "ao": offset, "bn": "b"}


def test_what_is_not_acknowledged_is_in_flight(real: Real) -> None:
    real.messages("orders", 10)
    real.revive("ck", check_point(0, 4))
    real.revive("ack", ack(0, 1))
    real.revive("bAck", {**ack(0, -1), "aol": [2]})
    real.revive("ck", check_point(4, 2, FAR_MS + 5, POP_MS + 1))
    real.offsets["orders@g"] = {"0": 6}
    real.close()
    assert import_from_rocketmq(real.root, "b", "c").in_flight == 4
    assert real.in_flight() == {
        0: (1, FAR_MS),
        3: (1, FAR_MS),
        4: (1, FAR_MS + 5),
        5: (1, FAR_MS + 5),
    }


def test_the_latest_pop_says_whether_it_is_settled(real: Real) -> None:
    real.messages("orders", 3)
    real.revive("ck", check_point(0, 3))
    real.revive("ck", check_point(1, 1, FAR_MS + 9, POP_MS + 7))  # its invisible time changed
    real.revive("ack", ack(0, 1))
    real.revive("ck", check_point(2, 1, FAR_MS + 9, POP_MS + 8))  # popped again after a crash
    real.revive("ack", ack(2, 2, POP_MS + 8))
    real.offsets["orders@g"] = {"0": 3}
    real.close()
    import_from_rocketmq(real.root, "b", "c")
    assert real.in_flight() == {0: (1, FAR_MS), 1: (1, FAR_MS + 9)}


def test_what_the_revive_service_is_done_with_is_not_in_flight(real: Real) -> None:
    real.messages("orders", 4)
    for start in range(4):
        real.revive("ck", check_point(start, 1))
    for start in range(3):
        real.revive("ck", check_point(start, 1), arrived=True)
    real.revive("ack", ack(3, 3), arrived=True)
    real.offsets |= {"orders@g": {"0": 4}, f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP": {"3": 0}}
    # killed after it made the copy of 1, before it wrote so
    real.put("%RETRY%g_orders", 0, b"1", {"UNIQ_KEY": "orders-1"}, 1)
    real.close()
    import_from_rocketmq(real.root, "b", "c")
    assert real.in_flight() == {2: (1, FAR_MS)}


def test_what_the_group_has_not_reached_is_new(real: Real) -> None:
    real.messages("orders", 8)
    real.revive("ck", check_point(0, 8))
    real.offsets["orders@g"] = {"0": 5}  # written before the pop of 5, 6 and 7, say
    real.close()
    import_from_rocketmq(real.root, "b", "c")
    assert set(real.in_flight()) == set(range(5))
    state = real.state()[1].known(ORDERS)
    assert state is not None
    assert state.cursor == 5


def test_an_offset_never_written_begins_with_what_was_popped(real: Real) -> None:
    real.messages("orders", 8)
    real.revive("ck", check_point(2, 3))
    real.close()
    import_from_rocketmq(real.root, "b", "c")
    state = real.state()[1].known(ORDERS)
    assert state is not None
    assert (state.cursor, list(state.in_flight)) == (2, [])


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"t":"orders"}', json.dumps(check_point(0, 1, t=5)).encode()]
)
def test_a_damaged_check_point_stops_the_import(real: Real, body: bytes) -> None:
    real.messages("orders", 4)
    real.revive("ck", check_point(0, 1))
    real.revive("ck", body)
    real.offsets["orders@g"] = {"0": 4}
    real.close()
    with pytest.raises(ConfigFileError, match=r"physical offset \d+: .*--skip-damaged"):
        import_from_rocketmq(real.root, "b", "c")
    taken = import_from_rocketmq(real.root, "b", "c", skip_damaged=True)
    assert taken.in_flight == 1
    assert "left out" in taken.problems[0]


def test_a_damaged_ack_is_reported_and_acknowledges_nothing(real: Real) -> None:
    real.messages("orders", 4)
    real.revive("ck", check_point(0, 1))
    real.revive("ack", b"{")
    real.offsets["orders@g"] = {"0": 4}
    real.close()
    taken = import_from_rocketmq(real.root, "b", "c")
    assert "delivered again" in taken.problems[0]
    assert set(real.in_flight()) == {0}


def test_a_users_message_in_the_timer_is_no_check_point(real: Real) -> None:
    real.put(TIMER_TOPIC, 0, b"mine", {"TAGS": "ck", "REAL_TOPIC": "orders", "REAL_QID": "0"})
    real.close()
    taken = import_from_rocketmq(real.root, "b", "c")
    assert taken.in_flight == 0
    assert taken.put_off.timers == 1


def test_messages_gone_from_the_log_are_counted(real: Real) -> None:
    real.messages("orders", 1)
    real.revive("ck", check_point(0, 3))
    real.offsets["orders@g"] = {"0": 3}
    real.close()
    taken = import_from_rocketmq(real.root, "b", "c")
    assert taken.in_flight == 1
    assert "2 messages in flight are no longer in the log" in taken.problems[0]


def test_pop_state_in_rocksdb_stops_the_import(real: Real) -> None:
    real.messages("orders", 1)
    real.close()
    (real.root / KV_STORE_FOLDER).mkdir()
    with pytest.raises(ConfigFileError, match="exportPopRecord"):
        import_from_rocketmq(real.root, "b", "c")
    assert "left out" in import_from_rocketmq(real.root, "b", "c", skip_damaged=True).problems[0]


def test_retries_of_4x_consumers_are_moved_once(real: Real) -> None:
    for number in range(4):
        properties = {"UNIQ_KEY": f"{number}", "RETRY_TOPIC": "orders" if number % 2 else "bills"}
        real.put("%RETRY%g", 0, b"%d" % number, properties, 3)
    real.put("%RETRY%g", 0, b"x", {"RETRY_TOPIC": "no topic"})
    real.offsets["%RETRY%g@g"] = {"0": 1}
    real.close()
    taken = import_from_rocketmq(real.root, "b", "c")
    assert taken.retries == 3
    assert "'no topic'" in taken.problems[0]
    assert import_from_rocketmq(real.root, "b", "c").retries == 0
    store = real.open()
    try:
        for topic, bodies in (("orders", [b"1", b"3"]), ("bills", [b"2"])):
            offsets, sizes, _ = store.index.entries(f"%RETRY%g_{topic}", 0, 0, 10)
            records = [
                store.record(offset, size)
                for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True)
            ]
            assert [bytes(each.body) for each in records] == bodies
            assert {each.reconsume_times for each in records} == {3}
    finally:
        store.close()
    export_to_rocketmq(real.root)
    assert read_config(real.root, 0).offsets[QueueKey("g", "%RETRY%g", 0)] == 5


def fly(real: Real, group: Group, flying: Mapping[int, int], cursor: int) -> None:
    """Makes it ours, with messages in flight."""
    store = real.open()
    catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
    journal = journal_at_rest(store, catalog, deliveries).journal
    journal.replay()
    catalog.restore_group(group, group.name)
    state = deliveries.restore(ORDERS, cursor)
    state.reset(cursor)
    for offset, until in flying.items():
        state.restore(InFlight(offset, 2, until, 1, f"orders-{offset}", "me"))
    journal.write_snapshot()
    store.close()


def open_messages(real: Real) -> dict[int, int]:
    store = real.open()
    try:
        points = read_check_points(store, {})
        found = [(offset, point.due_ms) for point in points for offset in point.open]
        assert len(dict(found)) == len(found)
        return dict(found)
    finally:
        store.close()


def test_what_is_in_flight_goes_out_as_check_points_and_comes_back(real: Real) -> None:
    real.messages("orders", 100)
    real.close()
    flying = {offset: FAR_MS + offset // 50 for offset in range(0, 90, 2)} | {91: POP_MS}
    fly(real, Group("g"), flying, 95)
    export_to_rocketmq(real.root)
    end = real.end()
    export_to_rocketmq(real.root)  # nothing differs
    assert real.end() == end
    assert open_messages(real) == flying
    assert read_config(real.root, 0).offsets[ORDERS] == 95
    left = {offset: until for offset, until in flying.items() if offset > 40} | {44: FAR_MS + 99}
    fly(real, Group("g"), left, 95)
    export_to_rocketmq(real.root)
    assert open_messages(real) == left
    assert import_from_rocketmq(real.root, "b", "c").in_flight == len(left)
    assert {offset: until for offset, (_, until) in real.in_flight().items()} == left


def test_offsets_only_and_groups_in_order_get_no_check_points(real: Real) -> None:
    real.messages("orders", 9)
    real.close()
    fly(real, Group("g"), {3: FAR_MS}, 8)
    export_to_rocketmq(real.root, offsets_only=True)
    assert read_config(real.root, 0).offsets[ORDERS] == 3
    fly(real, Group("g", fifo=True), {3: FAR_MS}, 8)
    export_to_rocketmq(real.root)
    assert read_config(real.root, 0).offsets[ORDERS] == 3
    assert open_messages(real) == {}


def test_data_versions_are_kept_where_the_files_get_lost(real: Real) -> None:
    real.messages("orders", 1)
    real.close()
    import_from_rocketmq(real.root, "b", "c")
    for path in (real.root / "config").iterdir():
        path.unlink()
    assert real.state()[0].versions["consumerOffset.json"] == DataVersion(0, 5, 0)
    export_to_rocketmq(real.root)
    assert read_config(real.root, 0).versions["consumerOffset.json"] > DataVersion(0, 5, 0)


def test_missing_files_are_reported_and_nothing_is_lost(real: Real) -> None:
    real.messages("orders", 8)
    real.revive("ck", check_point(3, 2))
    real.close()
    for path in (real.root / "config").iterdir():
        path.unlink()
    problems = import_from_rocketmq(real.root, "b", "c").problems
    assert [each.split(" is missing")[0].rpartition("/")[2] for each in problems] == [
        "topics.json",
        "subscriptionGroup.json",
        "consumerOffset.json",
    ]
    catalog, deliveries = real.state()
    state = deliveries.known(ORDERS)
    assert state is not None
    assert state.cursor == 3
    assert {(topic.name, topic.read_queues) for topic in catalog.topics()} == {("orders", 1)}
