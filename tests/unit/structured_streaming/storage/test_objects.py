"""What an object store answers, as errors: waited for, or ended with."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyarrow.fs import SubTreeFileSystem

from broker_gateway.transport.certificates import trial_certificate
from lakebroker_testing.ports import free_ports
from structured_streaming.errors import StoreAwayError
from structured_streaming.storage import objects
from structured_streaming.storage.objects import ObjectFile, ObjectFolder


@pytest.fixture(autouse=True)
def access(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")


@contextlib.contextmanager
def answering(status: int, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server that answers everything with `status`."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that refuses the certificate leaves."""

    with Server(("127.0.0.1", 0), Answer) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_store_that_says_to_come_later_is_away(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(status) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with pytest.raises(StoreAwayError, match=str(status)):
            ObjectFolder("s3://bucket", "lake").names()


@pytest.mark.parametrize("status", [400, 403, 501, 505])
def test_a_store_that_will_never_do_it_is_not(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(status) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with pytest.raises(OSError, match=str(status)) as error:
            ObjectFolder("s3://bucket", "lake").names()
        assert not isinstance(error.value, StoreAwayError)


def test_nobody_there_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(StoreAwayError):
        ObjectFolder("s3://bucket", "lake").names()


@pytest.mark.parametrize("size", [1, 6 << 20], ids=["whole", "in parts"])
def test_nobody_there_is_away_for_uploads_too(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small one obstore tells by another kind of error."""
    monkeypatch.setattr(objects, "_RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    file = ObjectFolder("s3://bucket", "lake").open_new("a")
    with pytest.raises(StoreAwayError):
        upload(file, bytes(size))


def upload(file: ObjectFile, content: bytes) -> None:
    for _ in range(2):
        file.write(content)
    file.finish()


def test_a_store_that_takes_a_connection_and_answers_nothing_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_REQUEST_S", 0.1)
    monkeypatch.setattr(objects, "_RETRIES", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(StoreAwayError):
            ObjectFolder("s3://bucket", "lake").names()


def test_a_certificate_that_nobody_trusts_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*trial_certificate(tmp_path, "127.0.0.1"))
    with answering(200, context) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with pytest.raises(OSError, match="the certificate is refused") as error:
            ObjectFolder("s3://bucket", "lake").names()
        assert not isinstance(error.value, StoreAwayError)


@pytest.mark.parametrize(
    ("root", "kind", "place"),
    [
        ("s3://bucket", "s3", "bucket/lake/messages/"),
        ("gs://bucket", "gcs", "bucket/lake/messages/"),
        ("abfss://container@account.dfs.core.windows.net", "abfs", "container/lake/messages/"),
    ],
)
def test_arrow_reads_with_a_client_that_has_no_python_in_it(
    root: str, kind: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in Python hangs for ever where a file is gone: see `arrow_clients`."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    files = ObjectFolder(root, "lake/messages").arrow_filesystem()
    assert isinstance(files, SubTreeFileSystem)
    assert (files.base_fs.type_name, files.base_path) == (kind, place)
