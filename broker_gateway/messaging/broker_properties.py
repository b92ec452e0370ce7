"""The properties that RocketMQ's proxy and broker add to a message that comes over gRPC, and store with it.

| property | value | added by |
|---|---|---|
| `BORN_TIMESTAMP` | when the message was born, ms | SendMessageActivity |
| `MSG_REGION`, `TRACE_ON` | `regionId`, `traceOn` | AbstractSendMessageProcessor |
| `CLUSTER` | `brokerClusterName` | SendMessageProcessor |
| `PGROUP` | the topic, which stands for the producer's group | SendMessageActivity |
| `RECONSUME_TIME` | the delivery attempt that the message names: 0 | SendMessageActivity |

All but the first are the same for every message of a topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from broker_gateway.config.broker_options import NAME_MAX_LENGTH
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.metadata.names import RETRY_TOPIC_MAX_LENGTH
from store.log.record import CRC_BYTES, PROPERTY_CRC32, decode_properties, encode_properties

BORN_TIMESTAMP = b"BORN_TIMESTAMP\x01"
BORN_BYTES = len(BORN_TIMESTAMP) + 20 + 1
"""`BORN_TIMESTAMP` has at most so many, with the number and its separator."""
_BORN = b"\x02" + BORN_TIMESTAMP
_CRC = f"\x02{PROPERTY_CRC32}\x01".encode()
_NAMES = frozenset(("MSG_REGION", "CLUSTER", "PGROUP", "RECONSUME_TIME", "TRACE_ON"))


@dataclass(frozen=True, slots=True)
class BrokerProperties:
    """Those that do not depend on the message."""

    region: str
    cluster: str
    trace_on: bool

    @classmethod
    def of_config(cls, config: GatewayConfig) -> BrokerProperties:
        return cls(config.broker.region_id, config.broker.broker_cluster_name, config.broker.trace_on)

    def encoded(self, topic: str, attempt: int = 0) -> bytes:
        """As a record of `topic` holds them."""
        return _encoded(self.region, self.cluster, self.trace_on, topic, attempt)

    @property
    def most_bytes(self) -> int:
        """`encoded` has at most so many, whatever the topic."""
        return len(self.encoded("x" * RETRY_TOPIC_MAX_LENGTH, -(1 << 31)))


def born_property(ms: int) -> bytes:
    """`BORN_TIMESTAMP` as a record holds it."""
    return b"%b%d\x02" % (BORN_TIMESTAMP, ms)


@lru_cache(maxsize=8192)
def _encoded(region: str, cluster: str, trace_on: bool, topic: str, attempt: int) -> bytes:
    return encode_properties(
        {
            "MSG_REGION": region,
            "CLUSTER": cluster,
            "PGROUP": topic,
            "RECONSUME_TIME": str(attempt),
            "TRACE_ON": str(trace_on).lower(),
        }
    )


def without_brokers(encoded: bytes) -> bytes:
    """A record's properties without these and its CRC, which no consumer over gRPC is given, where they stand together
    at the end, as here: so that they need not be decoded. Others are left as they are."""
    start = encoded.find(_BORN) + 1
    behind = encoded.find(b"\x02", start) + 1
    if not start or not behind:
        return encoded
    crc = len(encoded) - CRC_BYTES
    last = (
        encoded.startswith(_CRC, crc - 1) and encoded[crc + len(_CRC) - 1 : -1].isdigit() and encoded[-1] == 2
    )
    end = crc if last else len(encoded)
    if end - behind > _MOST_BYTES:  # another broker's, not the same for many messages: not worth remembering
        return encoded
    return encoded[:start] if _only_brokers(encoded[behind:end]) else encoded


@lru_cache(maxsize=8192)
def _only_brokers(encoded: bytes) -> bool:
    return decode_properties(encoded).keys() <= _NAMES


_MOST_BYTES = BrokerProperties("x" * NAME_MAX_LENGTH, "x" * NAME_MAX_LENGTH, trace_on=False).most_bytes
"""All but BORN_TIMESTAMP have at most so many, whatever the options and the topic."""
