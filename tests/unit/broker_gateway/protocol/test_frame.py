"""Frames: round trips, splits, hostile bytes; and the layout against bytes written out by hand."""

from __future__ import annotations

import contextlib
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_gateway.protocol.codes import LanguageCode, RequestCode, ResponseCode
from broker_gateway.protocol.command import ONE_WAY_FLAG, RESPONSE_FLAG, Command, SerializeType
from broker_gateway.protocol.errors import EncodeError, ProtocolError
from broker_gateway.protocol.frame import MAX_FRAME, MAX_HEADER, Decoder, encode
from tests.suite.evidence import rounds

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT16 = st.integers(-(1 << 15), (1 << 15) - 1)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    kind = draw(st.sampled_from(list(SerializeType)))
    number = INT16 if kind is SerializeType.ROCKETMQ else INT32
    return Command(
        code=draw(number),
        ext_fields=draw(st.dictionaries(TEXT, TEXT, max_size=8)),
        body=draw(st.binary(max_size=200)),
        remark=draw(st.none() | TEXT.filter(bool)),
        opaque=draw(INT32),
        flag=draw(INT32),
        version=draw(number),
        language=draw(st.sampled_from(list(LanguageCode))),
        serialize_type=kind,
    )


def decode_all(data: bytes, sizes: list[int] | None = None) -> list[Command]:
    decoder = Decoder()
    found = []
    at = 0
    for size in [*(sizes or []), len(data)]:
        decoder.feed(data[at : at + size])
        at += size
        while (command := decoder.next_command()) is not None:
            found.append(command)
    assert decoder.buffered == 0
    return found


@given(st.lists(commands(), max_size=4), st.lists(st.integers(0, 60), max_size=20))
def test_round_trip_however_it_is_split(given_commands: list[Command], sizes: list[int]) -> None:
    assert decode_all(b"".join(map(encode, given_commands)), sizes) == given_commands


@given(commands(), st.data())
def test_a_changed_byte_gives_a_command_or_a_protocol_error(command: Command, data: st.DataObject) -> None:
    frame = bytearray(encode(command))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    decoder = Decoder()
    decoder.feed(frame)
    with contextlib.suppress(ProtocolError):  # and no other error
        while decoder.next_command() is not None:
            pass


@settings(max_examples=rounds(40, 300))
@given(st.binary(max_size=300), st.sampled_from(list(SerializeType)))
def test_any_header_gives_a_command_or_a_protocol_error(header: bytes, kind: SerializeType) -> None:
    decoder = Decoder()
    decoder.feed(struct.pack(">II", 4 + len(header), kind << 24 | len(header)) + header)
    with contextlib.suppress(ProtocolError):  # and no other error
        assert decoder.next_command() is not None


def test_binary_layout() -> None:
    command = Command(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        {"topic": "ü"},
        b"body",
        "why",
        opaque=7,
        flag=2,
        version=513,
        language=LanguageCode.GO,
        serialize_type=SerializeType.ROCKETMQ,
    )
    header = bytes.fromhex("0069 09 0201 00000007 00000002 00000003") + b"why"
    header += bytes.fromhex("0000000d 0005") + b"topic" + bytes.fromhex("00000002 c3bc")
    assert (
        encode(command) == struct.pack(">II", 4 + len(header) + 4, 1 << 24 | len(header)) + header + b"body"
    )


def test_json_header_is_what_java_writes() -> None:
    frame = encode(Command(ResponseCode.SUCCESS, {"b": "2", "a": "1"}, opaque=3, flag=1))
    assert json.loads(frame[8:]) == {
        "code": 0,
        "extFields": {"a": "1", "b": "2"},
        "flag": 1,
        "language": "PYTHON",
        "opaque": 3,
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }


@pytest.mark.parametrize(
    ("header", "fields", "language"),
    [
        (b'{"code":1,"extFields":{"a":1,"b":true,"c":null,"d":1.5}}', {"a": "1", "b": "true", "d": "1.5"}, 7),
        (b'{"code":1,"language":"RUST"}', {}, LanguageCode.RUST),
        (b'{"code":1,"language":9}', {}, LanguageCode.GO),
        (b'{"code":1,"language":"COBOL","unknown":[1]}', {}, LanguageCode.OTHER),
        (b'{code:1,extFields:{a:"x"}}', {"a": "x"}, LanguageCode.OTHER),
    ],
)
def test_json_headers_of_other_clients(header: bytes, fields: dict[str, str], language: int) -> None:
    decoder = Decoder()
    decoder.feed(struct.pack(">II", 4 + len(header), len(header)) + header)
    command = decoder.next_command()
    assert command is not None
    assert (command.code, command.ext_fields, command.language) == (1, fields, language)


