"""How many calls of a kind may be under way, and how long one may have waited before it is served.

The original queues a kind of request before its threads; here a call is served when it is read, so that what is
bounded is what has no answer yet. A send waits from when it was read whole until it is appended, with others of its
tick of the event loop. Any other call has waited at least since the first work of the tick that read it; the time
before that is the system's and cannot be seen.

| kind | calls |
|---|---|
| send | SendMessage, RecallMessage; LAKE_SEND_ORDERED |
| pull | ReceiveMessage, PullMessage; PULL_MESSAGE |
| ack | AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue |
| query | QueryOffset; QUERY_MESSAGE, VIEW_MESSAGE_BY_ID |
| client manager | Telemetry, NotifyClientTermination, SyncLiteSubscription; UNREGISTER_CLIENT |
| consumer manager | GetOffset, UpdateOffset; offsets of consumers and lists of them on the remoting port |
| heartbeat | Heartbeat; HEART_BEAT |
| end transaction | EndTransaction |
| admin broker | the Admin service; all other requests on the remoting port |
| load balance | QueryRoute, QueryAssignment |

No address fills a bulkhead alone: while half of its places are free, every call is taken. Of the second half one address gets
at most `lakeMaxSharePerAddress` percent of the limit, also when nobody else wants the rest (`shares.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.config.options import camel
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.runtime.clock import monotonic_s
from broker_gateway.runtime.peer_log import PeerLog
from broker_gateway.runtime.shares import Shares, host_of
from broker_gateway.runtime.tick import Tick


class Bulkhead:
    """Calls of one kind: `check` first, then `enter` and `leave`, or `place` around the work.

    While `under_way` is less than `free`, a call is taken and counted for no address: sends, which are many, compare the
    two by themselves.
    """

    __slots__ = (
        "_capacity_option",
        "_limit",
        "_peer_log",
        "_percent",
        "_shares",
        "_tick",
        "_wait_option",
        "capacity",
        "free",
        "name",
        "refused",
        "under_way",
        "wait_s",
    )

    def __init__(
        self, tick: Tick, name: str, capacity_option: str, wait_option: str, peer_log: PeerLog
    ) -> None:
        self._tick = tick
        self._peer_log = peer_log
        self.name = name
        self._capacity_option = capacity_option
        self._wait_option = wait_option
        self.capacity = 0
        self.wait_s = 0.0
        """0: calls may wait for any time."""
        self.under_way = 0
        self.refused = 0
        self._shares = Shares()
        """Of calls that entered when more than `free` were under way."""
        self.free = 0
        """So many calls under way are nobody's share."""
        self._limit = ""
        """What is shared out, as `name=value`."""
        self._percent = 100

    def configure(self, config: GatewayConfig, check_waiting: bool, shared: int | None = None) -> None:
        """`shared`: how many places addresses share, where it is less than the capacity."""
        broker = config.broker
        self.capacity = getattr(broker, self._capacity_option)
        places = self.capacity if shared is None else min(shared, self.capacity)
        self._percent = config.lake.lake_max_share_per_address
        self._shares.share_out(places, self._percent)
        self.free = min(self._shares.free, self.capacity)
        option = camel(self._capacity_option) if places == self.capacity else "lakeMaxWaitingReceives"
        self._limit = f"{option}={places}"
        limited = check_waiting and bool(self._wait_option) and broker.broker_fast_failure_enable
        self.wait_s = getattr(broker, self._wait_option) / 1000 if limited else 0.0

    def check(self, peer: str) -> None:
        """Raises ServiceError TOO_MANY_REQUESTS for a call that cannot be taken now, and is served at once if it can."""
        self.check_room(peer)
        if self.wait_s and self._tick.scheduled:
            late = self.late(self._tick.began)
            if late is not None:
                raise late

    def check_room(self, peer: str) -> None:
        """Raises ServiceError TOO_MANY_REQUESTS when too many are under way, of all or of the peer's address."""
        if self.under_way >= self.capacity:
            self.refused += 1
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"the broker is busy: {self.under_way} {self.name} calls are under way "
                f"({camel(self._capacity_option)}={self.capacity}); try again later",
            )
        if self.under_way >= self.free and self._shares.refuse(host_of(peer), self.under_way):
            self.refused += 1
            raise ServiceError(Reason.TOO_MANY_REQUESTS, self._share_taken(host_of(peer)))

    def _share_taken(self, host: str) -> str:
        """Why a call of an address is refused while there are places; logged, too."""
        event = "calls of an address are refused: it has its share; behind a proxy or NAT set lakeMaxSharePerAddress=100"
        self._peer_log.warning(host, event, address=host, calls=self.name, limit=self._limit)
        return (
            f"the broker is busy: {self.under_way} {self.name} calls are under way ({self._limit}), {self._shares.of(host)} "
            f"of the second half from {host}, which is its share (lakeMaxSharePerAddress={self._percent}); try again later"
        )

    def late(self, since_s: float) -> ServiceError | None:
        """TOO_MANY_REQUESTS for a call that has waited too long since then, by `clock.monotonic_s`."""
        if not self.wait_s:
            return None
        waited = monotonic_s() - since_s
        if waited <= self.wait_s:
            return None
        self.refused += 1
        return ServiceError(
            Reason.TOO_MANY_REQUESTS,
            f"the broker is busy: the call waited {waited * 1000:.0f} ms "
            f"({camel(self._wait_option)}={self.wait_s * 1000:.0f}); try again",
        )

    def enter(self, peer: str) -> str:
        """Counts a call of `peer` (`host:port`) that is under way; what it returns is to be given to `leave`."""
        self.under_way += 1
        if self.under_way <= self.free:
            return ""
        host = host_of(peer)
        self._shares.count(host)
        return host

    def leave(self, token: str) -> None:
        """The call is under way no more."""
        self.under_way -= 1
        if token:
            self._shares.count(token, -1)

    @contextlib.contextmanager
    def entered(self, peer: str) -> Iterator[None]:
        """Counts the call within as under way."""
        token = self.enter(peer)
        try:
            yield
        finally:
            self.leave(token)


