"""TLS of the gRPC port: the operator's certificate, or one made for trials."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from pathlib import Path

import structlog

from broker_gateway.runtime.errors import OptionError
from store.errors import SecretError
from store.log.permissions import check_secret

log = structlog.get_logger(__name__)

_VALID = datetime.timedelta(days=365)
_RENEWED = datetime.timedelta(days=60)
"""Before it expires, at the next start."""
_HEADER = "lakebroker trial certificate until "
"""Text in front of the certificate, which readers of PEM pass over: its end and names, to be read without a parser."""


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context for HTTP/2 over TLS 1.2 or later. Raises OptionError when the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        check_secret(key, "tlsKeyPath")
        context.load_cert_chain(certificate, key)
    except SecretError as error:
        raise OptionError(str(error)) from error
    except (OSError, ssl.SSLError) as error:
        raise OptionError(
            f"tlsCertPath={certificate} and tlsKeyPath={key} cannot be used: {error}; give a certificate and its "
            "key, both in PEM"
        ) from error
    return context


def trial_context(folder: Path, host: str) -> ssl.SSLContext:
    """A context with a certificate signed by nobody else, for `host` and loopback, kept in `folder`.

    It is made when there is none, or when the one there is for another host, about to expire or damaged. Raises OSError
    when it cannot be kept.
    """
    certificate, key = trial_certificate(folder, host)
    try:
        return server_context(certificate, key)
    except OptionError as error:
        log.warning("the certificate made for trials is damaged and made anew", error=str(error))
        certificate.unlink()
        return server_context(*trial_certificate(folder, host))


def trial_certificate(folder: Path, host: str) -> tuple[Path, Path]:
    """Files of a self-signed certificate and its key, made unless those in `folder` still serve. Raises OSError."""
    certificate, key = folder / "trial-certificate.pem", folder / "trial-key.pem"
    names = sorted({"localhost", "127.0.0.1", "::1", host})
    now = datetime.datetime.now(datetime.UTC)
    if _serves(certificate, names, now) and key.exists():
        return certificate, key
    folder.mkdir(parents=True, exist_ok=True)
    end = now + _VALID
    signed, secret = _signed(names, now, end)
    header = f"{_HEADER}{end.isoformat(timespec='seconds')} {' '.join(names)}\n".encode()
    _replace(key, secret)
    _replace(certificate, header + signed)
    return certificate, key


def _serves(certificate: Path, names: list[str], now: datetime.datetime) -> bool:
    """Whether the header says that it is for these names and lasts for a while."""
    try:
        with certificate.open("rb") as file:
            line = file.readline(4096).decode("ascii", "replace")
        end, *found = line.removeprefix(_HEADER).split()
        return (
            line.startswith(_HEADER)
            and found == names
            and datetime.datetime.fromisoformat(end) > now + _RENEWED
        )
    except (FileNotFoundError, ValueError, TypeError):
        return False


def _signed(names: list[str], now: datetime.datetime, end: datetime.datetime) -> tuple[bytes, bytes]:
    """A certificate and its key, PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    subject = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.COMMON_NAME, "lakebroker trial"),
            # a client that trusts several of them tells them apart by their names alone
            x509.NameAttribute(x509.NameOID.SERIAL_NUMBER, f"{serial:x}"),
        ]
    )
    alternatives: list[x509.GeneralName] = []
    for name in names:
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            alternatives.append(x509.DNSName(name))
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private.public_key())
        .serial_number(serial)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    secret = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return signed.public_bytes(serialization.Encoding.PEM), secret


def _replace(path: Path, content: bytes) -> None:
    staged = path.with_suffix(".tmp")
    with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    staged.rename(path)
