"""A sidecar whose readers are on other hosts: a token and TLS, or no answer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from broker_gateway.transport.certificates import trial_certificate
from lakebroker_testing.gateway import ROOT, command
from store.log_reader import LogReader
from structured_streaming.errors import SourceError
from structured_streaming.source.access import Access
from structured_streaming.source.remote import BrokerLog
from tests.support.brokers.sidecar import Sidecar
from tests.support.lakes.checks import assert_exact
from tests.support.logs.real_store import RealStore
from tests.support.machines.hosts import Host, Hosts

TOKEN = "a token of some length"
NOW_MS = 1 << 41
"""Behind the start of any host."""


def store_on(host: Host) -> RealStore:
    store = RealStore(host.folder / "store")
    store.messages(500, NOW_MS)
    return store


def refused(address: str, token: str | None, authority: Path) -> str:
    """What a reader is told that is not this host's."""
    log = BrokerLog(address, Access(token, authority.read_bytes()))
    try:
        with pytest.raises(SourceError) as found:
            log.describe()
        return str(found.value)
    finally:
        log.close()


def test_a_lake_of_a_broker_on_another_host(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        broker, reader = hosts.add("broker"), hosts.add("reader")
        store = store_on(broker)
        certificate, key = trial_certificate(broker.folder / "tls", broker.address)
        other, _ = trial_certificate(tmp_path / "other", broker.address)
        for host in (broker, reader):
            (host.folder / "token").write_text(TOKEN)
            (host.folder / "token").chmod(0o600)
        authority, lake = reader.folder / "ca.pem", reader.folder / "lake"
        authority.write_bytes(certificate.read_bytes())
        secured = ("--set", f"tlsCertPath={certificate}", "--set", f"tlsKeyPath={key}")
        files = (f"--token-file={broker.folder / 'token'}", *secured)
        served = {"host": broker.address, "wrapper": broker.wrapper}
        with Sidecar(broker.folder, store.root, *files, **served) as sidecar:
            assert "carries no token" in refused(sidecar.address, None, authority)
            assert "carries another token" in refused(sidecar.address, TOKEN[1:], authority)
            assert "certificate that is not trusted" in refused(sidecar.address, TOKEN, other)
            arguments = ("--brokers", sidecar.address, "--lake", str(lake), "--once")
            access = ("--token-file", str(reader.folder / "token"), "--tls-ca", str(authority))
            done = subprocess.run(
                [*reader.wrapper, *command("reput", *arguments, *access)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            log_id = sidecar.log_id
        whole = LogReader(store.root, broker="broker-a", log_id=log_id)
        assert assert_exact(lake, whole)["messages"] == 500


def test_without_a_token_only_its_own_host_is_answered(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        broker = hosts.add("broker")
        store = store_on(broker)
        certificate, key = trial_certificate(broker.folder / "tls", broker.address)
        secured = ("--set", f"tlsCertPath={certificate}", "--set", f"tlsKeyPath={key}")
        served = {"host": broker.address, "wrapper": broker.wrapper}
        for shown in (None, TOKEN):
            with Sidecar(broker.folder, store.root, *secured, **served) as sidecar:
                said = refused(sidecar.address, shown, certificate)
                assert "PERMISSION_DENIED" in said
                assert "--token-file" in said


def test_without_a_certificate_other_hosts_are_not_spoken_to(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        broker = hosts.add("broker")
        store = store_on(broker)
        certificate, _ = trial_certificate(tmp_path / "tls", broker.address)
        token = broker.folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        served = {"host": broker.address, "wrapper": broker.wrapper}
        with Sidecar(broker.folder, store.root, f"--token-file={token}", **served) as sidecar:
            assert "speaks no TLS on that port" in refused(sidecar.address, TOKEN, certificate)
            assert "there is no certificate; give --set tlsCertPath=FILE" in sidecar.log.read_text()
