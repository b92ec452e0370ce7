"""What `lakebroker console` refuses before it starts, and what it asks nobody for."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker_gateway.cli.console import server
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.lake_engine import LakeEngine
from broker_gateway.cli.console.replays import Replays
from broker_gateway.cli.console.server import Listening
from broker_gateway.cli.gateway_calls import Reached
from broker_gateway.cli.main import app
from broker_gateway.transport.certificates import trial_certificate
from lakebroker_testing.ports import free_ports
from tests.support.lakes.empty import empty_lake

ROOT = Path(__file__).resolve().parents[5]
HERE = Reached("127.0.0.1:1", "", None, None)


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["console", *arguments])
    assert result.exit_code != 0
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Listening, str]]:
    """Where a console with these arguments would serve, and what it says before."""
    found = list[Listening]()
    monkeypatch.setattr(server, "serve", lambda made, listening: found.append(listening))

    def run(*arguments: str) -> tuple[Listening, str]:
        result = CliRunner().invoke(app, ["console", *arguments])
        assert result.exit_code == 0, result.stderr
        return found.pop(), result.stderr

    return run


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("--port", str(port))
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in said


@pytest.mark.parametrize("given", [[], ["--page-token-file", "token"]])
def test_other_machines_may_look_in_only_with_a_token_and_tls(tmp_path: Path, given: list[str]) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    said = refused("--host", "0.0.0.0", *[str(token) if each == "token" else each for each in given])
    assert (
        "--host 0.0.0.0: other machines could look in; give --page-token-file, --tls-cert and --tls-key"
        in said
    )


def test_a_token_that_others_may_read_or_that_is_short_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("short")
    token.chmod(0o600)
    assert "shorter than 16 characters" in refused("--page-token-file", str(token))
    token.write_text("0123456789abcdef")
    token.chmod(0o644)
    said = refused("--page-token-file", str(token))
    assert str(token) in said
    assert "0123456789abcdef" not in said


def test_a_certificate_without_a_name_is_refused_where_others_may_look_in(tmp_path: Path) -> None:
    token, key, certificate = tmp_path / "token", tmp_path / "key.pem", tmp_path / "cert.pem"
    token.write_text("0123456789abcdef")
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=console.example"]
    command_line = ["openssl", "req", "-x509", *made, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command_line, check=True, capture_output=True)
    for secret in (token, key):
        secret.chmod(0o600)
    given = ["--page-token-file", str(token), "--tls-cert", str(certificate), "--tls-key", str(key)]
    said = refused("--host", "0.0.0.0", "--port", "0", *given)
    assert f"--tls-cert {certificate} names no host" in said
    assert "subjectAltName" in said


def test_a_place_where_no_lake_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    for place in (tmp_path, tmp_path / "other", tmp_path / "other" / "lake"):
        assert str(place) in refused("--lake", str(place), "--port", "0")


def test_a_lake_that_is_not_made_yet_is_waited_for(
    tmp_path: Path, served: Callable[..., tuple[Listening, str]]
) -> None:
    for place in (tmp_path, tmp_path / "lake"):
        listening, said = served("--lake", str(place), "--port", "0")
        listening.port.close()
        assert f"no lake yet at {place}" in said


def test_a_lake_that_lacks_a_table_is_waited_for_and_called_what_it_is(
    tmp_path: Path, served: Callable[..., tuple[Listening, str]]
) -> None:
    empty_lake(str(tmp_path))
    shutil.rmtree(tmp_path / "quarantine")
    listening, told = served("--lake", str(tmp_path), "--port", "0")
    listening.port.close()
    with pytest.raises(AskError) as asked:
        LakeEngine(str(tmp_path), {}).rows("SELECT 1")
    for said in (told, str(asked.value)):
        assert "lacks the table quarantine; `lakebroker init --lake` makes what is missing" in said
        assert "no lake yet" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gateway", "nowhere"], "--gateway"),
        (["--interval", "0.1s"], "--interval 0.1s: give 0.5s to 60s"),
        (["--tls-cert", "cert.pem"], "--tls-cert and --tls-key belong together"),
        (["--namesrv", "127.0.0.1:9876", "--allow-replay"], "--allow-replay sends to one gateway"),
    ],
)
def test_options_that_do_not_go_together_are_named(arguments: list[str], said: str) -> None:
    assert said in refused("--port", "0", *arguments)


def test_the_port_of_a_databricks_app_is_taken_and_a_wrong_one_is_named(
    monkeypatch: pytest.MonkeyPatch, served: Callable[..., tuple[Listening, str]]
) -> None:
    monkeypatch.setenv("DATABRICKS_APP_PORT", "http")
    assert "DATABRICKS_APP_PORT=http is no port" in refused("--behind-proxy")
    (port,) = free_ports(1)
    monkeypatch.setenv("DATABRICKS_APP_PORT", str(port))
    listening, _ = served("--behind-proxy")
    with listening.port as made:
        assert made.getsockname() == ("0.0.0.0", port)
    assert listening.behind_proxy
    listening, _ = served("--behind-proxy", "--host", "127.0.0.1")
    with listening.port as made:
        assert made.getsockname() == ("127.0.0.1", port), "the address that was named, also behind a proxy"


def test_on_all_addresses_the_names_of_the_certificate_are_answered(
    tmp_path: Path, served: Callable[..., tuple[Listening, str]]
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    pair = trial_certificate(tmp_path, "console.example")
    certificate, key = map(str, pair)
    listening, _ = served(
        *("--host", "0.0.0.0", "--port", "0", "--page-token-file", str(token)),
        *("--tls-cert", certificate, "--tls-key", key),
    )
    with listening.port as made:
        assert listening.url == f"https://console.example:{made.getsockname()[1]}/"
    assert listening.names == {"console.example", "localhost", "127.0.0.1", "[::1]"}
    assert "0123456789abcdef" not in repr(listening)


def test_without_the_extra_the_command_names_it() -> None:
    script = """
import sys
from importlib import util
find = util.find_spec
util.find_spec = lambda name, *rest: None if name == "nicegui" else find(name, *rest)
from broker_gateway.cli.main import app
from tests.support.lakes.empty import empty_lake
assert not {"nicegui", "fastapi", "uvicorn"} & set(sys.modules), "imported by a command that needs none"
app(["console", "--port", "0"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "lakebroker: console needs nicegui, which is not installed: pip install 'lakebroker[console]'\n"
    )


@pytest.mark.parametrize(("reached", "allowed"), [(HERE, False), (None, True), (None, False)])
def test_a_console_that_only_reads_refuses_a_replay_whoever_asks_for_it(
    reached: Reached | None, allowed: bool
) -> None:
    replays = Replays(reached, allowed)
    assert not replays.allowed
    with pytest.raises(AskError, match="this console only reads"):
        replays.plan("billing", ())
