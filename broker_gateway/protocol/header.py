"""Headers in both serializations.

JSON: an object with `code`, `language` (a name), `version`, `opaque`, `flag`, `remark`, `extFields`.

ROCKETMQ, all big-endian:

| field | bytes |
|---|---|
| code | 2, signed |
| language | 1 |
| version | 2, signed |
| opaque | 4, signed |
| flag | 4, signed |
| remark | 4 + n, UTF-8; 0 is none |
| ext fields | 4 + n: pairs of key (2 + n) and value (4 + n), UTF-8 |
"""

from __future__ import annotations

import struct
from typing import Any

from broker_gateway.protocol import java_json
from broker_gateway.protocol.codes import LanguageCode
from broker_gateway.protocol.command import Command, SerializeType
from broker_gateway.protocol.errors import BodyError, EncodeError, ProtocolError

MAX_FIELDS = 10_000
_FIXED = struct.Struct(">hBhii")
assert _FIXED.size == 13
_INT = struct.Struct(">i")
assert _INT.size == 4
_SHORT = struct.Struct(">h")
assert _SHORT.size == 2
_INT32 = 1 << 31


def encode_header(command: Command) -> bytes:
    """The header's bytes. Raises EncodeError."""
    for name in ("code", "opaque", "flag", "version"):
        number = getattr(command, name)
        if not -_INT32 <= number < _INT32:
            raise EncodeError(f"{name} {number} does not fit 32 bits")
    if command.serialize_type is SerializeType.ROCKETMQ:
        return _encode_binary(command)
    return java_json.dumps(
        {
            "code": int(command.code),
            "extFields": dict(command.ext_fields) or None,
            "flag": command.flag,
            "language": _language_name(command.language),
            "opaque": command.opaque,
            "remark": command.remark,
            "serializeTypeCurrentRPC": "JSON",
            "version": int(command.version),
        }
    )


def decode_header(kind: SerializeType, header: bytes, body: bytes) -> Command:
    """The command of a whole frame. Raises ProtocolError."""
    return _decode_json(header, body) if kind is SerializeType.JSON else _decode_binary(header, body)


def _language_name(number: int) -> str:
    try:
        return LanguageCode(number).name
    except ValueError:
        return LanguageCode.OTHER.name


def _decode_json(header: bytes, body: bytes) -> Command:
    try:
        members = java_json.JsonObject(java_json.loads(header), "the header")
        fields = members.object("extFields").members
        return Command(
            code=_int32(members, "code"),
            ext_fields=_texts(fields),
            body=body,
            remark=members.optional_text("remark"),
            opaque=_int32(members, "opaque"),
            flag=_int32(members, "flag"),
            version=_int32(members, "version"),
            language=_language(members.members.get("language")),
            serialize_type=SerializeType.JSON,
        )
    except BodyError as error:
        raise ProtocolError(f"header of {len(header)} bytes: {error}") from error


def _int32(members: java_json.JsonObject, name: str) -> int:
    number = members.integer(name, 0)
    if not -_INT32 <= number < _INT32:
        raise ProtocolError(f"{name} {number} does not fit 32 bits")
    return number


def _language(value: Any) -> int:
    """A name, or as some clients write it, a number. Nothing depends on it."""
    if isinstance(value, str) and value in LanguageCode.__members__:
        return LanguageCode[value]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 127:
        return value
    return LanguageCode.OTHER


def _texts(fields: dict[str, Any]) -> dict[str, str]:
    """Values as texts, as fastjson makes them; null is absent."""
    if len(fields) > MAX_FIELDS:
        raise ProtocolError(f"{len(fields)} ext fields: {MAX_FIELDS} are allowed")
    found = {}
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, int | float):
            value = str(value)
        elif not isinstance(value, str):
            raise ProtocolError(f"ext field {name[:80]!r} is no text")
        found[name] = value
    return found


def _encode_binary(command: Command) -> bytes:
    for field in ("code", "version"):
        number = getattr(command, field)
        if not -(1 << 15) <= number < 1 << 15:
            raise EncodeError(f"{field} {number} does not fit the 16 bits of a ROCKETMQ header; use JSON")
    remark = (command.remark or "").encode("utf-8", "replace")
    parts: list[bytes] = []
    for key, value in command.ext_fields.items():
        name, text = key.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        if len(name) >= 1 << 15:
            raise EncodeError(f"the name of an ext field has {len(name)} bytes, 32767 are allowed")
        parts += [_SHORT.pack(len(name)), name, _INT.pack(len(text)), text]
    fields = b"".join(parts)
    fixed = _FIXED.pack(command.code, command.language & 0xFF, command.version, command.opaque, command.flag)
    return b"".join((fixed, _INT.pack(len(remark)), remark, _INT.pack(len(fields)), fields))


class _Cursor:
    """Reads a header front to back; never past its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def number(self, layout: struct.Struct, what: str) -> int:
        if self.at + layout.size > len(self._data):
            raise ProtocolError(f"the header ends within {what}, at byte {self.at}")
        (number,) = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        return int(number)

    def text(self, layout: struct.Struct, what: str, end: int) -> str:
        length = self.number(layout, f"the length of {what}")
        if length < 0 or self.at + length > end:
            raise ProtocolError(f"{what} has {length} bytes at byte {self.at} of a header of {end}")
        raw = self._data[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{what} is no UTF-8: {error}") from error


def _decode_binary(header: bytes, body: bytes) -> Command:
    if len(header) < _FIXED.size + 8:
        raise ProtocolError(f"a ROCKETMQ header has at least {_FIXED.size + 8} bytes, not {len(header)}")
    code, language, version, opaque, flag = _FIXED.unpack_from(header)
    cursor = _Cursor(header)
    cursor.at = _FIXED.size
    remark = cursor.text(_INT, "remark", len(header))
    length = cursor.number(_INT, "the length of the ext fields")
    end = cursor.at + length
    if length < 0 or end > len(header):
        raise ProtocolError(f"ext fields of {length} bytes in a header of {len(header)}")
    fields: dict[str, str] = {}
    while cursor.at < end:
        key = cursor.text(_SHORT, "the name of an ext field", end)
        fields[key] = cursor.text(_INT, "an ext field", end)
        if len(fields) > MAX_FIELDS:
            raise ProtocolError(f"more than {MAX_FIELDS} ext fields")
    return Command(
        code=code,
        ext_fields=fields,
        body=body,
        remark=remark or None,
        opaque=opaque,
        flag=flag,
        version=version,
        language=language,
        serialize_type=SerializeType.ROCKETMQ,
    )
