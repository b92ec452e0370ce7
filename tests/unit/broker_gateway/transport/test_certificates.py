"""The certificate made for trials: kept while it serves, renewed before it does not."""

from __future__ import annotations

import contextlib
import datetime
import ssl
from pathlib import Path

import pytest

from broker_gateway.transport import certificates
from broker_gateway.transport.certificates import trial_certificate, trial_context


def test_a_certificate_is_kept_while_it_serves(tmp_path: Path) -> None:
    certificate, key = trial_certificate(tmp_path, "10.0.0.1")
    before = certificate.read_bytes(), key.read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600
    assert trial_certificate(tmp_path, "10.0.0.1") == (certificate, key)
    assert (certificate.read_bytes(), key.read_bytes()) == before
    assert isinstance(trial_context(tmp_path, "10.0.0.1"), ssl.SSLContext)
    assert (certificate.read_bytes(), key.read_bytes()) == before


def test_one_for_another_host_is_made_anew(tmp_path: Path) -> None:
    certificate, _ = trial_certificate(tmp_path, "10.0.0.1")
    before = certificate.read_bytes()
    trial_certificate(tmp_path, "broker-b.example")
    assert certificate.read_bytes() != before
    assert b"broker-b.example" in certificate.read_bytes().splitlines()[0]


def test_a_client_can_trust_those_of_several_brokers(tmp_path: Path) -> None:
    pairs = [trial_certificate(tmp_path / name, "127.0.0.1") for name in ("a", "b", "c")]
    trusting = ssl.create_default_context(cadata="".join(file.read_text() for file, _ in pairs))
    for file, key in pairs:
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
        server = certificates.server_context(file, key).wrap_bio(to_server, to_client, server_side=True)
        for side in (client, server, client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        assert client.getpeercert()["issuer"] == client.getpeercert()["subject"]


def test_one_that_is_about_to_expire_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "_VALID", datetime.timedelta(days=30))
    certificate, _ = trial_certificate(tmp_path, "10.0.0.1")
    before = certificate.read_bytes()
    monkeypatch.undo()
    trial_certificate(tmp_path, "10.0.0.1")
    assert certificate.read_bytes() != before


@pytest.mark.parametrize("damaged", ["trial-certificate.pem", "trial-key.pem"])
@pytest.mark.parametrize("keep", [0, 1, 60, 120])
def test_damage_is_mended(tmp_path: Path, damaged: str, keep: int) -> None:
    trial_certificate(tmp_path, "10.0.0.1")
    path = tmp_path / damaged
    path.write_bytes(path.read_bytes()[:keep])
    assert isinstance(trial_context(tmp_path, "10.0.0.1"), ssl.SSLContext)
    assert isinstance(trial_context(tmp_path, "10.0.0.1"), ssl.SSLContext)


def test_a_key_that_is_gone_is_made_anew(tmp_path: Path) -> None:
    _, key = trial_certificate(tmp_path, "10.0.0.1")
    key.unlink()
    assert isinstance(trial_context(tmp_path, "10.0.0.1"), ssl.SSLContext)
