"""Calls that other lakebrokers are to serve, handed to them: to the other brokers of this host, and to those that name servers
know.

A call is handed over once: who gets one serves it, or refuses it. It goes to the remoting port, where the broker registered.
"""

from __future__ import annotations

from collections import Counter

from broker_gateway.cluster.outgoing import outgoing
from broker_gateway.cluster.peer_routes import PeerRoutes
from broker_gateway.config.registration import RegistrationOptions, local_address
from broker_gateway.metadata.peers import Peers
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RemotingError
from broker_gateway.protocol.frame import MAX_FRAME

TIMEOUT_S = 6.0
"""Of a send: more than a flush may take (`syncFlushTimeout`)."""
SUBSCRIPTION_TIMEOUT_S = 2.0
"""As the original's proxy waits."""
MAX_CALLS, MAX_BYTES = 256, 32 << 20
"""Under way to one broker, which may hang; what comes beyond is refused at once. A single call may be larger."""
LARGEST = MAX_FRAME - (64 << 10)
"""Bytes of a request: those of a frame, less its head."""
_CLIENT_LIMIT = 1 << 20
"""Of all calls under way: none, beside those of each broker."""


class HandOverError(Exception):
    """The other broker cannot be reached, or refused the call; or it did not answer in time, and may have served it."""


class BusyError(HandOverError):
    """As much is under way to the other broker as may be."""


class HandOver:
    """`bound`: the address that the brokers of this host listen on."""

    def __init__(
        self, options: RegistrationOptions, peers: Peers, peer_routes: PeerRoutes, bound: str
    ) -> None:
        self._peers = peers
        self._peer_routes = peer_routes
        self._bound = bound
        self._client = outgoing(options, lambda _: None, _CLIENT_LIMIT)
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    async def send(self, broker: str, queue_id: int, topic: str, request: bytes, peer: str) -> bytes:
        """The response of a broker to a SendMessageRequest, which came from `peer` (`host:port`), for a queue that it has.
        Raises HandOverError, of which BusyError."""
        fields = {"topic": topic, "queueId": str(queue_id), "bornHost": peer}
        return await self._invoke(broker, Command(RequestCode.LAKE_SEND_ORDERED, fields, request), TIMEOUT_S)

    async def lite_subscription(
        self, broker: str, group: str, client_id: str, request: bytes, peer: str
    ) -> bytes:
        """The response of a broker to a SyncLiteSubscriptionRequest, which came from a client at `peer` (`host:port`). Raises
        HandOverError, of which BusyError."""
        fields = {"group": group, "clientId": client_id, "bornHost": peer}
        command = Command(RequestCode.LAKE_LITE_SUBSCRIPTION, fields, request)
        return await self._invoke(broker, command, SUBSCRIPTION_TIMEOUT_S)

    async def _invoke(self, broker: str, command: Command, timeout_s: float) -> bytes:
        size, under_way = len(command.body), self._calls[broker]
        if under_way >= MAX_CALLS or (under_way and self._bytes[broker] + size > MAX_BYTES):
            raise BusyError(f"{under_way} calls with {self._bytes[broker]} bytes are on their way there")
        self._calls[broker] += 1
        self._bytes[broker] += size
        try:
            return await self._answer(broker, command, timeout_s)
        finally:
            self._calls[broker] -= 1
            self._bytes[broker] -= size
            if not self._calls[broker]:
                del self._calls[broker], self._bytes[broker]

    async def _answer(self, broker: str, command: Command, timeout_s: float) -> bytes:
        try:
            answer = await self._client.invoke(self._address(broker), command, timeout_s)
        except RemotingError as error:
            raise HandOverError(str(error)) from error
        if answer.code != ResponseCode.SUCCESS:
            raise HandOverError(f"it answered {answer.code}: {(answer.remark or '')[:200]}")
        return answer.body

    async def stop(self) -> None:
        await self._client.close()

    def _address(self, broker: str) -> str:
        address = self._peer_routes.address_of(broker)
        if address is not None:
            return address
        for peer in self._peers.all:
            if peer.name == broker and peer.remoting_port:
                return local_address(self._bound, peer.remoting_port)
        raise HandOverError("it is not there any more")
