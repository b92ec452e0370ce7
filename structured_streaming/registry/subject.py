"""The schemas of a subject, from a schema registry with Confluent's HTTP interface. The driver asks, never an executor.

| asked | answer, JSON |
|---|---|
| `SUBJECT/versions` | a list of numbers |
| `SUBJECT/versions/N`, also of subjects that it refers to (`references.py`) | `id`, `schema`, `schemaType` (none: AVRO), `references` |
| `/schemas/ids/ID?format=serialized`, of Protobuf | `schema`: a file's descriptor in base64 |

What a version is does not change, so it is asked for once in a process. An answer is bounded in bytes and time, all of an asking in
time, and none leads elsewhere. Of what a registry says an error quotes a part, without the credentials that were sent.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from structured_streaming.errors import LakeError, NotThereError
from structured_streaming.registry.access import (
    NOTHING,
    TLS_CA,
    TOKEN_FILE,
    USER_FILE,
    Credentials,
    RegistryAccess,
    split,
)
from structured_streaming.registry.http import get
from structured_streaming.registry.references import Version, avro, json_schema, referred
from structured_streaming.typed.declaration import (
    AVRO,
    JSON,
    MOST_SCHEMA,
    MOST_VERSIONS,
    PROTOBUF,
    REGISTRY,
    Schema,
)
from structured_streaming.typed.fields import SchemaError

ALL_S = 60.0
"""For all answers of one asking; what was answered is known when it is asked again."""
_MOST_BYTES = 4 * MOST_SCHEMA
_MOST_LISTED = 10_000
_FORMATS = {"AVRO": AVRO, "JSON": JSON, "PROTOBUF": PROTOBUF}


class RegistryAwayError(LakeError, NotThereError):
    """A registry that does not answer now; it may later."""


class RegistryRefusesError(LakeError):
    """A registry that is not spoken to as it wants: credentials, certificates, its place."""


class Registered(NamedTuple):
    """A schema of a subject, whole by itself; its version is to be given by the declaration. `problem`: why it cannot be used as the
    registry has it; `format` and text may be empty then."""

    format: str
    schema: Schema
    problem: str = ""


class Registry:
    """The subject at `url`. Calls raise LakeError: RegistryAwayError where it may be otherwise later."""

    def __init__(self, url: str, message: str = "", access: RegistryAccess = NOTHING) -> None:
        found = REGISTRY.fullmatch(url)
        if found is None:
            raise LakeError(
                f"registry {url.rpartition('@')[2]!r:.300}: give the URL of a subject, such as http://registry:8081/subjects/orders-value, "
                "without credentials; these are in a file"
            )
        self.url = url
        self._base = found[1]
        self._message = message
        self._access = access
        self._until = 0.0
        self._credentials = Credentials()
        self._tls: ssl.SSLContext | None = None

    def schemas(self, known: Iterable[int] = ()) -> list[Registered]:
        """Those of the subject whose ids are not known, the oldest first: at most `MOST_VERSIONS`, the newest."""
        self._until = time.monotonic() + ALL_S
        self._credentials = self._access.credentials(self.url)
        self._tls = self._access.tls(self.url)
        versions = self._get(f"{self.url}/versions")
        if not isinstance(versions, list) or not all(type(each) is int for each in versions):
            raise LakeError(f"registry {self.url} does not list versions: {self._quoted(versions)}")
        without = set(known)
        found = [self._version(number) for number in sorted(versions[:_MOST_LISTED])[-MOST_VERSIONS:]]
        _OTHERS.pop(self.url, None)
        return [each for each in found if each.schema.id not in without]

    def _version(self, number: int) -> Registered:
        key = (self.url, self._message, number)
        if key not in _KNOWN:
            _KNOWN[key] = self._asked(number)
        return _KNOWN[key]

    def _asked(self, number: int) -> Registered:
        given = self._get(f"{self.url}/versions/{number}")
        if not isinstance(given, dict) or type(given.get("id")) is not int:
            raise self._no_schema(self.url, number, given)
        form, schema = "", Schema(0, "", id=given["id"])
        try:
            given = self._checked(self.url, number, given)
            form, schema = _FORMATS[given.get("schemaType", "AVRO")], replace(schema, text=given["schema"])
            others = referred(given, self._other)
            if form == AVRO:
                schema = replace(schema, text=avro(schema.text, others) if others else schema.text)
            elif form == JSON:
                schema = replace(schema, text=json_schema(schema.text, others))
            else:
                schema = self._protobuf(schema, others)
        except SchemaError as error:
            return Registered(form, schema, f"version {number} of {self.url}: {error}")
        except (RegistryAwayError, RegistryRefusesError, OSError, MemoryError):
            raise
        except LakeError as error:  # of what it refers to
            return Registered(form, schema, f"version {number} of {self.url}: {error}")
        except Exception as error:  # what refers and is referred to is anybody's
            problem = f"version {number} of {self.url} cannot be read: {type(error).__name__}: {error}"
            return Registered(form, schema, problem)
        return Registered(form, schema)

    def _given(self, url: str, number: int) -> Version:
        return self._checked(url, number, self._get(f"{url}/versions/{number}"))

    def _checked(self, url: str, number: int, given: Any) -> Version:
        types = {"id": int, "schema": str}
        if (
            not isinstance(given, dict)
            or any(type(given.get(name)) is not kind for name, kind in types.items())
            or given.get("schemaType", "AVRO") not in [*_FORMATS]
        ):
            raise self._no_schema(url, number, given)
        return given

    def _no_schema(self, url: str, number: int, given: Any) -> LakeError:
        return LakeError(f"registry {url} gives no schema of version {number}: {self._quoted(given)}")

    def _other(self, subject: str, number: int) -> Version:
        known, key = _OTHERS.setdefault(self.url, {}), (subject, number)
        if key not in known:
            known[key] = self._given(f"{self._base}/subjects/{quote(subject, safe='')}", number)
        return known[key]

    def _protobuf(self, schema: Schema, others: Mapping[str, Version]) -> Schema:
        """Raises SchemaError where a descriptor is none."""
        file = self._file(schema.id)
        file.name = file.name or "schema.proto"
        files = [file]
        for name, version in others.items():
            imported = self._file(version["id"])
            imported.name = name
            files.append(imported)
        outermost = [message.name for message in file.message_type]
        if not outermost:
            raise SchemaError("it has no message")
        message = self._message or f"{file.package}.{outermost[0]}".lstrip(".")
        text = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()).decode()
        return Schema(0, text, message, schema.id)

    def _file(self, number: int) -> descriptor_pb2.FileDescriptorProto:
        given = self._get(f"{self._base}/schemas/ids/{number}?format=serialized")
        try:
            return descriptor_pb2.FileDescriptorProto.FromString(
                base64.b64decode(given["schema"], validate=True)
            )
        except (KeyError, TypeError, ValueError, DecodeError) as error:
            raise LakeError(
                f"registry {self.url} gives no descriptor of schema {number} (format=serialized): {type(error).__name__}"
            ) from None

    def _get(self, url: str) -> Any:
        if time.monotonic() > self._until:
            raise RegistryAwayError(f"registry {self.url} takes more than {ALL_S:g} s for its answers")
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self._credentials.header is not None:
            headers["Authorization"] = self._credentials.header
        try:
            status, content = get(split(url, "registry"), headers, self._tls, _MOST_BYTES)
        except ssl.SSLCertVerificationError as error:
            raise RegistryRefusesError(
                f"registry {url} has a certificate that is not trusted: {error.verify_message}; name the file of its authority "
                f"with {TLS_CA}, or the registry by a name that the certificate has"
            ) from error
        except ssl.SSLError as error:
            raise RegistryRefusesError(
                f"registry {url} cannot be spoken to over TLS: {error}; look at its port"
            ) from error
        except (OSError, ValueError) as error:
            raise RegistryAwayError(f"registry {url} does not answer: {error}") from error
        if status != 200:
            raise self._refused(url, status, self._shown(content.decode("utf-8", "replace"))[:200])
        if len(content) > _MOST_BYTES:
            raise LakeError(f"registry {url} answers with more than {_MOST_BYTES:,} bytes")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            said = self._shown(content.decode("utf-8", "replace"))
            raise LakeError(f"registry {url} answers with no JSON: {said[:100]!r}") from None

    def _refused(self, url: str, status: int, said: str) -> LakeError:
        if status >= 500 or status == 429:
            return RegistryAwayError(f"registry {url} answers {status}: {said}")
        if status in (401, 403):
            if named := self._credentials.named:
                return RegistryRefusesError(
                    f"registry {url} answers {status} to the credentials in {named}; put those into the file that it takes, and that "
                    "may read the subject"
                )
            return RegistryRefusesError(
                f"registry {url} answers {status}, and no credentials were sent; give {TOKEN_FILE} or {USER_FILE}, where "
                "no --schema names the registry with --registry, too"
            )
        if 300 <= status < 400:
            return RegistryRefusesError(
                f"registry {url} answers {status}, and leads elsewhere, which is not followed; give the URL that it leads to"
            )
        return LakeError(f"registry {url} answers {status}: {said}; look at the URL and the subject")

    def _quoted(self, value: Any) -> str:
        return self._shown(json.dumps(value))[:100]

    def _shown(self, text: str) -> str:
        """Without the credentials that were sent."""
        for secret in self._credentials.secrets:
            for written in {secret, json.dumps(secret)[1:-1]} - {""}:
                text = text.replace(written, "***")
        return text


_KNOWN: dict[tuple[str, str, int], Registered] = {}
_OTHERS: dict[str, dict[tuple[str, int], Version]] = {}
"""By subject: versions that it refers to, until all of its own are known: an asking may take longer than it has."""
