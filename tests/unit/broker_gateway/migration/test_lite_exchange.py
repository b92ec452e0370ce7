"""Groups of lite consumers in a store that goes to a real broker."""

from __future__ import annotations

import json

from broker_gateway.migration.exchange import export_to_rocketmq
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.broker import InProcessBroker
from tests.support.brokers.lite_consumers import LiteConsumer, put_group, send


def test_the_offset_is_the_first_that_is_not_settled() -> None:
    with InProcessBroker() as broker:
        topic = admin_pb2.Topic(name="chat", queues=1, accept_message_types=["LITE"])
        broker.call("PutTopic", admin_pb2.PutTopicRequest(topic=topic))
        put_group(broker)
        consumer = LiteConsumer(broker)
        consumer.add("a")
        send(broker, "a1", "a2", "a3")
        consumer.ack(consumer.receive()[0])
        broker.stop()
        export_to_rocketmq(broker.root)
        told = json.loads((broker.root / "config" / "consumerOffset.json").read_text())["offsetTable"]
        assert told["%LMQ%$chat$a@agents"] == {"0": 1}
        topics = json.loads((broker.root / "config" / "topics.json").read_text())["topicConfigTable"]
        assert not [name for name in topics if name.startswith("%LMQ%")]
