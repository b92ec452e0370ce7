"""Which gateways are spoken to over TLS, and what is read of the files that say how."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from broker_gateway.transport.certificates import trial_certificate
from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.source.access import Access, access_of, token_file_for
from structured_streaming.source.logs import open_log
from structured_streaming.source.options import SourceOptions


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    certificate, _ = trial_certificate(tmp_path, "127.0.0.1")
    return certificate


@pytest.mark.parametrize("address", ["127.0.0.1:8081", "127.9.9.9:1", "[::1]:8081", "localhost:8081"])
def test_loopback_is_plaintext_unless_an_authority_is_given(address: str, ca: Path) -> None:
    assert not Access().tls(address)
    assert Access(ca=ca.read_bytes()).tls(address)


@pytest.mark.parametrize(
    "address", ["10.0.0.1:8081", "broker:8081", "[2001:db8::1]:8081", "127.0.0.1.example:1", "0.0.0.0:1"]
)
def test_all_others_are_tls(address: str) -> None:
    assert Access().tls(address)


@pytest.mark.parametrize(
    "address", ["broker", "broker:", ":8081", "broker:0", "broker:65536", "::1:8081", "http://broker:8081"]
)
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(SourceError, match=r"brokers: address .*write it as host:port"):
        SourceOptions({"brokers": address})


def test_the_files_are_read_once_and_shown_nowhere(tmp_path: Path, ca: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    access = access_of({"tokenfile": str(token), "tlsca": str(ca)})
    token.unlink()
    assert access.metadata == (("authorization", "Bearer 0123456789abcdef"),)
    assert access.ca is not None
    assert b"BEGIN CERTIFICATE" in access.ca
    assert "0123456789abcdef" not in repr(access)


def test_the_environment_has_a_token_where_no_file_is_named(
    tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBROKER_TOKEN", "of-the-environment\n")
    file = tmp_path / "token"
    file.write_text("of-the-file-itself")
    assert access_of({}).token == "of-the-environment"
    assert access_of({"tokenfile": str(file)}).token == "of-the-file-itself"
    with pytest.raises(SourceError, match="namesrv with a token needs --tls-ca"):
        SourceOptions({"namesrv": "h:9876"})
    monkeypatch.setenv("LAKEBROKER_TOKEN", "")
    assert access_of({}).token is None


@pytest.mark.parametrize("token", ["two words", "two\nlines-of-it", "schl\xfcssel"])
def test_what_is_no_token_is_refused_and_not_shown(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBROKER_TOKEN", token)
    with pytest.raises(SourceError, match="LAKEBROKER_TOKEN is no token") as refused:
        access_of({})
    assert token not in str(refused.value)


def test_the_environments_token_is_handed_on_by_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBROKER_TOKEN", "of-the-environment")
    (file,) = token_file_for({}, lambda: str(tmp_path)).values()
    monkeypatch.delenv("LAKEBROKER_TOKEN")
    assert Path(file).stat().st_mode & 0o777 == 0o600
    assert access_of({"tokenfile": file}).token == "of-the-environment"
    assert token_file_for({}, lambda: str(tmp_path)) == {}
    assert token_file_for({"tokenfile": "elsewhere"}, lambda: str(tmp_path)) == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), (b"", "is empty"), (b"\xff\xfe", "is no text"), (b"junk", "in PEM")],
)
def test_a_file_without_certificates_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SourceError, match=f"^tlsCa {file} .*{said}"):
        access_of({"tlsca": str(file)})


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["closes", "http1"])
def test_a_port_that_speaks_no_grpc_is_named_with_the_remedy(reply: bytes) -> None:
    """As a broker's remoting port, which closes, and its metrics port. It may be a gateway that starts: a later try may help."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1024)
                    connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        log = open_log(f"broker:{address}", Access())
        try:
            with pytest.raises(UnreachableError) as refused:
                log.describe()
        finally:
            log.close()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert f"nobody speaks gRPC at {address}" in str(refused.value)
    assert "grpcServerPort" in str(refused.value)
