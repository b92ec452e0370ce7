"""The other lakebrokers: where each one registered, and where it serves clients.

A broker that does not say where it serves is waited for `LEARN_WAIT_S` at most, and asked again less and less often; it
holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

import structlog

from broker_gateway.cluster.broker_config import (
    GET_BROKER_CONFIG,
    Member,
    NoMemberError,
    member_of,
)
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RemotingError
from broker_gateway.transport.remoting.address import parse_address
from broker_gateway.transport.remoting.client import RemotingClient
from broker_gateway.transport.remoting.trusted_hosts import TrustedHosts, same_host

log = structlog.get_logger(__name__)

TIMEOUT_S = 3.0
LEARN_WAIT_S = 1.0
MAX_LEARNING = 16
"""Brokers that are asked for their endpoint at a time."""
REFRESH_S = 5.0
"""Between two looks at who is there; the first wait before a broker is asked again."""
LONGEST_RETRY_S = 60.0


class _Stranger(NamedTuple):
    """A broker without an endpoint: how often it did not answer, and when it is asked again."""

    failures: int
    retry_at: float


class Members:
    """Learns endpoints. `spawn` runs work beside the caller, `listed` hosts may serve elsewhere than they registered."""

    def __init__(
        self, listed: TrustedHosts, spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    ) -> None:
        self._listed = listed
        self._spawn = spawn
        self._brokers: RemotingClient | None = None
        self._addresses: dict[str, str] = {}
        self._members: dict[str, Member] = {}
        self._strangers: dict[tuple[str, str], _Stranger] = {}
        self._learning: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._learners = asyncio.Semaphore(MAX_LEARNING)
        self._ask_again: set[str] = set()
        self.version = 0
        """Another one whenever a broker comes, goes or serves elsewhere."""

    def start(self, brokers: RemotingClient) -> None:
        """Asks over `brokers`, which tells `lost` of connections that end."""
        self._brokers = brokers

    @property
    def by_name(self) -> Mapping[str, Member]:
        """Those that are alive and serve."""
        return self._members

    @property
    def count(self) -> int:
        """Brokers whose address is known, whether they serve or not."""
        return len(self._addresses)

    def address_of(self, name: str) -> str:
        """Where a broker registered."""
        return self._addresses[name]

    def is_unknown(self, name: str, address: str) -> bool:
        """Whether it was never asked."""
        return name not in self._addresses and (name, address) not in self._strangers

    def lost(self, address: str) -> None:
        """A broker's connection ended: it may start anew and serve elsewhere, before a name server noticed."""
        self._ask_again |= {name for name, known in self._addresses.items() if known == address}

    def keep(self, alive: Mapping[str, str]) -> None:
        """Forgets brokers that are not alive, or not where they were."""
        assert self._brokers is not None
        gone = {name for name, address in self._addresses.items() if alive.get(name) != address}
        for name in gone:
            self._brokers.disconnect(self._addresses.pop(name))
            if self._members.pop(name, None) is not None:
                log.info("a broker left", broker=name)
                self.version += 1
        self._strangers = {
            each: stranger for each, stranger in self._strangers.items() if alive.get(each[0]) == each[1]
        }

    def due(self, alive: Mapping[str, str], again: bool) -> dict[str, str]:
        """Those to be asked now; `again`: brokers that are known are asked too."""
        again_too, self._ask_again = self._ask_again, set()
        now = asyncio.get_running_loop().time()
        return {
            name: address
            for name, address in alive.items()
            if (again and name in self._addresses)
            or name in again_too
            or (name not in self._addresses and self._is_due(name, address, now))
        }

    def _is_due(self, name: str, address: str, now: float) -> bool:
        stranger = self._strangers.get((name, address))
        return stranger is None or now >= stranger.retry_at

    def clear(self) -> None:
        """There are no others any more."""
        assert self._brokers is not None
        for address in self._addresses.values():
            self._brokers.disconnect(address)
        self._addresses.clear()
        self._strangers.clear()
        if self._members:
            self._members.clear()
            self.version += 1

    async def learn(self, brokers: dict[str, str]) -> None:
        """Asks these brokers for their endpoints; waits `LEARN_WAIT_S` at most, the asking goes on."""
        tasks = []
        for each in brokers.items():
            task = self._learning.get(each)
            if task is None:
                task = self._learning[each] = self._spawn(self._learn_one(*each), "endpoint")
            tasks.append(task)
        if tasks:
            await asyncio.wait(tasks, timeout=LEARN_WAIT_S)

    async def _learn_one(self, name: str, address: str) -> None:
        try:
            async with self._learners:
                await self._ask_broker(name, address)
        finally:
            del self._learning[name, address]

    async def _ask_broker(self, name: str, address: str) -> None:
        assert self._brokers is not None
        try:
            answer = await self._brokers.invoke(address, GET_BROKER_CONFIG, TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS:
                raise NoMemberError(f"it refused: {answer.code} {(answer.remark or '')[:200]}")
            member = member_of(name, answer.body)
            host, _ = parse_address(address)
            if not same_host(member.host, host) and member.host not in self._listed:
                raise NoMemberError(
                    f"it says that it serves at {member.host}, and registered as {address[:300]}; lakeBrokerAddresses "
                    "allows it"
                )
        except RemotingError as error:
            if name not in self._members:  # which is asked again with the next look
                self._not_a_member(name, address, str(error))
            return
        except NoMemberError as error:
            self._not_a_member(name, address, str(error))
            self._addresses[name] = address
            if self._members.pop(name, None) is not None:
                self.version += 1
            return
        self._addresses[name] = address
        self._strangers.pop((name, address), None)
        if self._members.get(name) != member:
            log.info("a broker joined", broker=name, host=member.host, grpc_port=member.grpc_port)
            self._members[name] = member
            self.version += 1

    def _not_a_member(self, name: str, address: str, reason: str) -> None:
        known = self._strangers.get((name, address))
        failures = known.failures + 1 if known else 1
        wait_s = min(REFRESH_S * 2 ** (failures - 1), LONGEST_RETRY_S)
        retry_at = asyncio.get_running_loop().time() + wait_s
        self._strangers[name, address] = _Stranger(failures, retry_at)
        if known is None:
            log.warning("a broker is left out of routes", broker=name, address=address, reason=reason)