def frame_of(length: int, marked: int, rest: bytes = b"") -> bytes:
    return struct.pack(">II", length, marked) + rest


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (struct.pack(">I", 3), "frame length 3"),
        (struct.pack(">I", MAX_FRAME - 3), "16777212 bytes are allowed"),
        (struct.pack(">I", 0xFFFFFFFF), "frame length 4294967295"),
        (b"GET / HTTP/1.1\r\n", "frame length 1195725856"),
        (b"\x16\x03\x01\x02\x00\x01", "frame length"),
        (frame_of(10, 2 << 24 | 2), "serialization 2 is unknown"),
        (frame_of(10, 7), "header length 7 in a frame of 10"),
        (frame_of(MAX_HEADER + 100, MAX_HEADER + 1), "header length 1048577"),
        (frame_of(6, 2, b"[]"), "not a JSON object"),
        (frame_of(6, 2, b"\xff\xfe"), "cannot be read"),
        (frame_of(4, 0), "cannot be read"),
        (frame_of(4 + 13, 13, b'{"code":"x"}\n'), "code of the header"),
        (frame_of(4 + 19, 19, b'{"code":4294967296}'), "does not fit 32 bits"),
        (frame_of(4 + 12, 12, b'{"code":NaN}'), "NaN"),
        (frame_of(4 + 21, 21, b'{"extFields":{"a":[]}'), "cannot be read"),
        (frame_of(4 + 22, 22, b'{"extFields":{"a":[]}}'), "is no text"),
        (frame_of(4, 1 << 24), "at least 21 bytes"),
        (frame_of(25, 1 << 24 | 21, bytes(13) + b"\xff\xff\xff\xff" + bytes(4)), "remark has -1 bytes"),
        (frame_of(25, 1 << 24 | 21, bytes(13) + b"\x00\x00\x00\x05" + bytes(4)), "remark has 5 bytes"),
        (frame_of(25, 1 << 24 | 21, bytes(17) + b"\x00\x00\x00\x01"), "ext fields of 1 bytes"),
        (frame_of(27, 1 << 24 | 23, bytes(17) + b"\x00\x00\x00\x02\x80\x00"), "has -32768 bytes"),
    ],
)
def test_broken_rules_are_named(data: bytes, named: str) -> None:
    decoder = Decoder()
    decoder.feed(data)
    with pytest.raises(ProtocolError) as caught:
        decoder.next_command()
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "text", [b"[" * 200_000, b'{"a":' * 100_000, b'"' + b'\\"' * 500_000, b"{" * 900_000]
)
def test_hostile_headers_end_quickly_with_an_error(text: bytes) -> None:
    decoder = Decoder()
    decoder.feed(frame_of(4 + len(text), len(text), text))
    with pytest.raises(ProtocolError):
        decoder.next_command()


def test_the_largest_frame_goes_through_and_one_more_byte_does_not() -> None:
    empty = len(encode(Command(1)))
    assert decode_all(encode(Command(1, body=bytes(MAX_FRAME - empty))))[0].body == bytes(MAX_FRAME - empty)
    with pytest.raises(EncodeError, match="16777216 are allowed"):
        encode(Command(1, body=bytes(MAX_FRAME - empty + 1)))


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (Command(1 << 31), "code 2147483648"),
        (Command(RequestCode.POP_MESSAGE, serialize_type=SerializeType.ROCKETMQ), "code 200050"),
        (Command(1, {"a": "x" * MAX_HEADER}), "1048576 are allowed"),
        (Command(1, {"a" * 40_000: ""}, serialize_type=SerializeType.ROCKETMQ), "32767 are allowed"),
    ],
)
def test_what_does_not_fit_is_not_sent(command: Command, named: str) -> None:
    with pytest.raises(EncodeError, match=named):
        encode(command)


def test_flags_and_replies() -> None:
    request = Command(10, opaque=5, flag=ONE_WAY_FLAG, serialize_type=SerializeType.ROCKETMQ)
    assert request.is_one_way
    assert not request.is_response
    reply = request.reply(ResponseCode.SYSTEM_BUSY, remark="busy", fields={"a": "b"}, body=b"x")
    assert reply.is_response
    assert (reply.opaque, reply.flag, reply.serialize_type) == (5, RESPONSE_FLAG, SerializeType.JSON)
    assert (reply.code, reply.remark, reply.ext_fields, reply.body) == (2, "busy", {"a": "b"}, b"x")
