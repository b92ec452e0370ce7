"""Consumer groups made on first use are bounded and shared out; an administrator's are not counted among them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from broker_gateway.metadata.auto_created_groups import AutoCreatedGroups
from broker_gateway.transport.context import CallContext
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
    """ConnectionSlots for 40 groups, of which an address has 10 once half of them are taken."""
    with InProcessBroker(lakeMaxAutoCreatedGroups="40") as broker:
        broker.create_topic("t")
        yield broker


def receive(broker: InProcessBroker, group: str, peer: str, topic: str = "t") -> pb.Status:
    """What a receive that uses a group is answered."""
    response = broker.begin("ReceiveMessage", receive_request(topic, group, wait_ms=0), peer=peer).response
    return next(each.status for each in response if each.HasField("status"))


def made(broker: InProcessBroker, prefix: str, peer: str) -> int:
    """How many groups one address makes by receives until it is refused, of 60."""
    for number in range(60):
        if receive(broker, f"{prefix}{number}", peer).code == pb.TOO_MANY_REQUESTS:
            return number
    return 60


def counted(broker: InProcessBroker) -> tuple[int, int]:
    """Groups made on first use, and their queues."""
    counts = broker.broker.catalog.auto_created
    return counts.groups.count, counts.queues.count


def groups(broker: InProcessBroker) -> set[str]:
    return {group.name for group in broker.broker.catalog.groups()}


def test_one_address_does_not_make_groups_without_end(broker: InProcessBroker) -> None:
    broker.create_group("billing")
    assert made(broker, "s", STRANGER) == 20
    refused = receive(broker, "s20", STRANGER)
    for part in (
        "of 10.0.0.66 there are 20 consumer groups made on first use",
        "lakeMaxAutoCreatedGroups=40",
        "lakeMaxSharePerAddress=25",
        "lakebroker group create s20",
    ):
        assert part in refused.message
    assert "s20" not in groups(broker)
    assert (made(broker, "o", OWN), made(broker, "u", THIRD)) == (10, 10), "others find places"
    refused = receive(broker, "late", "10.0.0.4:4")
    assert refused.code == pb.TOO_MANY_REQUESTS
    assert "there are 40 consumer groups made on first use (lakeMaxAutoCreatedGroups=40)" in refused.message
    for group, peer in (("billing", STRANGER), ("s7", THIRD), ("o1", OWN)):
        assert receive(broker, group, peer).code == pb.MESSAGE_NOT_FOUND, "groups that are there go on"
    broker.create_group("late")
    assert receive(broker, "late", STRANGER).code == pb.MESSAGE_NOT_FOUND, "an administrator made it"


def test_a_group_that_an_administrator_changes_or_deletes_leaves_its_place(broker: InProcessBroker) -> None:
    assert made(broker, "s", STRANGER) == 20
    broker.create_group("s0")
    assert made(broker, "more", STRANGER) == 1
    broker.do(lambda: broker.broker.administration.groups.delete("s1", clean_offsets=True))
    assert receive(broker, "other", STRANGER).code == pb.MESSAGE_NOT_FOUND
    assert receive(broker, "another", STRANGER).code == pb.TOO_MANY_REQUESTS
    broker.do(lambda: broker.broker.administration.groups.delete("s0", clean_offsets=True))
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
def test_groups_of_before_a_start_count_for_the_address_that_made_them(
    broker: InProcessBroker, end: Callable[[InProcessBroker], None]
) -> None:
    broker.create_group("billing")
    assert made(broker, "s", STRANGER) == 20
    broker.create_group("s0")
    end(broker)
    assert counted(broker) == (19, 19)
    assert made(broker, "again", STRANGER) == 1
    assert made(broker, "o", OWN) == 10
    broker.do(lambda: broker.broker.administration.groups.delete("s1", clean_offsets=True))
    assert counted(broker) == (29, 29)
    assert made(broker, "third", THIRD) == 10


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
    assert counted(broker) == (1, 1)
    catalog.roll_back_group(None, "s")
    assert counted(broker) == (0, 0)
    catalog.roll_back_group(before, "s")
    catalog.roll_back_group(before, "s")
    assert counted(broker) == (1, 1)


@pytest.fixture
def wide() -> Iterator[InProcessBroker]:
    """Groups on 200 queues, of which an address has 50 once half of them are taken."""
    with InProcessBroker(lakeMaxAutoCreatedGroupQueues="200") as broker:
        for number in range(60):
            broker.create_topic(f"t{number}", queues=5)
        yield broker


def topics(broker: InProcessBroker, group: str, peer: str) -> int:
    """From how many topics, of 60, a group receives until it is refused."""
    for number in range(60):
        if receive(broker, group, peer, f"t{number}").code == pb.TOO_MANY_REQUESTS:
            return number
    return 60


def test_one_address_does_not_receive_from_queues_without_end(wide: InProcessBroker) -> None:
    wide.create_group("billing")
    assert topics(wide, "s", STRANGER) == 20
    refused = receive(wide, "s", STRANGER, "t20")
    for part in (
        "of 10.0.0.66 there are 100 queues received from by consumer groups made on first use",
        "lakeMaxAutoCreatedGroupQueues=200",
        "lakeMaxSharePerAddress=25",
        "'s' wants 5 more",
    ):
        assert part in refused.message
    assert topics(wide, "s", STRANGER) == 20, "those that it has go on"
    assert topics(wide, "o", OWN) == 10, "others find places"
    assert topics(wide, "billing", STRANGER) == 60, "an administrator's is not counted"
    assert counted(wide) == (2, 150)
    wide.crash()
    assert counted(wide) == (2, 150)
    assert topics(wide, "u", THIRD) == 10
    wide.create_group("s")
    assert counted(wide) == (2, 100), "it is an administrator's from now on"
    assert topics(wide, "s", STRANGER) == 60
    wide.do(lambda: wide.broker.administration.groups.delete("o", clean_offsets=False))
    assert counted(wide) == (1, 50), "what nobody's group left is nobody's"
    assert topics(wide, "o", STRANGER) == 10, "with what is there the stranger has his share"
    assert counted(wide) == (2, 100)


def test_offsets_that_clients_set_begin_on_no_more_queues(wide: InProcessBroker) -> None:
    assert topics(wide, "s", STRANGER) == 20

    def update(topic: str, queue_id: int) -> pb.Status:
        queue = pb.MessageQueue(topic=pb.Resource(name=topic), id=queue_id)
        request = rpc.UpdateOffsetRequest(group=pb.Resource(name="s"), message_queue=queue, offset=0)
        status: pb.Status = wide.call("UpdateOffset", request).status
        return status

    refused = update("t20", 0)
    assert refused.code == pb.TOO_MANY_REQUESTS
    assert "lakeMaxAutoCreatedGroupQueues=200" in refused.message
    assert update("t0", 0).code == pb.OK, "where it is already"
    assert counted(wide) == (1, 100)


def test_a_topic_that_is_deleted_leaves_its_queues(wide: InProcessBroker) -> None:
    assert topics(wide, "s", STRANGER) == 20
    wide.do(lambda: wide.broker.administration.topics.delete("t0"))
    assert counted(wide) == (1, 95)


def test_counts_are_those_of_what_there_is() -> None:
    """Whatever comes first: groups change hands while they have queues, and queues come and go without a group."""
    chance = random.Random(3)
    counts, hosts, queues = AutoCreatedGroups(), dict[str, str](), dict[str, int]()
    limit, refused = 1_000_000, 995_000  # to one host, which may have 990,000
    counts.configure(limit, limit, 99)
    for _ in range(5000):
        group = chance.choice("abcd")
        if chance.random() < 0.5:
            hosts[group] = chance.choice(["", "h", "i"])
            counts.set_group(group, hosts[group])
        else:
            change = 1 if chance.random() < 0.5 or not queues.get(group) else -1
            queues[group] = queues.get(group, 0) + change
            counts.count_queues(group, change)
        auto = [group for group, host in hosts.items() if host]
        assert counts.groups.count == len(auto)
        assert counts.queues.count == sum(queues.get(group, 0) for group in auto)
        for host in "hi":
            own = [group for group in auto if hosts[group] == host]
            of_queues = sum(queues.get(group, 0) for group in own)
            assert f"of {host} there are {len(own)} " in str(counts.groups.refusal("e", host, refused))
            assert f"of {host} there are {of_queues} " in str(counts.queues.refusal("e", host, refused))


def test_receives_of_one_turn_together_begin_on_no_more_queues() -> None:
    """Those that are put off hold no place until they look."""
    with InProcessBroker(lakeMaxAutoCreatedGroupQueues="200") as broker:
        for number in range(100):
            broker.create_topic(f"t{number}", queues=5)
        with broker.one_tick():
            calls = [
                broker.begin("ReceiveMessage", receive_request(f"t{number}", "s", wait_ms=0), peer=STRANGER)
                for number in range(100)
            ]
        codes = [
            next(each.status.code for each in call.response if each.HasField("status")) for call in calls
        ]
        assert counted(broker) == (1, 100)
        assert (codes.count(pb.MESSAGE_NOT_FOUND), codes.count(pb.TOO_MANY_REQUESTS)) == (20, 80)