class Admission:
    """The bulkheads. Waiting is checked from `check_waiting` on: while a process starts, nothing is on time."""

    def __init__(self, config: GatewayConfig, tick: Tick) -> None:
        peer_log = PeerLog()

        def bulkhead(name: str, capacity_option: str, wait_option: str = "") -> Bulkhead:
            return Bulkhead(tick, name, capacity_option, wait_option, peer_log)

        self.send = bulkhead("send", "send_thread_pool_queue_capacity", "wait_time_mills_in_send_queue")
        self.pull = bulkhead("pull", "pull_thread_pool_queue_capacity", "wait_time_mills_in_pull_queue")
        self.ack = bulkhead("ack", "ack_thread_pool_queue_capacity", "wait_time_mills_in_ack_queue")
        self.query = bulkhead("query", "query_thread_pool_queue_capacity")
        self.client_manager = bulkhead("client manager", "client_manager_thread_pool_queue_capacity")
        self.consumer_manager = bulkhead("consumer manager", "consumer_manager_thread_pool_queue_capacity")
        self.heartbeat = bulkhead(
            "heartbeat", "heartbeat_thread_pool_queue_capacity", "wait_time_mills_in_heartbeat_queue"
        )
        self.end_transaction = bulkhead(
            "end transaction", "end_transaction_pool_queue_capacity", "wait_time_mills_in_transaction_queue"
        )
        self.admin_broker = bulkhead(
            "admin broker",
            "admin_broker_thread_pool_queue_capacity",
            "wait_time_mills_in_admin_broker_queue",
        )
        self.load_balance = bulkhead("load balance", "load_balance_thread_pool_queue_capacity")
        self._config = config
        self._check_waiting = False
        self.configure(config)

    def bulkheads(self) -> Iterable[Bulkhead]:
        return [each for each in vars(self).values() if isinstance(each, Bulkhead)]

    def configure(self, config: GatewayConfig) -> None:
        """Takes the limits of other options; what is under way stays."""
        self._config = config
        waiting = config.lake.lake_max_waiting_receives
        for bulkhead in self.bulkheads():
            bulkhead.configure(config, self._check_waiting, waiting if bulkhead is self.pull else None)

    def check_waiting(self) -> None:
        self._check_waiting = True
        self.configure(self._config)
