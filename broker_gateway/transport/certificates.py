"""TLS of the gRPC port: the operator's certificate, or one made for trials."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from pathlib import Path

from broker_gateway.errors import OptionError

_DAYS = 365


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context for HTTP/2 over TLS 1.2 or later. Raises OptionError when the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(
            f"tlsCertPath={certificate} and tlsKeyPath={key} cannot be used: {error}; give a certificate and its "
            "key, both in PEM"
        ) from error
    return context


def trial_certificate(folder: Path, host: str) -> tuple[Path, Path]:
    """A self-signed certificate for `host` and its key in `folder`; made when there is none."""
    certificate, key = folder / "trial-certificate.pem", folder / "trial-key.pem"
    if certificate.exists() and key.exists():
        return certificate, key
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lakebroker trial")])
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    for address in {"127.0.0.1", "::1", host}:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            names.append(x509.DNSName(address))
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    staged = key.with_suffix(".tmp")
    with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    staged.rename(key)
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return certificate, key
