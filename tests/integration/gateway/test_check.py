"""`lakebroker gateway --check`: what it says of this host, and that nothing comes of it."""

from __future__ import annotations

import datetime
import json
import os
import resource
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.transport.certificates import trial_certificate
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import ROOT, Gateway, NameServer, command, settings_of
from lakebroker_testing.prestarted import Limits, run
from structured_streaming.lake import create_tables

SMALL = str(16 << 20)
FREE = {"grpcServerPort": "0", "listenPort": "0", "metricsPromExporterPort": "0"}
"""Ports that nobody else has."""


def checked(
    store: Path, *arguments: str, wrapper: Sequence[str] = (), limits: Limits | None = None, **options: str
) -> tuple[int, dict[str, dict[str, Any]], str]:
    """The status, the findings by check, the broker's before it where there is one, and standard error."""
    given = {
        "storePathRootDir": str(store),
        **FREE,
        "mappedFileSizeCommitLog": SMALL,
        **options,
    }
    settings = settings_of(given)
    words = ("gateway", "--check", "--json", *arguments, *settings)
    if wrapper:
        done = subprocess.run(
            [*wrapper, *command(*words)], capture_output=True, text=True, cwd=ROOT, check=False
        )
    else:
        done = run(*words, limits=limits)
    assert "Traceback" not in done.stderr, done.stderr
    rows = json.loads(done.stdout)
    return (
        done.returncode,
        {" ".join(filter(None, (row["broker"], row["check"]))): row for row in rows},
        done.stderr,
    )


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_host_that_fits_and_no_store_is_made(tmp_path: Path) -> None:
    status, found, told = checked(tmp_path / "store")
    assert (status, told) == (0, "")
    assert found["store"]["value"].endswith("a new one")
    assert {row["verdict"] for row in found.values()} <= {"ok", "warn"}
    assert list(found)[:3] == ["configuration", "store", "open files"]
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_every_finding_and_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "others").write_text("x")
    given = {**FREE, "brokerId": "3"}
    settings = settings_of(given)
    words = ("gateway", "--check", "--store", str(tmp_path), *settings)
    done = run(*words, env={**os.environ, "COLUMNS": "80"})
    assert done.returncode == 1
    text = " ".join(done.stdout.replace("│", " ").split())
    assert "holds other files (others)" in text
    assert "give an empty folder or a store (storePathRootDir)" in text
    assert "warn configuration option brokerId=3 is set to 0" in text
    assert "the broker would not start: 1 check failed (store)" in done.stderr


def test_each_wrong_thing_is_a_finding_with_its_value(tmp_path: Path, taken: int) -> None:
    status, found, told = checked(
        tmp_path / "store",
        "-n",
        f"127.0.0.1:{taken}",
        grpcServerPort=str(taken),
        lakeTokenFile=str(tmp_path / "none"),
        tlsCertPath=str(tmp_path / "cert.pem"),
        lakePortFile=str(tmp_path / "nowhere" / "ports.json"),
        mappedFileSizeCommitLog=str(1 << 32),
        connectTimeoutMillis="300",
        grpcBindAddress="127.0.0.1",
    )
    assert status == 1
    failed = [name for name, row in found.items() if row["verdict"] == "fail"]
    assert {"ports", "port file", "token", "TLS"} <= set(failed)
    assert f"port {taken} of 127.0.0.1 cannot be opened" in found["ports"]["value"]
    assert found["ports"]["remedy"] == "choose another grpcServerPort"
    assert "tlsKeyPath is missing" in found["TLS"]["value"]
    assert found["name server"]["verdict"] == "warn", "a start goes on without it"
    assert str(taken) in found["name server"]["value"]
    assert "the broker would not start" in told


def test_a_bad_option_is_a_finding(tmp_path: Path) -> None:
    status, found, _ = checked(tmp_path / "store", flushDiskType="MAYBE")
    assert status == 1
    assert list(found) == ["configuration"]
    assert "flushDiskType=MAYBE" in found["configuration"]["value"]


