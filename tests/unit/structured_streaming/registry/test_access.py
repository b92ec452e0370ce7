"""Credentials and TLS of a schema registry: who gets them, and who never does; who takes too long."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from broker_gateway.transport.certificates import server_context, trial_certificate
from structured_streaming import destination
from structured_streaming.commit.typed_lake import FolderTyped
from structured_streaming.destination import KeptUpTopics
from structured_streaming.errors import LakeError
from structured_streaming.registry import http, questions
from structured_streaming.registry.access import NOTHING, RegistryAccess
from structured_streaming.registry.subject import Registry, RegistryAwayError
from structured_streaming.reput_options import ReputOptions, checked
from structured_streaming.storage.local import LocalFolder
from structured_streaming.typed.declaration import FILLING
from structured_streaming.typed_topics import of_registry, topics_of
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.schema_registry import SchemaRegistry
from tests.support.lakes.typed_batches import Log, framed
from tests.support.waiting import wait_until

TOKEN, PASSWORD = "token-0123456789abcdef", 'p:ss"word-\\0123456789'
BASIC = base64.b64encode(f"reader:{PASSWORD}".encode()).decode()
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as made:
        made.add(7, ORDER)
        yield made


def secret(folder: Path, text: str, name: str = "secret") -> str:
    file = folder / name
    file.write_text(f"{text}\n")
    file.chmod(0o600)
    return str(file)


def with_token(server: SchemaRegistry, folder: Path) -> RegistryAccess:
    return RegistryAccess(server.base, token_file=secret(folder, TOKEN))


def without_secrets(text: str) -> str:
    for each in (TOKEN, PASSWORD, BASIC, PASSWORD.replace('"', '\\"')):
        assert each not in text
    return text


def test_credentials_of_both_kinds(server: SchemaRegistry, tmp_path: Path) -> None:
    user = RegistryAccess(server.base, user_file=secret(tmp_path, f"reader:{PASSWORD}", "user"))
    for access, header in ((with_token(server, tmp_path), f"Bearer {TOKEN}"), (user, f"Basic {BASIC}")):
        server.wants = header
        server.headers.clear()
        (found,) = Registry(server.url, header, access).schemas()
        assert found.schema.id == 7
        assert server.headers == [header, header]


@pytest.mark.parametrize("step", ["..", "%2e%2E", ".", "..%2fb", "x\\.."])
def test_no_path_leads_out_of_the_registry(server: SchemaRegistry, tmp_path: Path, step: str) -> None:
    access = RegistryAccess(f"{server.base}/a", token_file=secret(tmp_path, TOKEN))
    with pytest.raises(LakeError, match="its path leads elsewhere"):
        Registry(f"{server.base}/a/{step}/other/subjects/orders-value", "", access).schemas()
    assert server.asked == []


def test_wrong_credentials_are_named_by_their_file(server: SchemaRegistry, tmp_path: Path) -> None:
    server.wants = "Bearer another"
    access = with_token(server, tmp_path)
    with pytest.raises(LakeError) as raised:
        Registry(server.url, "", access).schemas()
    said = without_secrets(str(raised.value))
    assert f"answers 401 to the credentials in --registry-token-file {tmp_path}/secret; put" in said
    assert not isinstance(raised.value, RegistryAwayError)
    with pytest.raises(LakeError, match="no credentials were sent; give --registry-token-file or"):
        Registry(server.url).schemas()
    without_secrets(repr(access) + repr(access.credentials(server.url)))


@pytest.mark.parametrize("status", [200, 404, 503])
def test_no_error_quotes_credentials(server: SchemaRegistry, tmp_path: Path, status: int) -> None:
    access = RegistryAccess(server.base, user_file=secret(tmp_path, f"reader:{PASSWORD}"))
    for echoed in (f"you sent Basic {BASIC}", f"reader:{PASSWORD}", PASSWORD, f'{{"sent": "{BASIC}"}}'):
        server.answer = lambda path, echoed=echoed: (status, echoed.encode())  # type: ignore[misc]
        with pytest.raises(LakeError) as raised:
            Registry(server.url, "", access).schemas()
        assert "***" in without_secrets(str(raised.value))


def test_credentials_go_to_their_registry_alone(server: SchemaRegistry, tmp_path: Path) -> None:
    with SchemaRegistry() as other:
        other.add(8, ORDER)
        access = with_token(server, tmp_path)
        Registry(other.url, "", access).schemas()
        assert other.headers == [None, None]
        below = replace(access, url=f"{server.base}/apis")
        Registry(server.url, "below", below).schemas()
        assert server.headers == [None, None]
        server.answer = lambda path: (302, f"{other.base}{path}".encode())
        with pytest.raises(LakeError, match="answers 302, and leads elsewhere, which is not followed"):
            Registry(server.url, "", access).schemas()
        assert server.headers[-1] == f"Bearer {TOKEN}"
        assert len(other.asked) == 2


def test_a_token_is_read_anew(server: SchemaRegistry, tmp_path: Path) -> None:
    registry = Registry(server.url, "anew", with_token(server, tmp_path))
    registry.schemas()
    secret(tmp_path, "renewed")
    registry.schemas()
    assert [server.headers[0], server.headers[-1]] == [f"Bearer {TOKEN}", "Bearer renewed"]


@pytest.mark.parametrize(
    ("access", "problem"),
    [
        (RegistryAccess(token_file="{secret}"), "--registry-token-file: give --registry URL, too"),
        (RegistryAccess("https://r:8081"), "give one of them, or leave it out"),
        (RegistryAccess("r:8081", "{secret}"), "--registry 'r:8081': give a URL such as"),
        (RegistryAccess("https://u:hidden@r", "{secret}"), "--registry 'r': give a URL such as"),
        (RegistryAccess("https://r?x=1", "{secret}"), "without"),
        (
            RegistryAccess("http://registry:8081", "{secret}"),
            "is spoken to in plaintext, and --registry-token-file",
        ),
        (RegistryAccess("https://r", "{secret}", "{secret}"), "a registry takes one of them"),
        (RegistryAccess("https://r", "{nothing}"), "cannot be read: No such file"),
        (RegistryAccess("https://r", "{empty}"), "is empty"),
        (RegistryAccess("https://r", "{lines}"), "holds no bearer token"),
        (RegistryAccess("https://r", user_file="{secret}"), "is not user:password in one line"),
        (RegistryAccess("https://r", user_file="{binary}"), "is no text"),
        (RegistryAccess("https://r", tls_ca="{secret}"), "holds no certificates in PEM"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, access: RegistryAccess, problem: str) -> None:
    secret(tmp_path, TOKEN)
    secret(tmp_path, "", "empty")
    secret(tmp_path, f"{TOKEN}\nx: y", "lines")
    (tmp_path / "binary").write_bytes(b"\xff" + TOKEN.encode())

    def placed(text: str) -> str:
        return str(tmp_path / text[1:-1]) if text.startswith("{") else text

    given = RegistryAccess(*map(placed, (access.url, access.token_file, access.user_file, access.tls_ca)))
    options = ReputOptions(str(tmp_path / "lake"), store=str(tmp_path), registry=given)
    with pytest.raises(LakeError) as raised:
        checked(options)
    assert problem in without_secrets(str(raised.value))
    assert "hidden" not in str(raised.value)


def test_tls_by_a_file_of_authorities(tmp_path: Path) -> None:
    certificate, key = trial_certificate(tmp_path / "tls", "localhost")
    context = server_context(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    with SchemaRegistry(context, f"Bearer {TOKEN}") as server:
        server.add(7, ORDER)
        access = RegistryAccess(server.base, secret(tmp_path, TOKEN), tls_ca=str(certificate))
        assert len(Registry(server.url, "", access).schemas()) == 1
        with pytest.raises(LakeError, match="certificate that is not trusted: "):
            Registry(server.url, "", replace(access, tls_ca="")).schemas()
        asked = len(server.asked)
        elsewhere = replace(access, url="https://127.0.0.1:1")
        with pytest.raises(LakeError, match="not trusted"):
            Registry(server.url, "", elsewhere).schemas()
        assert len(server.asked) == asked


@pytest.mark.parametrize("tls", [False, True])
def test_who_sends_a_byte_now_and_then_is_cut_off(tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WHOLE_S", 0.5)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            peer, _ = listening.accept()
            with peer:
                content = b"\x16\x03\x03\x3f\xff" if tls else b"HTTP/1.1 200 OK\r\nX-Long: "
                while not stop.wait(0.05):
                    try:
                        peer.sendall(content)
                    except OSError:
                        return
                    content = b"x"

        thread = threading.Thread(target=drip)
        thread.start()
        port = listening.getsockname()[1]
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/subjects/x"
        with pytest.raises(RegistryAwayError, match=r"takes more than 0\.5 s"):
            Registry(url).schemas()
        stop.set()
        thread.join()


def test_an_asking_ends_whatever_each_answer_takes(
    server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(server.url, "ends")
    begin = time.monotonic()
    now = [begin]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def answer(path: str) -> tuple[int, bytes]:
        now[0] += 100
        return server.own_answer(path)

    server.answer = answer
    with pytest.raises(RegistryAwayError, match="takes more than 60 s for its answers"):
        registry.schemas()
    assert len(server.asked) == 1


def test_the_command_and_the_reputs_refresh_send_them(
    server: SchemaRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(questions, "REGISTRY_S", 0.0)
    server.wants = f"Bearer {TOKEN}"
    lake = empty_lake(str(tmp_path / "lake")).path
    access = with_token(server, tmp_path)

    def add(*more: str) -> tuple[int, str]:
        given = ["typed", "add", "orders", "--schema", server.url, "--lake", str(lake)]
        done = CliRunner().invoke(app, [*given, *more])
        return done.exit_code, without_secrets(done.output)

    code, said = add()
    assert (code, "no credentials were sent" in said) == (1, True)
    code, said = add("--registry-token-file", access.token_file)
    assert code == 0, said
    Path(access.token_file).chmod(0o644)
    code, said = add("--registry-token-file", access.token_file)
    assert (code, "chmod 600" in said) == (1, True)
    Path(access.token_file).chmod(0o600)
    for given in (NOTHING, access):
        topics = KeptUpTopics(FolderTyped(LocalFolder(lake)), questions=questions.Questions(given))
        topics.filled()
        server.add(9 if given is NOTHING else 10, {**ORDER, "doc": repr(given is NOTHING)})
        said, changed = "", False

        def looked(topics: KeptUpTopics = topics) -> bool:
            nonlocal said, changed
            changed = topics.changed({"typed_orders": {9, 10}})
            said += without_secrets(capsys.readouterr().err)
            return changed or bool(said)

        wait_until(looked)
        assert changed == (given is access)
        assert ("typed_orders waits, all else goes on" in said) == (given is NOTHING)
    (declared,) = FolderTyped(LocalFolder(lake)).declarations()
    assert [schema.id for schema in declared.schemas] == [7, 9, 10]
    assert TOKEN not in "".join(
        path.read_text() for path in (lake / "typed_orders" / "_delta_log").glob("*.json")
    )


def test_a_reput_of_a_folder_has_them(
    server: SchemaRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.wants = f"Bearer {TOKEN}"
    lake, access = empty_lake(str(tmp_path / "lake")).path, with_token(server, tmp_path)
    added = topics_of(str(lake), access).add(of_registry("orders", server.url, access=access), print)
    log = Log(lake)
    log.batch((added.declared,), framed(9, ORDER, {"id": 1}))
    server.add(9, {**ORDER, "doc": "newer"})
    options = ReputOptions(str(lake), store=str(tmp_path))
    for given in (options, replace(options, registry=access)):
        destination.FolderDestination(given).open(None, tmp_path)  # type: ignore[arg-type]
        waits = "typed_orders waits, all else goes on" in without_secrets(capsys.readouterr().err)
        assert waits == (given is options)
        assert [row["id"] for row in log.rows()] == ([] if waits else [1])


def test_maintenance_fills_with_them(server: SchemaRegistry, tmp_path: Path) -> None:
    server.wants = f"Bearer {TOKEN}"
    lake, access = empty_lake(str(tmp_path / "lake")).path, with_token(server, tmp_path)
    topics_of(str(lake), access).add(of_registry("orders", server.url, access=access), print)
    log = Log(lake)
    log.batch((), framed(9, ORDER, {"id": 1}))
    server.add(9, {**ORDER, "doc": "newer"})
    folder = FolderTyped(LocalFolder(lake))
    folder.alter("typed_orders", lambda now: replace(now, state=FILLING))
    options = ["--registry", server.base, "--registry-token-file", access.token_file]
    for given in ([], options):
        done = CliRunner().invoke(app, ["maintain", "--lake", str(lake), *given])
        said = without_secrets(done.output)
        assert done.exit_code == (0 if given else 1), said
        assert ("no credentials were sent" in said) == (not given)
        assert ("`lakebroker typed fill orders`" in said) == (not given)
        assert [row["id"] for row in log.rows()] == ([1] if given else [])
    assert "typed_orders: 1 row of what it lacked added" in said


def test_a_reput_with_credentials_that_cannot_be_used_ends_at_once(tmp_path: Path) -> None:
    given = ["reput", "--lake", str(tmp_path / "lake"), "--store", str(tmp_path)]
    done = CliRunner().invoke(app, [*given, "--registry-user-file", secret(tmp_path, f"u:{PASSWORD}")])
    assert done.exit_code == 1
    assert "give --registry URL, too" in without_secrets(done.output)
    assert not (tmp_path / "lake").exists()
