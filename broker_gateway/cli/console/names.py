"""By which names browsers reach the console: of its address, and of its certificate."""

from __future__ import annotations

import ipaddress
import re

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]*]+)(?::[0-9]{1,5})?")
"""As a Host header has it, in small letters."""


def is_every_address(host: str) -> bool:
    """Whether it is none of this machine's addresses, but stands for all of them: `0.0.0.0`, `::`."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def hosts_of(host: str, port: int) -> frozenset[str]:
    """What a Host header may be of a console that listens there; a port that is the scheme's own is left out by browsers."""
    named = bracketed(host)
    names = LOOPBACK if named in LOOPBACK or is_every_address(host) else {named.lower()}
    return frozenset({f"{name}:{port}" for name in names} | ({*names} if port in (80, 443) else set()))


def names_of(certificate: bytes) -> frozenset[str]:
    """Those of the first certificate in a PEM that TLS takes: in small letters, addresses as a Host header has them, `*.` for any
    first part. Raises ValueError where they cannot be read."""
    from cryptography import x509

    first = x509.load_pem_x509_certificates(certificate)[0]
    try:
        named = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = named.get_values_for_type(x509.IPAddress)
    return frozenset(
        {each.lower() for each in named.get_values_for_type(x509.DNSName)}
        | {bracketed(str(each)) for each in addresses}
    )


def names(certified: frozenset[str], host: str) -> bool:
    """Whether a Host header, in small letters, has one of a certificate's names. Its port may be another one than the console's, of
    what passes connections on."""
    found = _HOST.fullmatch(host)
    return found is not None and not certified.isdisjoint({found[1], f"*.{found[1].partition('.')[2]}"})


def bracketed(host: str) -> str:
    """As a URL has it."""
    return f"[{host}]" if ":" in host else host
