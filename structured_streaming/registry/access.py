"""How a schema registry is spoken to: credentials out of a file, and TLS.

Credentials, and the authorities of a file, are for one registry: the declarations of a lake may name others, which get neither. The
files are read anew for each asking, so a token may be renewed. What is in them is in no option, no log and no error.

| registry | credentials | spoken |
|---|---|---|
| `http://` on loopback | any | plaintext |
| `http://` on another host | none | plaintext |
| `http://` on another host | any | refused |
| `https://` | any | TLS; the authorities in `tls_ca` count, without it the system's |
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from structured_streaming.errors import LakeError
from structured_streaming.source.addresses import is_loopback

TOKEN_FILE, USER_FILE, TLS_CA = "--registry-token-file", "--registry-user-file", "--registry-tls-ca"
_MOST_BYTES = 8192
"""Of a file with credentials."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_USER = re.compile(r"[^:\x00-\x1f\x7f]+:[^\x00-\x1f\x7f]*")
_MOST_CA = 1 << 20


@dataclass(frozen=True, slots=True)
class Credentials:
    """The header `authorization`, None without; `named` says where it is from, `secrets` are texts that nobody is shown."""

    header: str | None = field(default=None, repr=False)
    named: str = ""
    secrets: Sequence[str] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """See the module. `url`: the registry that the others are for; `token_file`, `user_file` (user:password), `tls_ca`: files here."""

    url: str = ""
    token_file: str = ""
    user_file: str = ""
    tls_ca: str = ""

    def check(self) -> None:
        """Raises LakeError for options and files that cannot be used."""
        given = {TOKEN_FILE: self.token_file, USER_FILE: self.user_file, TLS_CA: self.tls_ca}
        named = [option for option, file in given.items() if file]
        if named and not self.url:
            raise LakeError(
                f"{' and '.join(named)}: give --registry URL, too, of the registry that gets it; no other does"
            )
        if self.url and not named:
            raise LakeError(
                f"--registry {self.url!r:.300}: it says whose {TOKEN_FILE}, {USER_FILE} or {TLS_CA} is; give one of them, or leave it out"
            )
        if self.url:
            place = split(self.url, "--registry")
            if place.query or place.fragment:
                raise LakeError(f"--registry {self.url!r:.300}: give its URL without ? and #")
            self.credentials(self.url)
            self.tls(self.url)

    def credentials(self, url: str) -> Credentials:
        """For a URL. Raises LakeError where their file cannot be used, or where they would be sent in plaintext."""
        if not self._is_for(url) or not (self.token_file or self.user_file):
            return Credentials()
        if self.token_file and self.user_file:
            raise LakeError(f"{TOKEN_FILE} and {USER_FILE}: a registry takes one of them; leave one out")
        option, file = (TOKEN_FILE, self.token_file) if self.token_file else (USER_FILE, self.user_file)
        place = split(url, "registry")
        if place.scheme != "https" and not is_loopback(place.hostname or ""):
            raise LakeError(
                f"registry {url} is spoken to in plaintext, and {option} {file} would be there for everybody to read; give its "
                "https URL"
            )
        text = _text(file, option, _MOST_BYTES)
        if self.token_file:
            if not _TOKEN.fullmatch(text):
                raise LakeError(
                    f"{option} {file} holds no bearer token; write it alone, letters, digits and -._~+/ ="
                )
            return Credentials(f"Bearer {text}", f"{option} {file}", (text,))
        if not _USER.fullmatch(text):
            raise LakeError(f"{option} {file} is not user:password in one line")
        encoded = base64.b64encode(text.encode()).decode()
        return Credentials(f"Basic {encoded}", f"{option} {file}", (text, encoded, text.partition(":")[2]))

    def tls(self, url: str) -> ssl.SSLContext | None:
        """For a URL; None in plaintext. Raises LakeError for a file without certificates."""
        if split(url, "registry").scheme != "https":
            return None
        if not self.tls_ca or not self._is_for(url):
            return ssl.create_default_context()
        text = _text(self.tls_ca, TLS_CA, _MOST_CA)
        try:
            return ssl.create_default_context(cadata=text)
        except (ssl.SSLError, ValueError) as error:
            raise LakeError(f"{TLS_CA} {self.tls_ca} holds no certificates in PEM: {error}") from error

    def _is_for(self, url: str) -> bool:
        """Whether a URL is the registry's, or below it."""
        if not self.url:
            return False
        mine, other = split(self.url, "--registry"), split(url, "registry")
        below = (other.path.rstrip("/") + "/").startswith(mine.path.rstrip("/") + "/")
        return _origin(mine) == _origin(other) and below


NOTHING = RegistryAccess()
"""No credentials; the system's authorities."""


def split(url: str, option: str) -> SplitResult:
    """The parts of an HTTP URL. Raises LakeError, which names the option that has it."""
    try:
        found = urlsplit(url)
        whole = found.scheme in ("http", "https") and found.hostname and found.port != 0
    except ValueError:
        whole = False
    if not whole or found.username is not None or re.search(r"[\x00-\x20\x7f]", url):
        raise LakeError(
            f"{option} {url.rpartition('@')[2]!r:.300}: give a URL such as https://registry:8081, without credentials"
        )
    if any(part in (".", "..") for part in re.split(r"[/\\]", unquote(found.path))):
        raise LakeError(f"{option} {url!r:.300}: its path leads elsewhere by . or ..; give it without")
    return found


def _origin(place: SplitResult) -> tuple[str, str | None, int]:
    return place.scheme, place.hostname, place.port or (443 if place.scheme == "https" else 80)


def _text(path: str, option: str, most: int) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(most + 1)
        text = content.decode("utf-8").strip()
    except OSError as error:
        raise LakeError(f"{option} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:  # which has a part of it
        raise LakeError(f"{option} {path} is no text") from None
    if not text or len(content) > most:
        raise LakeError(f"{option} {path} is {'empty' if not text else f'larger than {most:,} bytes'}")
    return text
