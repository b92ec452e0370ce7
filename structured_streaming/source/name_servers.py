"""Which brokers there are, as name servers tell, and where each serves its log.

A name server knows a broker's remoting address. The gRPC port is `grpcServerPort` of the broker's configuration
(GET_BROKER_CONFIG), on the host that it registered: the rule by which lakebrokers find each other. One without
`lakeTransport` is no lakebroker, and has no log service.

A broker counts as long as one of the name servers that answer has it. What a broker said of its port counts until it
says something else.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, TypeVar

from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.source import remoting
from structured_streaming.source.access import has_token
from structured_streaming.source.addresses import addresses, parse_address, written

POLL_S = 30.0
"""Between two looks: RocketMQ's clients ask as often."""
ASK_S = 3.0
"""For an answer."""
LOOK_S = 10.0
"""For all answers of brokers; those that come later count at the next look."""
MAX_NAME_SERVERS = 64
MAX_BROKERS = 1000
_AT_A_TIME = 16
_MASTER = "0"
_MARK = "lakeTransport"
"""An option that only lakebroker has."""
T = TypeVar("T")


class Found(NamedTuple):
    """`targets`: of lakebrokers, by broker name. `left_out`: brokers that have none, and why."""

    targets: dict[str, str]
    left_out: dict[str, str]


class NameServers:
    """Name servers at `host:port`."""

    def __init__(self, name_servers: Iterable[str]) -> None:
        self._addresses = list(name_servers)
        self._endpoints: dict[tuple[str, str], str] = {}
        """Targets by name and remoting address."""

    def look(self) -> Found:
        """The brokers that are registered now. Raises SourceError when no name server tells."""
        known = self._masters()
        asked = _all({each: _asking(*each) for each in known.items()}, LOOK_S)
        found, left_out = dict[str, str](), dict[str, str]()
        endpoints = dict[tuple[str, str], str]()
        for (name, address), answer in asked.items():
            target = self._endpoints.get((name, address)) if isinstance(answer, UnreachableError) else None
            target = answer if isinstance(answer, str) else target
            if target is None:
                left_out[name] = f"broker {name[:80]} is left out: {answer}"
            else:
                found[name] = endpoints[name, address] = target
        self._endpoints = endpoints
        return Found(found, left_out)

    def _masters(self) -> dict[str, str]:
        """Remoting addresses of all masters, by broker name."""
        answers = _all({each: _telling(each) for each in self._addresses}, ASK_S + LOOK_S)
        told = [answer for answer in answers.values() if isinstance(answer, dict)]
        if not told:
            raise UnreachableError(f"no name server answers: {'; '.join(map(str, answers.values()))}")
        found: dict[str, str] = {}
        for each in told:
            found = {**each, **found}
        if len(found) > MAX_BROKERS:
            raise SourceError(f"the name servers know {len(found)} brokers: {MAX_BROKERS} are allowed")
        return found


class Following:
    """Looks again every `POLL_S` on a thread of its own, until `stop`."""

    def __init__(self, name_servers: NameServers) -> None:
        self._name_servers = name_servers
        self._stopped = threading.Event()
        self._newest: deque[Found | SourceError] = deque(maxlen=1)
        threading.Thread(target=self._run, daemon=True, name="name servers").start()

    def newest(self) -> Found | SourceError | None:
        """What the last look found, or why it found nothing; None when that was taken already."""
        try:
            return self._newest.popleft()
        except IndexError:
            return None

    def stop(self) -> None:
        """It looks no more."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(POLL_S):
            try:
                self._newest.append(self._name_servers.look())
            except SourceError as error:
                self._newest.append(error)


def name_servers(options: Mapping[str, str]) -> list[str]:
    """Addresses in the option `namesrv`, divided by semicolons. Raises SourceError."""
    found = addresses(options.get("namesrv", "").split(";"), "namesrv")
    if len(found) > MAX_NAME_SERVERS:
        raise SourceError(f"namesrv names {len(found)} name servers: {MAX_NAME_SERVERS} are allowed")
    if found and options.get("brokers", "").strip():
        raise SourceError(
            "brokers and namesrv are both given; give one: namesrv finds all that are registered"
        )
    if found and has_token(options) and not options.get("tlsca"):
        raise SourceError(
            "namesrv with a token needs --tls-ca FILE (tlsCa): anybody can register at a name server, and the token "
            "goes only to brokers with a certificate of your own authority"
        )
    return found


def _all(calls: Mapping[Any, Callable[[], T]], within_s: float) -> dict[Any, T | SourceError]:
    """The calls' results or SourceErrors, in the same order; UnreachableError for those that take longer."""
    pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="remoting")
    futures: dict[Any, Future[T]] = {each: pool.submit(call) for each, call in calls.items()}
    wait(futures.values(), within_s)
    pool.shutdown(wait=False, cancel_futures=True)
    return {each: _result(future, within_s) for each, future in futures.items()}


def _result(future: Future[Any], within_s: float) -> Any:
    if not future.done() or future.cancelled():
        return UnreachableError(f"no answer within {within_s:g} s")
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, SourceError):
        return error
    raise error


def _telling(address: str) -> Callable[[], dict[str, str]]:
    return lambda: masters(remoting.ask(address, remoting.GET_BROKER_CLUSTER_INFO, ASK_S), address)


def _asking(name: str, address: str) -> Callable[[], str]:
    return lambda: target_of(name, address, remoting.ask(address, remoting.GET_BROKER_CONFIG, ASK_S))


def masters(body: bytes, address: str) -> dict[str, str]:
    """Remoting addresses of masters by broker name, of a name server's answer. Raises SourceError."""
    information = remoting.parsed(body, address)
    table = information.get("brokerAddrTable") if isinstance(information, dict) else None
    if table is not None and not isinstance(table, dict):
        raise SourceError(f"{address} answered what is no table of brokers")
    found = {}
    for name, broker in (table or {}).items():
        addresses_ = broker.get("brokerAddrs") if isinstance(broker, dict) else None
        master = addresses_.get(_MASTER) if isinstance(addresses_, dict) else None
        if isinstance(master, str):
            found[name] = master
    return found


def target_of(name: str, address: str, configuration: bytes) -> str:
    """The target of the broker registered as `name` with that configuration. Raises SourceError."""
    lines = (line.partition("=") for line in configuration.decode("utf-8", "replace").splitlines())
    options = {key.strip(): value.strip() for key, _, value in lines}
    if _MARK not in options:
        raise SourceError(f"{address[:300]} is no lakebroker, and has no log service")
    if options.get("brokerName") != name:
        raise SourceError(f"{address[:300]} says that its name is {options.get('brokerName', '')[:80]!r}")
    port = options.get("grpcServerPort", "")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise SourceError(f"{address[:300]} says that its grpcServerPort is {port[:80]!r}")
    host, _ = parse_address(address, f"broker {name[:80]}")
    return f"broker:{written(host, int(port))}"
