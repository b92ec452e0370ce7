"""Coverage-guided fuzzing of the reput's rows: from bytes of a log to committed tables. One input is an options
byte and a log.

    NUMBA_DISABLE_JIT=1 python -m tests.fuzz.rows_target [libFuzzer's options] [corpus folders]
    python -m tests.fuzz.rows_target --replay FILE...
    python -m tests.fuzz.rows_target --seeds FOLDER

Checked is what `tests/support/lakes/staged.py` says of any log. Every log is committed to one small lake, which is read as a
whole by delta-rs and DuckDB from time to time; set TMPDIR to a folder in memory, since it is synced many times, and
remove it afterwards: libFuzzer ends the process at once. ConnectionSlots and CRCs of records are put right before, unless the
options say otherwise: bytes that were changed at random hardly ever have the CRC that lets them through.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.lakes.staged import StagedLake

AS_IT_IS, FAR, LEVELS = 1, 2, 4
"""Bits of the options byte: nothing is put right; the log begins at `FAR_BASE`; delay levels are known."""
FAR_BASE = (1 << 40) + 7
_INPUT_BYTES = 4096
_READ_AFTER = 100


class _Lakes:
    """The lake that inputs go to, a new one after some."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lake: StagedLake | None = None

    def current(self) -> StagedLake:
        from tests.support.lakes.staged import StagedLake

        if self._lake is None or self._lake.logs >= _READ_AFTER:
            self.close()
            self._folder = tempfile.TemporaryDirectory(prefix="lakebroker-fuzz-")
            self._lake = StagedLake(Path(self._folder.name) / "lake")
        return self._lake

    def close(self) -> None:
        """Reads the whole lake and removes it."""
        if self._lake is None or self._folder is None:
            return
        lake, self._lake = self._lake, None
        try:
            lake.assert_readable()
        finally:
            self._folder.cleanup()


LAKES = _Lakes()


def check(data: bytes) -> None:
    """Raises AssertionError when a log does not lead to rows or quarantine."""
    from tests.support.lakes.staged import assert_accounted

    if not data:
        return
    options, log = data[0], bytearray(data[1 : _INPUT_BYTES + 1])
    base = FAR_BASE if options & FAR else 0
    if not options & AS_IT_IS:
        put_right(log, base)
    tables = LAKES.current().take(bytes(log), base, (1000, 5000) if options & LEVELS else None)
    assert_accounted(bytes(log), base, tables)


def put_right(log: bytearray, base: int) -> None:
    """Gives every record its own place and the CRC of its body, where its lengths allow."""
    from zlib_ng import zlib_ng

    at = log.find(b"\xda\xa3\x20")
    while at >= 0:
        begin = at - 4
        if begin >= 0 and begin + 91 <= len(log):
            struct.pack_into(">q", log, begin + 28, base + begin)
            (flags,) = struct.unpack_from(">i", log, begin + 36)
            body = begin + 48 + (20 if flags & 0x10 else 8) + 8 + (20 if flags & 0x20 else 8) + 16
            if body <= len(log):
                (length,) = struct.unpack_from(">i", log, body - 4)
                if 0 <= length <= len(log) - body:
                    crc = zlib_ng.crc32(bytes(log[body : body + length])) & 0x7FFFFFFF
                    struct.pack_into(">I", log, begin + 8, crc)
        at = log.find(b"\xda\xa3\x20", at + 1)


def seeds() -> dict[str, bytes]:
    """Inputs to begin with."""
    from tests.support.logs.raw import log_of, message, poison

    inputs = {}
    for name, records in poison().items():
        inputs[name] = bytes([LEVELS]) + log_of(message(1), *records, message(2))
    inputs["far"] = bytes([FAR]) + log_of(message(1), message(2), base=FAR_BASE)
    inputs["damaged"] = bytes([AS_IT_IS]) + log_of(message(1), message(2)).replace(b"good 1", b"g00d 1")
    return inputs


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--replay"]:
        for path in arguments[1:]:
            check(Path(path).read_bytes())
        LAKES.close()
        sys.stdout.write(f"replayed {len(arguments) - 1}\n")
        return
    if arguments[:1] == ["--seeds"]:
        for name, data in seeds().items():
            Path(arguments[1], name).write_bytes(data)
        return
    if os.environ.get("NUMBA_DISABLE_JIT") != "1":
        raise SystemExit("set NUMBA_DISABLE_JIT=1: compiled code gives no coverage to go by")
    import atheris

    with atheris.instrument_imports(
        include=[
            "store.scan",
            "store.kernels.walk",
            "structured_streaming.rows",
            "structured_streaming.staging",
        ]
    ):
        import structured_streaming.staging.stage  # noqa: F401
    atheris.Setup([sys.argv[0], *arguments], atheris.instrument_func(check))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
