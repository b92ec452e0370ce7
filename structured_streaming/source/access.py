"""How gateways are spoken to: the token, and TLS.

| address | `tlsCa` | spoken |
|---|---|---|
| loopback (127.0.0.0/8, ::1, localhost) | - | plaintext |
| any other | - | TLS; the authorities that this system trusts count |
| any | given | TLS; only the authorities in the file count |

Both files are read once, where the query is planned; their contents travel to executors with the reader, never as
options, which Spark shows. Where no file with a token is named, LAKEBROKER_TOKEN in the environment is the token itself, as a
platform's secrets come; a query's planning may be another process, which the JVM starts: it gets the token of a driver's
environment by a file (`token_file_for`).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.source.addresses import is_loopback, parse_address

if TYPE_CHECKING:
    import grpc

TOKEN_VARIABLE = "LAKEBROKER_TOKEN"
CA_OPTION = "--tls-ca FILE (tlsCa in the data source)"
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "Cannot check peer: missing selected ALPN property")
"""In gRPC's words for what came instead of a handshake."""
_NO_GRPC = ("Socket closed", "Failed parsing HTTP/2")
"""What gRPC says where something else answers in plaintext, or closes: a remoting port, a name server, metrics."""
_CHANNEL = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),  # a log opened anew connects anew
]


@dataclass(frozen=True, slots=True)
class Access:
    """See the module. `ca`: certificates of the authorities that count, PEM, without which the system's do."""

    token: str | None = field(default=None, repr=False)
    ca: bytes | None = field(default=None, repr=False)

    def tls(self, address: str) -> bool:
        """Whether a gateway is spoken to over TLS. Raises SourceError."""
        return self.ca is not None or not is_loopback(parse_address(address, "brokers")[0])

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Of every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def channel(self, address: str) -> grpc.Channel:
        """A channel to a gateway; the caller closes it. Raises SourceError."""
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what failed is told by who called
        import grpc

        if not self.tls(address):
            return grpc.insecure_channel(address, options=_CHANNEL)
        credentials = grpc.ssl_channel_credentials(self.ca or _system_authorities())
        return grpc.secure_channel(address, credentials, options=_CHANNEL)


def access_of(options: Mapping[str, str]) -> Access:
    """By the options `tokenfile` and `tlsca`, names of files on this machine, or the environment's token. Raises SourceError."""
    token = _text(options.get("tokenfile", ""), "tokenFile") or _of_environment()
    return Access(token or None, _authorities(options.get("tlsca", "")))


def has_token(options: Mapping[str, str]) -> bool:
    """Whether these options, or the environment, name a token."""
    return bool(options.get("tokenfile") or os.environ.get(TOKEN_VARIABLE))


def token_file_for(options: Mapping[str, str], folder: Callable[[], str]) -> dict[str, str]:
    """The option `tokenFile` with a new file in a private folder that the caller removes, for a source that is planned by another process, which may not have
    this one's environment; nothing where a file is named already, or there is no token. Raises SourceError."""
    if options.get("tokenfile") or not (token := _of_environment()):
        return {}
    file = Path(folder()) / "token"
    file.touch(mode=0o600, exist_ok=False)
    file.write_text(token, encoding="ascii")
    return {"tokenFile": str(file)}


def unconnected(address: str, details: str, *, own_ca: bool) -> SourceError | None:
    """What gRPC's `details` of UNAVAILABLE tell of a connection that was not made; None for anything else.

    UnreachableError where a later try may help.
    """
    if "connection refused" in details.lower():
        return UnreachableError(f"no broker at {address}: connection refused")
    if details.startswith(("errors resolving", "DNS resolution failed")):
        return UnreachableError(f"no broker at {address}: its host name cannot be looked up")
    if "CERTIFICATE_VERIFY_FAILED" in details:
        why = (
            details.partition("CERTIFICATE_VERIFY_FAILED: ")[2].removesuffix(": OK")
            or "it cannot be verified"
        )
        other = f"name the file of its authority with {CA_OPTION}"
        given = f"{CA_OPTION} names a file that has not its authority"
        return SourceError(
            f"broker {address} has a certificate that is not trusted: {why}; {given if own_ca else other}"
        )
    if "Hostname Verification Check failed" in details or "is not in peer certificate" in details:
        return SourceError(
            f"broker {address} has a certificate for other names; name the broker by one of them, or give its gateway "
            "a certificate for this one (tlsCertPath)"
        )
    if any(each in details for each in _NO_TLS):
        return SourceError(
            f"broker {address} speaks no TLS on that port, and plaintext is for loopback without {CA_OPTION}; give the port of a gateway that takes TLS "
            "(grpcServerPort; tlsCertPath, or tlsTestModeEnable=true)"
        )
    if details.startswith("failed to connect to all addresses") and any(each in details for each in _NO_GRPC):
        return UnreachableError(
            f"nobody speaks gRPC at {address} ({details.rpartition('last error: ')[2]}); give the gRPC port of a lakebroker "
            "gateway (grpcServerPort, 8081 unless it is set) or sidecar (8091)"
        )
    return None


def _of_environment() -> str:
    """The token in the environment; empty where there is none. Raises SourceError."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not all("!" <= each <= "~" for each in token):  # which is never shown
        raise SourceError(
            f"{TOKEN_VARIABLE} is no token: give its text alone, in printable ASCII without spaces"
        )
    return token


def _text(path: str, option: str) -> str:
    if not path:
        return ""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SourceError(f"{option} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:  # which has a part of it
        raise SourceError(f"{option} {path} is no text") from None
    if not text:
        raise SourceError(f"{option} {path} is empty")
    return text


def _authorities(path: str) -> bytes | None:
    text = _text(path, "tlsCa")
    if not text:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise SourceError(f"tlsCa {path} holds no certificates in PEM: {error}") from error
    return text.encode()


def _system_authorities() -> bytes | None:
    """PEM; None where the system has no such file, and gRPC's own list counts."""
    path = os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH") or ssl.get_default_verify_paths().cafile
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise SourceError(f"the system's authorities in {path} cannot be read: {error.strerror}") from error
