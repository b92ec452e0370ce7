"""Calls of a command to a gateway's gRPC port: the options that say where, the connection, what failed, in a sentence."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from broker_gateway.cli.output import Failure, fail

if TYPE_CHECKING:
    import grpc

    from structured_streaming.source.access import Access

Gateway = Annotated[
    str, typer.Option(envvar="LAKEBROKER_GATEWAY", help="The gateway's gRPC address, host:port")
]
TokenFile = Annotated[
    Path | None, typer.Option(envvar="LAKEBROKER_TOKEN_FILE", help="File with the gateway's token")
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="LAKEBROKER_TLS_CA",
        help="File with certificates of the authorities that count, PEM; else the system's. Gateways beyond this machine "
        "are spoken to over TLS only",
    ),
]
NameServers = Annotated[
    str,
    typer.Option(
        "--namesrv",
        help="Name servers, host:port;…: at every lakebroker that they know, in place of --gateway",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON")]
DEFAULT_GATEWAY = "127.0.0.1:8081"
_TIMEOUT_S = 10.0
_UNCONNECTED = ("failed to connect to all addresses", "errors resolving ", "DNS resolution failed")
"""How gRPC's details begin when there was no connection."""
_TIMED_OUT = "Deadline Exceeded"
"""gRPC's own details, when no answer came in time."""
_GRPC_PORT = "--gateway takes the host and gRPC port of a gateway (grpcServerPort, 8081 unless it is set)"
_CLIENT_ID = "lakebroker-cli"
_until: ContextVar[tuple[float, float] | None] = ContextVar("until", default=None)
"""Seconds that calls may take together, and when they are over by the monotonic clock."""


@contextlib.contextmanager
def within(together_s: float) -> Iterator[None]:
    """Within, in this thread, calls take at most so long together, however many pages a gateway says there are; one that would begin
    behind that ends the command. In place of what was set around it."""
    before = _until.set((together_s, time.monotonic() + together_s))
    try:
        yield
    finally:
        _until.reset(before)


class NoSuchCall(Failure):
    """The end of a command for which the gateway has not the call: it is of an earlier version."""


class GatewayCalls:
    """A connection to one gateway. What fails ends the command."""

    def __init__(self, gateway: str, access: Access, channel: grpc.Channel) -> None:
        self.address = gateway
        self._access = access
        self._channel = channel
        self._metadata = (*access.metadata, ("x-mq-client-id", _CLIENT_ID))

    def admin(self, method: str, request: Any, response_type: Any, timeout_s: float = _TIMEOUT_S) -> Any:
        """One of lakebroker's own Admin service."""
        path = f"/lakebroker.admin.v1.AdminService/{method}"
        return self._call(path, request, response_type, timeout_s=timeout_s)

    def messaging(self, method: str, request: Any, response_type: Any) -> Any:
        """One of RocketMQ's service; its status is the caller's to look at."""
        return self._call(f"/apache.rocketmq.v2.MessagingService/{method}", request, response_type)

    def public(
        self,
        method: str,
        request: Any,
        response_type: Any,
        timeout_s: float = _TIMEOUT_S,
        *,
        checked: bool = True,
    ) -> Any:
        """One of RocketMQ's Admin service; a status that is not OK ends the command unless it is the caller's to look at."""
        answer = self._call(
            f"/apache.rocketmq.v2.Admin/{method}", request, response_type, timeout_s=timeout_s
        )
        if checked and "status" in answer.DESCRIPTOR.fields_by_name:
            self.check(method, answer.status)
        return answer

    def health(self, timeout_s: float) -> str:
        """What the gateway says of itself as a whole: SERVING or NOT_SERVING."""
        from grpc_health.v1 import health_pb2

        request, response_type = health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse
        answer = self._call("/grpc.health.v1.Health/Check", request, response_type, timeout_s=timeout_s)
        known = response_type.ServingStatus
        return str(known.Name(answer.status) if answer.status in known.values() else answer.status)

    def check(self, method: str, status: Any) -> None:
        """Ends the command for a status that is not OK."""
        from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

        if status.code != pb.OK:
            self.refused(method, status)

    def refused(self, method: str, status: Any) -> NoReturn:
        """Ends the command with a status."""
        fail(self.refusal(method, status))

    def refusal(self, method: str, status: Any) -> str:
        """A status that is not OK, in a sentence."""
        from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

        code = pb.Code.Name(status.code) if status.code in pb.Code.values() else str(status.code)
        return f"the gateway at {self.address} answered {method} with {code}: {status.message}"

    def messages(self, method: str, request: Any, response_type: Any) -> list[Any]:
        """All responses of one that streams them."""
        return list(
            self._call(f"/apache.rocketmq.v2.MessagingService/{method}", request, response_type, stream=True)
        )

    def _call(
        self,
        path: str,
        request: Any,
        response_type: Any,
        stream: bool = False,
        timeout_s: float = _TIMEOUT_S,
    ) -> Any:
        import grpc

        timeout_s = self._left_s(timeout_s)
        make = self._channel.unary_stream if stream else self._channel.unary_unary
        call = make(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response_type.FromString,
        )
        try:
            answer = call(request, timeout=timeout_s, metadata=self._metadata)
            return list(answer) if stream else answer
        except grpc.RpcError as error:
            self._fail(error, timeout_s)

    def _left_s(self, timeout_s: float) -> float:
        """What a call may take now."""
        until = _until.get()
        if until is None:
            return timeout_s
        left_s = until[1] - time.monotonic()
        if left_s <= 0:
            fail(f"the answers of the gateway at {self.address} came to no end within {until[0]:g} s")
        return min(timeout_s, left_s)

    def _fail(self, error: grpc.RpcError, timeout_s: float) -> NoReturn:
        from structured_streaming.errors import UnreachableError
        from structured_streaming.source.access import unconnected

        code, details = error.code().name, error.details() or ""
        if code == "DEADLINE_EXCEEDED":
            self._left_s(timeout_s)
        told = unconnected(self.address, details, own_ca=self._access.ca is not None)
        if code == "UNAVAILABLE" and told is not None and not isinstance(told, UnreachableError):
            fail(str(told))
        kind = NoSuchCall if code == "UNIMPLEMENTED" else Failure
        fail(failed(self.address, code, details, timeout_s), kind=kind)


