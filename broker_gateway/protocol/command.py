"""A command: one request or response of the remoting protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from broker_gateway.protocol.codes import LanguageCode, ResponseCode, Version

RESPONSE_FLAG = 1
ONE_WAY_FLAG = 2


class SerializeType(IntEnum):
    """Form of the header; the top byte of its length."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(frozen=True, slots=True)
class Command:
    """`code` is a RequestCode or, in a response, a ResponseCode; `opaque` links the two.

    An absent body and an empty one are the same. `language` is a LanguageCode, or a number nobody knows.
    """

    code: int
    ext_fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    version: int = Version.V5_5_0
    language: int = LanguageCode.PYTHON
    serialize_type: SerializeType = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & ONE_WAY_FLAG)

    def with_opaque(self, opaque: int, flag: int) -> Command:
        """The same command as it goes out."""
        return replace(self, opaque=opaque, flag=flag)

    def reply(
        self,
        code: int = ResponseCode.SUCCESS,
        *,
        remark: str | None = None,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Command:
        """The response to this request; in JSON, whatever the request came in, as the original's servers do."""
        return Command(code, fields or {}, body, remark, self.opaque, RESPONSE_FLAG)
