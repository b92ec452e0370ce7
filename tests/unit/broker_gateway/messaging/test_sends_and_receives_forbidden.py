"""Options with which a broker takes no sends, or gives no messages."""

from __future__ import annotations

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.clock import ManualClock


def test_broker_permission_forbids_with_the_options_name() -> None:
    with InProcessBroker(brokerPermission="4", lakeAutoCreateTopics="true") as broker:
        refused = broker.send("t", b"x")
        assert refused.status.code == pb.FORBIDDEN
        assert "brokerPermission=4" in refused.status.message
        assert broker.receive("t", "g")[0] == pb.MESSAGE_NOT_FOUND
        broker.restart(brokerPermission="2")
        assert broker.send("t", b"x").status.code == pb.OK
        assert broker.receive("t", "g")[0] == pb.FORBIDDEN


def test_sends_before_the_time_they_are_taken_from() -> None:
    clock = ManualClock()
    later = str(clock.now_ms + 3_600_000)
    options = {"startAcceptSendRequestTimeStamp": later, "lakeAutoCreateTopics": "true"}
    with InProcessBroker(clock=clock, **options) as broker:
        refused = broker.send("t", b"x").status
        assert refused.code == pb.INTERNAL_SERVER_ERROR
        assert f"{later} ms on (startAcceptSendRequestTimeStamp)" in refused.message
        broker.jump(3600)
        assert broker.send("t", b"x").status.code == pb.OK
