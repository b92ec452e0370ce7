"""The other lakebrokers, and the queues they have of a topic, as name servers know them.

| what | asked | kept |
|---|---|---|
| brokers alive | every 5 s, or every `pollNameServerInterval` if that is shorter | until the next answer |
| a broker's gRPC endpoint | when the broker appears or its connection ends, and every `pollNameServerInterval` | while it is alive |
| a topic's queues | by a call that needs them, at most every `pollNameServerInterval` | `MAX_TOPICS`, last used |

A topic no name server knows is asked for again after `UNKNOWN_S`; all topics are when brokers come or go. What cannot be
asked stays as it was, and until the next look no call waits for name servers none of which answers. Calls that find nothing to wait for
are answered at once.

A broker is connected to only where our name server vouches that it registered from there, or where `lakeBrokerAddresses`
lists its host: anybody may register any address, and RocketMQ's name server does not say who did.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

import structlog

from broker_gateway.cluster.broker_config import MAX_BODY, Member
from broker_gateway.cluster.members import LEARN_WAIT_S, REFRESH_S, TIMEOUT_S, Members
from broker_gateway.cluster.outgoing import outgoing
from broker_gateway.config.registration import RegistrationOptions
from broker_gateway.metadata.message_types import MESSAGE_TYPES
from broker_gateway.protocol import java_json
from broker_gateway.protocol.body.route import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicRouteData
from broker_gateway.protocol.body.tables import TopicList
from broker_gateway.protocol.body.topic_config import TopicConfig
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RemotingError, RequestError
from broker_gateway.protocol.java_json import JsonObject
from broker_gateway.transport.remoting.address import parse_address
from broker_gateway.transport.remoting.client import RemotingClient
from broker_gateway.transport.remoting.trusted_hosts import trusted_hosts

log = structlog.get_logger(__name__)

UNKNOWN_S = 1.0
CLAIMS = 2
"""Looks in a row that find another broker under the own name before it is said."""
MAX_NAMED = 16
"""Brokers that are left out, of one look, which the log names."""
MAX_TOPICS = 10_000
MAX_BROKERS = 1000
MAX_LOOK_UPS = 256
MAX_WAITING = 10_000


class _Route(NamedTuple):
    queues: tuple[QueueData, ...]
    asked_at: float
    brokers_version: int
    message_types: tuple[str, ...] = ()


class PeerRoutes:
    """Knows nothing while `name_servers` is empty."""

    def __init__(self, own_name: str, options: RegistrationOptions) -> None:
        self._own_name = own_name
        self._options = options
        self._poll_s = options.poll_name_server_interval / 1000
        self._look_s = min(REFRESH_S, self._poll_s)
        self._client: RemotingClient | None = None
        self._brokers: RemotingClient | None = None
        self._name_servers: Callable[[], list[str]] = list
        self._routes: OrderedDict[str, _Route] = OrderedDict()
        self._looking: dict[str, list[Callable[[], None]]] = {}
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshed = asyncio.Event()
        self._name_servers_answer = True
        self._silent_until = 0.0
        self._own_address = ""
        self._claims = 0
        self._listed = trusted_hosts(options.lake_broker_addresses)
        self._known = Members(self._listed, self._spawn)
        self._vouched: frozenset[str] = frozenset()
        """Addresses that a name server vouched for when it was last asked."""
        self._left_out: set[tuple[str, str]] = set()

    def start(self, name_servers: Callable[[], list[str]], own_address: str) -> None:
        """`own_address` is what this broker registers."""
        self._name_servers = name_servers
        self._own_address = own_address
        self._client = outgoing(self._options, lambda _: None)
        self._brokers = outgoing(self._options, self._known.lost)
        self._known.start(self._brokers)
        self._spawn(self._keep_up(), "cluster")

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in (self._client, self._brokers):
            if client is not None:
                await client.close()

    def disconnect(self, name_server: str) -> None:
        """The next look goes there by another connection."""
        if self._client is not None:
            self._client.disconnect(name_server)

    @property
    def members(self) -> list[Member]:
        """The other lakebrokers that are alive."""
        return sorted(self._known.by_name.values())

    def queues(self, topic: str) -> list[tuple[Member, QueueData]]:
        """What is known of the topic's queues at other lakebrokers."""
        route = self._routes.get(topic)
        return merged(route.queues, self._known.by_name) if route is not None else []

    def address_of(self, broker: str) -> str | None:
        """Where another lakebroker registered; None when it is not alive."""
        return self._known.address_of(broker) if broker in self._known.by_name else None

    def message_types(self, topic: str) -> tuple[str, ...]:
        """What others accept in a topic that only they have; empty: anything, or nobody has said."""
        route = self._routes.get(topic)
        return route.message_types if route is not None else ()

    def knows(self, topic: str) -> bool:
        """Whether it was ever said which others have the topic; also when there is nobody to ask."""
        return topic in self._routes or not self._name_servers()

    def when_known(self, topic: str, callback: Callable[[], None], *, elsewhere: bool) -> None:
        """Calls `callback` once the topic's queues are as new as they can be had; at once when they are, or when too
        much is being looked up already. Of a topic that is `elsewhere` only, its message types are asked for too."""
        waiting = self._looking.get(topic)
        if self._client is None or (waiting is None and self._is_new(topic)):
            callback()
            return
        if self._waiting >= MAX_WAITING or (waiting is None and len(self._looking) >= MAX_LOOK_UPS):
            callback()
            return
        self._waiting += 1
        if waiting is not None:
            waiting.append(callback)
            return
        self._looking[topic] = [callback]
        self._spawn(self._look_up(topic, elsewhere), "topic route")

    def _is_new(self, topic: str) -> bool:
        """Whether asking would tell nothing new; so too for a while when no name server answers."""
        if asyncio.get_running_loop().time() < self._silent_until:
            return True
        route = self._routes.get(topic)
        if route is None or route.brokers_version != self._known.version:
            return False
        age = asyncio.get_running_loop().time() - route.asked_at
        return age < (self._poll_s if route.queues else min(UNKNOWN_S, self._poll_s))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _look_up(self, topic: str, elsewhere: bool) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S + 2 * LEARN_WAIT_S):
                await self._refreshed.wait()
                await self._ask_for(topic)
                if elsewhere:
                    await self._ask_for_types(topic)
        except TimeoutError:
            log.debug("no route in time", topic=topic)
        except Exception:
            log.exception("a topic's route could not be looked up", topic=topic)
        finally:
            callbacks = self._looking.pop(topic)
            self._waiting -= len(callbacks)
            for callback in callbacks:  # one that fails takes no other along
                asyncio.get_running_loop().call_soon(callback)

    async def _ask_for(self, topic: str) -> None:
        request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        version = self._known.version
        answer = await self._ask(request)
        if answer is None:
            return
        queues: tuple[QueueData, ...] = ()
        if answer.code == ResponseCode.SUCCESS:
            try:
                route = TopicRouteData.decode(answer.body)
            except RemotingError as error:
                log.warning("a name server's route cannot be read", topic=topic, error=str(error))
                return
            queues = route.queue_datas[:MAX_BROKERS]
            self._keep(topic, queues, version)
            new = masters(route.broker_datas, self._own_name)
            unknown = {
                name: address for name, address in new.items() if self._known.is_unknown(name, address)
            }
            if unknown and self._known.count + len(unknown) <= MAX_BROKERS:
                await self._known.learn(await self._tied(unknown))
        elif answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._keep(topic, (), version)

    async def _ask_for_types(self, topic: str) -> None:
        """The first broker that has the topic says what it accepts; without an answer it stays as it was."""
        assert self._brokers is not None
        for member, _ in self.queues(topic)[:1]:
            request = Command(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
            try:
                answer = await self._brokers.invoke(
                    self._known.address_of(member.name), request, LEARN_WAIT_S
                )
                if answer.code != ResponseCode.SUCCESS:
                    raise RequestError(f"it refused: {answer.code} {(answer.remark or '')[:200]}")
                if len(answer.body) > MAX_BODY:
                    raise RequestError(f"it answered {len(answer.body)} bytes: {MAX_BODY} are allowed")
                config = JsonObject(java_json.loads(answer.body), "the topic's configuration")
                kind = TopicConfig.from_json(config).attributes.get("message.type", "")
            except RemotingError as error:
                log.debug("a topic's types are not known", topic=topic, broker=member.name, error=str(error))
                return
            types = (kind,) if kind in MESSAGE_TYPES else ()
            if (route := self._routes.get(topic)) is not None:
                self._routes[topic] = route._replace(message_types=types)

    def _keep(self, topic: str, queues: tuple[QueueData, ...], version: int) -> None:
        before = self._routes.get(topic)
        types = before.message_types if before is not None else ()
        self._routes[topic] = _Route(queues, asyncio.get_running_loop().time(), version, types)
        self._routes.move_to_end(topic)
        while len(self._routes) > MAX_TOPICS:
            self._routes.popitem(last=False)

    async def _keep_up(self) -> None:
        loop = asyncio.get_running_loop()
        learned_at = loop.time()
        while True:
            try:
                again = loop.time() - learned_at >= self._poll_s
                if again:
                    learned_at = loop.time()
                await self._refresh(again)
            except Exception:
                log.exception("the cluster could not be looked at; it is tried again")
            self._refreshed.set()
            await asyncio.sleep(self._look_s)

    async def _refresh(self, again: bool) -> None:
        """`again`: brokers that are known are asked for their endpoints too, which change when they start anew."""
        assert self._brokers is not None
        if not self._name_servers():  # and so no others
            self._known.clear()
            self._routes.clear()
            return
        answer = await self._ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        try:
            info = ClusterInfo.decode(answer.body)
        except RemotingError as error:
            log.warning("a name server's cluster information cannot be read", error=str(error))
            return
        self._look_for_namesake(info.broker_addr_table.get(self._own_name))
        alive = await self._tied(masters(info.broker_addr_table.values(), self._own_name))
        if len(alive) > MAX_BROKERS:
            log.warning("too many brokers; the last are left out of routes", known=len(alive))
            alive = {name: alive[name] for name in sorted(alive)[:MAX_BROKERS]}
        self._known.keep(alive)
        await self._known.learn(self._known.due(alive, again))

    async def _tied(self, brokers: dict[str, str]) -> dict[str, str]:
        """Those that may be connected to; the others are named in the log once."""
        rest = {each for each in brokers.items() if not self._is_listed(each[1])}
        if rest:
            await self._ask_who_is_tied()
        left_out = {(name, address) for name, address in rest if address not in self._vouched}
        for name, address in sorted(left_out - self._left_out)[:MAX_NAMED]:
            log.warning(
                "a broker is left out of routes: no name server vouches that it registered from its address; "
                "list its host in lakeBrokerAddresses",
                broker=name,
                address=address[:300],
                left_out=len(left_out),
            )
        elsewhere = [each for each in self._left_out if each[0] not in brokers]
        self._left_out = {*elsewhere[:MAX_BROKERS], *left_out}
        return {name: address for name, address in brokers.items() if (name, address) not in left_out}

    def _is_listed(self, address: str) -> bool:
        try:
            return parse_address(address)[0] in self._listed
        except RemotingError:
            return False

    async def _ask_who_is_tied(self) -> None:
        """Without an answer it stays as it was; a name server that does not know the request vouches for nobody."""
        answer = await self._ask(Command(RequestCode.LAKE_TIED_BROKERS))
        if answer is None:
            return
        if answer.code != ResponseCode.SUCCESS:
            self._vouched = frozenset()
            return
        try:
            self._vouched = frozenset(TopicList.decode(answer.body).topic_list)
        except RemotingError as error:
            log.warning("a name server's list of tied brokers cannot be read", error=str(error))

    def _look_for_namesake(self, known: BrokerData | None) -> None:
        """Says when another broker took this one's name; not at the first sight, which may be what it was before."""
        address = known.broker_addrs.get(MASTER_ID, self._own_address) if known else self._own_address
        self._claims = self._claims + 1 if address != self._own_address else 0
        if self._claims == CLAIMS:
            log.error(
                "another broker registers under this one's name; give each its own brokerName",
                broker=self._own_name,
                address=self._own_address,
                other=address[:300],
            )

    async def _ask(self, request: Command) -> Command | None:
        """The answer of the first name server that gives one; says once when none does."""
        assert self._client is not None
        name_servers = self._name_servers()
        if not name_servers:
            return None
        try:
            answer = await self._client.invoke_first(name_servers, request, TIMEOUT_S)
        except RemotingError as error:
            if self._name_servers_answer:
                log.warning("no name server answers; routes stay as they were", error=str(error))
            self._name_servers_answer = False
            self._silent_until = asyncio.get_running_loop().time() + self._look_s
            return None
        if not self._name_servers_answer:
            log.info("a name server answers again")
        self._name_servers_answer = True
        return answer


def masters(brokers: Iterable[BrokerData], own_name: str) -> dict[str, str]:
    """The master's address of every other broker."""
    return {
        each.broker_name: each.broker_addrs[MASTER_ID]
        for each in brokers
        if MASTER_ID in each.broker_addrs and each.broker_name != own_name
    }


def merged(queues: Iterable[QueueData], members: Mapping[str, Member]) -> list[tuple[Member, QueueData]]:
    """Of the queues of a route, those of members, in the order of their names; one entry for each."""
    found = {
        each.broker_name: (members[each.broker_name], each) for each in queues if each.broker_name in members
    }
    return [found[name] for name in sorted(found)]