def test_limits_of_the_process(tmp_path: Path) -> None:
    low = {resource.RLIMIT_NOFILE: (100, 100), resource.RLIMIT_FSIZE: (1 << 20, 1 << 20)}
    status, found, _ = checked(tmp_path / "store", limits=low)
    assert status == 1
    assert "may open 100 files" in found["open files"]["value"]
    assert "LimitNOFILE=" in found["open files"]["remedy"]
    assert "LimitFSIZE=" in found["segments"]["remedy"]


def test_a_store_that_a_broker_runs_on_is_left_alone(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        assert gateway.process is not None
        before = sorted((path.name, path.stat().st_mtime_ns) for path in gateway.store.iterdir())
        status, found, _ = checked(gateway.store, grpcServerPort=str(gateway.grpc_port))
        assert status == 0, "to look at a configuration before a restart"
        assert found["store"]["verdict"] == "warn"
        assert f"process {gateway.process.pid} has it open" in found["store"]["value"]
        assert "ports" not in found
        apart = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]
        _, found, _ = checked(gateway.store, wrapper=apart)
        assert "a process out of sight" in found["store"]["value"]
        client = Client(gateway.address)
        assert client.send("t", b"m").entries, "the broker still has its lock and serves"
        client.close()
        after = {path.name: path.stat().st_mtime_ns for path in gateway.store.iterdir()}
        assert {name for name, _ in before} <= set(after)
        assert gateway.terminate() == 0
    assert checked(gateway.store)[1]["store"]["verdict"] == "ok"


def test_name_servers_and_the_lake_are_asked(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    create_tables(str(lake))
    with NameServer(tmp_path / "ns") as server:
        _, found, _ = checked(tmp_path / "store", "-n", server.address, lakeLocation=str(lake))
    assert found["name server"]["value"] == f"{server.address} answers"
    assert found["lake"]["verdict"] == "ok"
    _, found, _ = checked(tmp_path / "store", lakeLocation=str(tmp_path / "none"))
    assert "holds no lake yet" in found["lake"]["value"]
    nobody = "127.0.0.1:1"
    _, found, _ = checked(tmp_path / "store", "--offline", "-n", nobody, lakeLocation=str(tmp_path / "none"))
    assert not {"name server", "lake"} & set(found), (
        "neither is asked, as before a restart that must not wait"
    )


def test_a_certificate_tells_until_when_it_is_good(tmp_path: Path) -> None:
    certificate, key = trial_certificate(tmp_path, "127.0.0.1")
    options = {"tlsCertPath": str(certificate), "tlsKeyPath": str(key)}
    _, found, _ = checked(tmp_path / "store", **options)
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=365)
    assert found["TLS"]["verdict"] == "ok"
    assert f"good until {end:%Y-%m}" in found["TLS"]["value"]
    key.chmod(0o644)
    status, found, _ = checked(tmp_path / "store", **options)
    assert status == 1
    assert found["TLS"]["verdict"] == "fail"


def test_several_brokers_each_have_their_findings(tmp_path: Path) -> None:
    status, found, _ = checked(tmp_path / "store", "--processes", "2")
    assert status == 0, found
    assert found["broker-a-0 store"]["value"].endswith("broker-a-0, a new one")
    assert found["broker-a-1 ports"]["verdict"] == "ok"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "lakebroker.json").write_text("{}")
    status, found, _ = checked(tmp_path / "store", "--processes", "2")
    assert status == 1
    assert "is the store of one broker" in found["processes"]["value"]


def test_a_folder_that_this_user_may_not_look_into_is_told(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    status, found, told = checked(closed / "store", wrapper=user)
    closed.chmod(0o700)
    assert status == 1
    assert "cannot be looked at" in found["store"]["value"]
    assert "(store)" in told


def test_a_read_only_folder_is_told(tmp_path: Path) -> None:
    read_only = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    script = f'mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path} && exec "$@"'
    status, found, _ = checked(tmp_path / "store", wrapper=[*read_only, script, "sh"])
    assert status == 1
    assert "cannot be written to by user 0" in found["store"]["value"]
    assert "storePathRootDir" in found["store"]["remedy"]
