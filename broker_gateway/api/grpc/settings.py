"""A client's settings: what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence

from broker_gateway.messaging.clients import Subscription
from broker_gateway.protocol.resource_names import resource_name
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

_TOLD = 255
"""Characters of what a client says of itself that are kept."""


class KeptSettings:
    """Settings of a client, encoded: parsed, at each use, they take eight times as much. A `ClientSettings`."""

    __slots__ = ("_encoded",)

    def __init__(self, settings: pb.Settings) -> None:
        self._encoded = _needed(settings).SerializeToString()

    def parsed(self) -> pb.Settings:
        """What is kept, as a message."""
        return pb.Settings.FromString(self._encoded)

    @property
    def size(self) -> int:
        return len(self._encoded)

    @property
    def kind(self) -> str:
        number = self.parsed().client_type
        return pb.ClientType.Name(number) if number in pb.ClientType.values() else str(number)

    @property
    def group(self) -> str:
        return resource_name(self.parsed().subscription.group)

    @property
    def request_timeout_ms(self) -> int | None:
        settings = self.parsed()
        if not settings.HasField("request_timeout"):
            return None
        timeout = settings.request_timeout
        return max(0, min(timeout.seconds, 3600)) * 1000 + max(0, timeout.nanos) // 1_000_000

    @property
    def published(self) -> Sequence[str]:
        return [resource_name(topic) for topic in self.parsed().publishing.topics]

    @property
    def version(self) -> str:
        return self.parsed().user_agent.version

    @property
    def hostname(self) -> str:
        return self.parsed().user_agent.hostname

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        return [
            Subscription(
                resource_name(entry.topic),
                entry.expression.expression or "*",
                "SQL92" if entry.expression.type == pb.FilterType.SQL else "TAG",
            )
            for entry in self.parsed().subscription.subscriptions
        ]


def _needed(settings: pb.Settings) -> pb.Settings:
    """What answers and lists of clients are made of."""
    needed = pb.Settings(client_type=settings.client_type)
    if settings.HasField("request_timeout"):
        needed.request_timeout.CopyFrom(settings.request_timeout)
    if settings.HasField("user_agent"):
        needed.user_agent.version = settings.user_agent.version[:_TOLD]
        needed.user_agent.hostname = settings.user_agent.hostname[:_TOLD]
    if settings.HasField("publishing"):
        needed.publishing.topics.extend(settings.publishing.topics)
    if settings.HasField("subscription"):
        needed.subscription.CopyFrom(settings.subscription)
    return needed
