"""What a lite consumer subscribes to, told to the other brokers of its topic: its lite topics may be at any of them.

A client says it to one broker, its access point. As the original's proxy does, that broker tells all others that have the topic, and
answers when each has taken it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from broker_gateway.cluster.hand_over import BusyError, HandOver, HandOverError
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.routes import Routes


class LitePeers:
    """The others of this broker."""

    def __init__(self, routes: Routes, hand_over: HandOver) -> None:
        self._routes = routes
        self._hand_over = hand_over

    def of(self, topic: str) -> Sequence[str]:
        """Those that have a topic, as far as it is known."""
        return self._routes.others(topic)

    async def tell(
        self, brokers: Sequence[str], group: str, client_id: str, request: bytes, peer: str
    ) -> Sequence[bytes | ServiceError]:
        """The answer of each to a request that came from a client at `peer` (`host:port`), or why there is none."""

        async def one(broker: str) -> bytes | ServiceError:
            try:
                return await self._hand_over.lite_subscription(broker, group, client_id, request, peer)
            except BusyError as error:
                return ServiceError(
                    Reason.TOO_MANY_REQUESTS,
                    f"broker {shown(broker)} could not be told of the subscription: {error}; try again later",
                )
            except HandOverError as error:
                return ServiceError(
                    Reason.INTERNAL_SERVER_ERROR,
                    f"broker {shown(broker)} did not take the subscription, or did not say so: {error}; say it again",
                )

        return await asyncio.gather(*map(one, brokers))