@contextlib.contextmanager
def connected(gateway: str, token_file: Path | None, tls_ca: Path | None) -> Iterator[GatewayCalls]:
    """Ends the command for an address or files that cannot be used."""
    from structured_streaming.errors import SourceError

    check_address(gateway)
    try:
        access = _access(token_file, tls_ca)
        channel = access.channel(gateway)
    except SourceError as error:
        fail(str(error))
    with channel:
        yield GatewayCalls(gateway, access, channel)


def check_address(gateway: str) -> None:
    """Ends the command for what is no address of a gateway."""
    from broker_gateway.protocol.errors import ConnectError
    from broker_gateway.transport.remoting.address import parse_address

    if "," in gateway:
        fail(f"--gateway {gateway}: give one HOST:PORT; --namesrv finds several gateways", 2)
    try:
        parse_address(gateway)
    except ConnectError as error:
        fail(f"--gateway: {error}", 2)


class Reached(NamedTuple):
    """The gateways that a command is for: each lakebroker that name servers know, without them the one at `gateway`."""

    gateway: str
    name_servers: str
    token_file: Path | None
    tls_ca: Path | None

    @property
    def named(self) -> str:
        """As the command named them."""
        return self.name_servers or self.gateway

    def all(self) -> Iterator[GatewayCalls]:
        """A connection to each, one after the other. Ends the command where one cannot be spoken to; when a broker is known
        to name servers and its address is not, before anything is done."""
        for each in self.each():
            with connected(each.gateway, each.token_file, each.tls_ca) as calls:
                yield calls

    def each(self) -> list[Reached]:
        """One for each of them, as the name servers know them now. Ends the command as `all`."""
        if not self.name_servers:
            return [self]
        addresses = _addresses(self.name_servers, self.token_file, self.tls_ca)
        return [Reached(address, "", self.token_file, self.tls_ca) for address in addresses]

    def columns(self, *names: str) -> list[str]:
        """Of a table of what was done: where, if it may be at several gateways."""
        return ["gateway", *names] if self.name_servers else list(names)

    def row(self, calls: GatewayCalls, row: dict[str, Any]) -> dict[str, Any]:
        return {"gateway": calls.address, **row} if self.name_servers else row


def _addresses(name_servers: str, token_file: Path | None, tls_ca: Path | None) -> list[str]:
    from structured_streaming.errors import SourceError
    from structured_streaming.source.name_servers import NameServers
    from structured_streaming.source.name_servers import name_servers as addresses

    files = {"tokenfile": str(token_file or ""), "tlsca": str(tls_ca or "")}
    try:
        found = NameServers(addresses({"namesrv": name_servers, **files})).look()
    except SourceError as error:
        fail(f"--namesrv: {error}")
    if found.left_out:
        fail(f"--namesrv: nothing is done, since {'; '.join(found.left_out.values())}")
    if not found.targets:
        fail(f"--namesrv {name_servers}: no lakebroker is registered there")
    return [target.removeprefix("broker:") for _, target in sorted(found.targets.items())]


def _access(token_file: Path | None, tls_ca: Path | None) -> Access:
    """Ends the command, or raises SourceError, for files that cannot be used."""
    from structured_streaming.source.access import access_of

    files = {}
    if token_file is not None:
        check_token(token_file)
        files["tokenfile"] = str(token_file)
    if tls_ca is not None:
        files["tlsca"] = str(tls_ca)
    return access_of(files)


def check_token(file: Path, option: str = "--token-file") -> None:
    """Ends the command for a file with a secret that is not there, or that others may read."""
    from broker_gateway.runtime.errors import reason
    from store.errors import SecretError
    from store.log.permissions import check_secret

    try:
        check_secret(file, option)
    except SecretError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{option} {file} cannot be read: {reason(error)}")


def failed(gateway: str, code: str, details: str, timeout_s: float = _TIMEOUT_S) -> str:
    """What became of a call; gRPC gives UNAVAILABLE, too, when nobody answered."""
    unconnected = details.startswith(_UNCONNECTED)
    if code == "UNAVAILABLE" and unconnected and "connection refused" in details.lower():
        return f"no gateway at {gateway}: connection refused; {_GRPC_PORT}"
    if code == "UNAVAILABLE" and unconnected:
        return f"nobody answers gRPC at {gateway} ({details}); {_GRPC_PORT}"
    if code == "DEADLINE_EXCEEDED" and details == _TIMED_OUT:
        return f"nobody answered at {gateway} within {timeout_s:.0f} s; {_GRPC_PORT}"
    return f"the gateway at {gateway} answered {code}: {details}"
