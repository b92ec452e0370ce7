"""Consumer groups made on first use are bounded and shared out; an administrator's are not counted among them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from broker_gateway.service.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import (
    ack_request,
    change_invisible_request,
    dead_letter_request,
    receive_request,
)

OWN, STRANGER, THIRD = "10.0.0.1:1000", "10.0.0.66:6666", "10.0.0.3:3"


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    """Places for 40 groups, of which an address has 10 once half of them are taken."""
    with InProcessBroker(lakeMaxAutoCreatedGroups="40") as broker:
        broker.create_topic("t")
        yield broker


def receive(broker: InProcessBroker, group: str, peer: str) -> pb.Status:
    """What a receive that uses a group is answered."""
    response = broker.begin("ReceiveMessage", receive_request("t", group, wait_ms=0), peer=peer).response
    return next(each.status for each in response if each.HasField("status"))


def made(broker: InProcessBroker, prefix: str, peer: str) -> int:
    """How many groups one address makes by receives until it is refused, of 60."""
    for number in range(60):
        if receive(broker, f"{prefix}{number}", peer).code == pb.TOO_MANY_REQUESTS:
            return number
    return 60


def groups(broker: InProcessBroker) -> set[str]:
    return {group.name for group in broker.broker.catalog.groups()}


def test_one_address_does_not_make_groups_without_end(broker: InProcessBroker) -> None:
    broker.create_group("billing")
    assert made(broker, "s", STRANGER) == 20
    refused = receive(broker, "s20", STRANGER)
    for part in (
        "20 consumer groups were made on first use by 10.0.0.66",
        "lakeMaxAutoCreatedGroups=40",
        "lakeMaxSharePerAddress=25",
        "lakebroker group create s20",
    ):
        assert part in refused.message
    assert "s20" not in groups(broker)
    assert (made(broker, "o", OWN), made(broker, "u", THIRD)) == (10, 10), "others find places"
    refused = receive(broker, "late", "10.0.0.4:4")
    assert refused.code == pb.TOO_MANY_REQUESTS
    assert "40 consumer groups were made on first use (lakeMaxAutoCreatedGroups=40)" in refused.message
    for group, peer in (("billing", STRANGER), ("s7", THIRD), ("o1", OWN)):
        assert receive(broker, group, peer).code == pb.MESSAGE_NOT_FOUND, "groups that are there go on"
    broker.create_group("late")
    assert receive(broker, "late", STRANGER).code == pb.MESSAGE_NOT_FOUND, "an administrator made it"


def test_a_group_that_an_administrator_changes_or_deletes_leaves_its_place(broker: InProcessBroker) -> None:
    assert made(broker, "s", STRANGER) == 20
    broker.create_group("s0")
    assert made(broker, "more", STRANGER) == 1
    broker.run(broker.broker.administration.groups.delete("s1", clean_offsets=True))
    assert receive(broker, "other", STRANGER).code == pb.MESSAGE_NOT_FOUND
    assert receive(broker, "another", STRANGER).code == pb.TOO_MANY_REQUESTS
    broker.run(broker.broker.administration.groups.delete("s0", clean_offsets=True))
    assert receive(broker, "another", STRANGER).code == pb.TOO_MANY_REQUESTS, "that one was not counted"


def test_every_way_to_use_a_group_counts(broker: InProcessBroker) -> None:
    assert made(broker, "s", STRANGER) == 20
    assignment = rpc.QueryAssignmentRequest(topic=pb.Resource(name="t"), group=pb.Resource(name="assigned"))
    assignment.endpoints.addresses.add(host="127.0.0.1", port=8081)
    answer = broker.begin("QueryAssignment", assignment, peer=STRANGER).response
    assert answer.status.code == pb.TOO_MANY_REQUESTS
    settings = pb.Settings(
        client_type=pb.PUSH_CONSUMER, subscription=pb.Subscription(group=pb.Resource(name="told"))
    )

    async def tell() -> rpc.TelemetryCommand:
        async def commands() -> AsyncIterator[rpc.TelemetryCommand]:
            yield rpc.TelemetryCommand(settings=settings)

        context = CallContext({"x-mq-client-id": "c"}, STRANGER, None, ("127.0.0.1", 8081))
        return await anext(broker.broker.messaging.Telemetry(commands(), context))

    assert broker.run(tell()).status.code == pb.TOO_MANY_REQUESTS
    assert not groups(broker) & {"assigned", "told"}


def test_who_settles_makes_no_group(broker: InProcessBroker) -> None:
    """No receipt handle is one of a group that nobody has received with."""
    message = pb.Message(topic=pb.Resource(name="t"))
    message.system_properties.receipt_handle = "invented"
    for method, request in (
        ("AckMessage", ack_request("t", "g", message)),
        ("ChangeInvisibleDuration", change_invisible_request("t", "g", message, 10_000)),
        ("ForwardMessageToDeadLetterQueue", dead_letter_request("t", "g", message)),
    ):
        assert broker.call(method, request).status.code == pb.INVALID_RECEIPT_HANDLE
    assert not groups(broker)


@pytest.mark.parametrize("end", [InProcessBroker.restart, InProcessBroker.crash])
def test_groups_of_before_a_start_count_and_others_find_places_still(
    broker: InProcessBroker, end: Callable[[InProcessBroker], None]
) -> None:
    broker.create_group("billing")
    assert made(broker, "s", STRANGER) == 20
    broker.create_group("s0")
    end(broker)
    assert broker.broker.catalog.auto_created.count == 19
    assert made(broker, "again", STRANGER) == 10, "half of 21 places"
    assert made(broker, "o", OWN) == 5, "a quarter of them"
    broker.run(broker.broker.administration.groups.delete("s1", clean_offsets=True))
    assert broker.broker.catalog.auto_created.count == 33


def test_shares_can_be_left_out_and_the_limit_raised_while_the_broker_runs() -> None:
    with InProcessBroker(lakeMaxAutoCreatedGroups="20", lakeMaxSharePerAddress="100") as broker:
        broker.create_topic("t")
        assert made(broker, "s", STRANGER) == 20
        broker.run(broker.broker.configuration.apply({"lakeMaxAutoCreatedGroups": "30"}))
        assert made(broker, "more", STRANGER) == 10


def test_a_group_that_the_log_does_not_take_is_counted_as_it_is(broker: InProcessBroker) -> None:
    catalog = broker.broker.catalog
    assert receive(broker, "s", STRANGER).code == pb.MESSAGE_NOT_FOUND
    before = catalog.group("s")
    assert catalog.auto_created.count == 1
    catalog.take_back_group(None, "s")
    assert catalog.auto_created.count == 0
    catalog.take_back_group(before, "s")
    catalog.take_back_group(before, "s")
    assert catalog.auto_created.count == 1
