"""Starting: what it prints, and how it ends when a step fails, with nothing left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from broker_gateway.api.remoting.ports import take_ports
from broker_gateway.app.broker import Broker
from broker_gateway.app.startup import _Start, run
from broker_gateway.config.gateway import load_config
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.runtime.errors import StartError
from lakebroker_testing import prestarted
from lakebroker_testing.gateway import ROOT, Gateway, NameServer, command
from lakebroker_testing.logs import written
from store.log_reader import LogReader
from structured_streaming.lake import create_tables
from tests.support.brokers.gateways import gateway_words, goodbye_was_late
from tests.support.rocketmq.requests import invoke
from tests.support.waiting import in_time


def commit_progress(lake: Path, log: LogReader, offset: int) -> None:
    """As the last commit of a batch."""
    table = DeltaTable(str(lake / "reput_progress"))
    rows = pa.Table.from_pylist([], pa.schema(table.schema().to_arrow()))
    progress = CommitProperties(app_transactions=[Transaction(f"{log.broker}/{log.log_id}", offset)])
    write_deltalake(table, rows, mode="append", commit_properties=progress)


def test_a_lake_that_is_ahead_of_the_log_ends_the_start_where_the_option_says_so(tmp_path: Path) -> None:
    store, lake = written(tmp_path / "store", "broker-a", 20), tmp_path / "lake"
    create_tables(str(lake))
    options = {"brokerName": "broker-a", "lakeLocation": str(lake), "lakeNewLogWhenAhead": "false"}
    commit_progress(lake, LogReader(store), LogReader(store).readable_offset)
    with Gateway(tmp_path, **options) as gateway:
        assert gateway.terminate() == 0
    end = LogReader(store).readable_offset
    commit_progress(lake, LogReader(store), end + 1)
    done = start(tmp_path, **options)
    assert done.returncode == 255
    assert f"up to {end + 1}, the log ends at {end}: its end was lost" in done.stderr
    assert "Traceback" not in done.stderr
    assert LogReader(store).readable_offset == end
    assert "lakeNewLogWhenAhead=true" in done.stderr
    former = LogReader(store).log_id
    with Gateway(tmp_path, **{**options, "lakeNewLogWhenAhead": "true"}) as gateway:
        assert LogReader(store).log_id != former
        assert gateway.terminate() == 0


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of the loopback interface that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def start(
    folder: Path, *arguments: str, wrapper: Sequence[str] = (), **options: str
) -> CompletedProcess[str]:
    """A gateway that is expected to end by itself."""
    words = gateway_words(folder, *arguments, **options)
    if not wrapper:
        return prestarted.run(*words)
    return subprocess.run([*wrapper, *command(*words)], capture_output=True, text=True, cwd=ROOT, check=False)


def assert_nothing_left(folder: Path) -> None:
    """No port file, no `abort`, and the lock is free: the next start is a clean one."""
    assert list(folder.glob("ports.json*")) == []
    store = folder / "store"
    if not store.exists():
        return
    assert not (store / "abort").exists()
    with (store / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("option", ["grpcServerPort", "metricsPromExporterPort"])
def test_a_port_that_is_taken(tmp_path: Path, taken: int, option: str) -> None:
    done = start(tmp_path, **{option: str(taken)})
    assert done.returncode == 255
    assert f"lakebroker: port {taken} of 127.0.0.1 cannot be opened" in done.stderr
    assert f"choose another {option}" in done.stderr
    assert "boot success" not in done.stdout
    assert list(tmp_path.iterdir()) == [], "no store was made"


def test_a_name_servers_port_that_is_taken(tmp_path: Path, taken: int) -> None:
    done = start(tmp_path, "--with-namesrv", lakeNamesrvListenPort=str(taken))
    assert done.returncode == 255
    assert f"lakebroker: port {taken} of 127.0.0.1 cannot be opened" in done.stderr
    assert "choose another lakeNamesrvListenPort" in done.stderr
    assert list(tmp_path.iterdir()) == [], "no store was made"


@pytest.mark.parametrize(
    ("option", "transport"),
    [
        ("grpcBindAddress", "http2"),
        ("grpcBindAddress", "grpcio"),
        ("metricsPromExporterHost", "http2"),
        ("bindAddress", "http2"),
    ],
)
def test_an_address_that_another_host_has(tmp_path: Path, option: str, transport: str) -> None:
    done = start(tmp_path, lakeTransport=transport, **{option: "203.0.113.1"})
    assert done.returncode == 255
    assert f"lakebroker: {option}=203.0.113.1 is not an address of this host" in done.stderr
    assert "give one of its IP addresses" in done.stderr
    assert list(tmp_path.iterdir()) == [], "no store was made"


def test_a_store_that_another_process_has(tmp_path: Path) -> None:
    with Gateway(tmp_path / "first") as first:
        done = start(tmp_path, storePathRootDir=str(first.store))
        assert done.returncode == 255
        assert "Lock failed, MQ already started" in done.stderr
        assert (first.store / "abort").exists(), "the other one's"
        assert not (tmp_path / "ports.json").exists()
        assert first.terminate() == 0


def test_a_store_whose_identity_is_damaged(tmp_path: Path) -> None:
    assert start(tmp_path, lakePortFile="/proc/nope/x").returncode == 254  # it made the store
    identity = tmp_path / "store" / "lakebroker.json"
    identity.write_bytes(b"\x00" * 100)
    done = start(tmp_path)
    assert done.returncode == 255
    assert "lakebroker.json" in done.stderr
    assert_nothing_left(tmp_path)


def test_a_store_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    done = start(tmp_path, storePathRootDir=str(tmp_path / "file" / "store"))
    assert done.returncode == 254
    assert f"the store {tmp_path}/file/store cannot be used" in done.stderr
    assert "storePathRootDir" in done.stderr
    assert not (tmp_path / "ports.json").exists()


def test_a_store_folder_that_may_not_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o500)
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may write anywhere, and there is no setpriv to give that up")
    as_others = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    done = start(tmp_path, wrapper=as_others)
    assert done.returncode == 254
    assert "Permission denied" in done.stderr
    assert not (tmp_path / "ports.json").exists()


def test_a_port_file_that_cannot_be_written(tmp_path: Path) -> None:
    done = start(tmp_path, lakePortFile=str(tmp_path / "missing" / "ports.json"))
    assert done.returncode == 254
    assert "lakePortFile=" in done.stderr
    assert "boot success" not in done.stdout
    assert_nothing_left(tmp_path)


def test_a_start_that_fails_behind_its_registration_is_taken_back(tmp_path: Path) -> None:
    with NameServer(tmp_path / "namesrv") as name_server:
        address = name_server.address
        done = in_time(
            lambda: start(tmp_path, lakePortFile="/proc/nope/x", namesrvAddr=address),
            lambda done: goodbye_was_late(done.stderr, address),
        )
        assert done.returncode == 254
        assert "lakePortFile=" in done.stderr
        assert "unregistered" in done.stderr
        listed = invoke(name_server.address, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        assert b"broker-a" not in listed.body
        assert name_server.terminate() == 0
    assert_nothing_left(tmp_path)


def test_certificates_that_are_none(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    bad.chmod(0o600)
    done = start(tmp_path, tlsCertPath=str(bad), tlsKeyPath=str(bad))
    assert done.returncode == 253
    assert f"tlsCertPath={bad}" in done.stderr
    alone = start(tmp_path, tlsCertPath=str(bad))
    assert alone.returncode == 253
    assert "tlsKeyPath is missing" in alone.stderr
    grpcio = start(tmp_path, lakeTransport="grpcio", tlsTestModeEnable="true")
    assert grpcio.returncode == 253
    assert "TLS needs the transport http2" in grpcio.stderr
    assert list(tmp_path.iterdir()) == [bad], "no store was made"


def test_a_folder_that_keeps_no_certificate(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "config" / "trial-key.tmp"
    folder.mkdir(parents=True)
    (tmp_path / "store" / "commitlog").mkdir()  # a store, as one is left
    kept = start(tmp_path)
    assert kept.returncode == 254
    assert "tlsTestModeEnable=false" in kept.stderr
    assert_nothing_left(tmp_path)


def test_a_remoting_port_that_another_broker_has_taken_and_not_opened_yet(tmp_path: Path) -> None:
    config, _ = load_config(None, {"listenPort": "0", "bindAddress": "127.0.0.1"}, {})
    taken = take_ports(config)
    try:
        done = start(tmp_path, listenPort=str(taken.port), bindAddress="127.0.0.1")
    finally:
        taken.close()
    assert done.returncode == 255
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"lakebroker: listenPort {taken.port} of 127.0.0.1")
    assert not (tmp_path / "store").exists(), "nothing was touched before"


def test_an_address_that_means_nothing(tmp_path: Path) -> None:
    done = start(tmp_path, bindAddress="no.such.host.invalid")
    assert done.returncode == 253
    assert "option bindAddress=no.such.host.invalid: " in done.stderr
    assert not (tmp_path / "store").exists()


def test_options_that_are_printed_come_with_what_is_warned_about(tmp_path: Path) -> None:
    for shown in ("-p", "-m"):
        done = start(tmp_path, shown, brokrName="x")
        assert done.returncode == 0
        assert "brokerName=broker-a\n" in done.stdout
        assert ("lakeMaxClients=" in done.stdout) is (shown == "-p"), "-m shows those that matter most"
        assert "option brokrName is unknown and has no effect; did you mean brokerName?" in done.stderr
        assert "brokrName" not in done.stdout


def test_a_token_that_cannot_be_read(tmp_path: Path) -> None:
    done = start(tmp_path, lakeTokenFile=str(tmp_path / "missing"))
    assert done.returncode == 253
    assert "lakeTokenFile=" in done.stderr
    assert_nothing_left(tmp_path)


def test_a_token_that_is_no_text_is_not_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes("geheim-Schlüssel-TOPSECRET-123".encode("latin-1"))
    token.chmod(0o600)
    done = start(tmp_path, lakeTokenFile=str(token))
    assert done.returncode == 253
    assert f"lakeTokenFile={token} is not UTF-8; write" in done.stderr
    assert "TOPSECRET" not in done.stderr
    assert_nothing_left(tmp_path)


def test_secrets_of_options_are_not_shown(tmp_path: Path) -> None:
    secret = '{"accessKey":"a","secretKey":"TOPSECRET"}'
    for name in ("innerClientAuthenticationCredentials", "initAuthenticationUser"):
        done = start(tmp_path, **{name: secret})
        assert done.returncode == 253
        assert f"option {name}=****** is refused" in done.stderr
        assert "TOPSECRET" not in done.stderr


def test_a_configuration_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = start(tmp_path, "-c", str(tmp_path / "missing.conf"))
    assert missing.returncode == 253
    assert "missing.conf cannot be read" in missing.stderr
    (tmp_path / "bad.conf").write_text("brokerName=a\nnonsense\n")
    bad = start(tmp_path, "-c", str(tmp_path / "bad.conf"))
    assert bad.returncode == 253
    assert "bad.conf, line 2: 'nonsense' is no key=value" in bad.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ({"brokerRole": "SLAVE"}, 253, "option brokerRole=SLAVE is refused: replication to slaves"),
        ({"enableControllerMode": "true", "enableDLegerCommitLog": "true"}, 252, "must not both be true"),
    ],
)
def test_modes_that_are_refused(tmp_path: Path, options: dict[str, str], status: int, message: str) -> None:
    done = start(tmp_path, **options)
    assert done.returncode == status
    assert message in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_damaged_list_of_peers_is_said_and_held_against_nobody(tmp_path: Path) -> None:
    peers = tmp_path / "peers.json"
    peers.write_text("{damaged")
    with Gateway(tmp_path, lakePeersFile=str(peers)) as gateway:
        assert gateway.terminate() == 0
    assert "the list of peers cannot be read" in gateway.log.read_text()


def test_the_boot_line_is_the_originals(tmp_path: Path) -> None:
    with Gateway(tmp_path, brokerId="3") as gateway:
        assert gateway.terminate() == 0
    lines = gateway.log.read_text().splitlines()
    port = gateway.remoting_port
    assert f"The broker[broker-a, 127.0.0.1:{port}] boot success. serializeType=JSON" in lines
    assert any("option brokerId=3 is set to 0, as every master's" in line for line in lines)


def test_the_boot_line_names_the_name_servers(tmp_path: Path) -> None:
    with Gateway(tmp_path, namesrvAddr="127.0.0.1:1;127.0.0.1:2") as gateway:
        assert gateway.terminate() == 0
    assert "serializeType=JSON and name server is 127.0.0.1:1;127.0.0.1:2\n" in gateway.log.read_text()


STEPS = [
    "_load_extensions",
    "_take_ports",
    "_open_store",
    "_start_services",
    "_open_server",
    "_open_remoting",
    "_register",
    "_announce",
]


HERE = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "listenPort": "0",
    "grpcServerPort": "0",
    "metricsPromExporterPort": "-1",
    "brokerIP1": "127.0.0.1",
}
"""Of a broker in this process."""


def run_here(monkeypatch: pytest.MonkeyPatch, step: str, **options: str) -> None:
    """A broker in this process, which is told to stop as the step begins."""
    real = getattr(_Start, step)

    async def slow(self: _Start) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await self._stopped.wait()
        await real(self)

    monkeypatch.setattr(_Start, step, slow)
    run(load_config(None, {**HERE, **options}, {})[0])


@pytest.mark.usefixtures("own_logs")
@pytest.mark.parametrize("step", STEPS)
def test_a_signal_during_the_start_ends_it_before_anything_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], step: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as name_server:
        name_server.setblocking(False)
        run_here(
            monkeypatch,
            step,
            storePathRootDir=str(tmp_path / "store"),
            lakePortFile=str(tmp_path / "ports.json"),
            namesrvAddr=f"127.0.0.1:{name_server.getsockname()[1]}" if step != "_announce" else "",
        )
        with pytest.raises(BlockingIOError):
            name_server.accept()
    said = capsys.readouterr()
    assert "boot success" not in said.out
    assert "stopped before it served" in said.err
    assert_nothing_left(tmp_path)


@pytest.mark.usefixtures("own_logs")
def test_a_signal_during_the_scan_ends_it_and_the_next_start_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Gateway(tmp_path, mappedFileSizeCommitLog=str(16 << 20)) as gateway:
        assert gateway.terminate() == 0
    shutil.rmtree(gateway.store / "lakeindex")  # what it covers is not scanned again
    (gateway.store / "abort").write_text("1")
    run_here(monkeypatch, "_open_store", storePathRootDir=str(gateway.store))
    said = capsys.readouterr()
    assert "stopped before it served" in said.err
    assert "log recovered" not in said.err
    assert (gateway.store / "abort").exists(), "the next start has as much to recover"
    with Gateway(tmp_path) as again:
        assert again.terminate() == 0
    assert "clean=False" in again.log.read_text()


@pytest.mark.usefixtures("own_logs")
def test_what_nobody_thought_of_ends_with_the_originals_status_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Broker) -> None:
        raise ValueError("a journal from the future")

    monkeypatch.setattr(Broker, "load", broken)
    given = {**HERE, "storePathRootDir": str(tmp_path / "store")}
    with pytest.raises(StartError, match="the broker ended: ValueError: a journal from the future") as ended:
        run(load_config(None, given, {})[0])
    assert ended.value.exit_code == 255
    assert "Traceback" in capsys.readouterr().err
    assert_nothing_left(tmp_path)


def test_isolated_logs_name_the_broker_on_every_line(tmp_path: Path) -> None:
    with Gateway(tmp_path, isolateLogEnable="true", lakeLogFormat="json") as gateway:
        assert gateway.terminate() == 0
    lines = [line for line in gateway.log.read_text().splitlines() if line.startswith("{")]
    assert lines
    assert all('"broker": "broker-a_0"' in line for line in lines)


def test_what_was_started_can_be_started_again_after_each_failure(tmp_path: Path, taken: int) -> None:
    assert start(tmp_path, grpcServerPort=str(taken)).returncode == 255
    assert start(tmp_path, lakePortFile="/proc/nope/x").returncode == 254
    assert (tmp_path / "store").exists(), "the last step failed"
    with Gateway(tmp_path) as gateway:
        assert gateway.terminate() == 0
    assert "clean=True" in gateway.log.read_text(), "the failed start left no `abort`"
