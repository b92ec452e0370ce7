"""CRCs of many records in one compiled call, by zlib-ng's own code: nothing is done in Python for a record.

Where the installed `zlib_ng` does not offer its function to others, or nothing is compiled, `AVAILABLE` is false and
`wrong` may not be called.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llvmlite import binding
from numba import config, types
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from store.kernels.compiled import compiled
from store.kernels.row import (
    BODY_CRC,
    BODY_LENGTH,
    BODY_START,
    CRC_EXPECTED,
    POSITION,
    SIZE,
)
from store.log.record import CRC_BYTES

_SYMBOL = "zng_crc32_z"


def _offered() -> bool:
    """Whether zlib-ng's function is there; compiled code finds it by its name then."""
    library = getattr(zlib_ng, "__file__", None)
    try:
        address = ctypes.cast(getattr(ctypes.CDLL(library), _SYMBOL), ctypes.c_void_p).value
    except (OSError, AttributeError):
        return False
    binding.add_symbol(_SYMBOL, address)
    return True


_settings: Any = config  # its attributes are made when it is loaded
AVAILABLE = not _settings.DISABLE_JIT and _offered()
_crc32: Any = types.ExternalFunction(_SYMBOL, types.uint32(types.uint32, types.uintp, types.uintp))


@compiled
def wrong(data: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """Which rows have another CRC than they state, as `_verified` in `store/scan.py`."""
    found = np.zeros(len(rows), dtype=np.bool_)
    base = np.uint64(data.ctypes.data)
    for i in range(len(rows)):
        expected = rows[i, CRC_EXPECTED]
        if expected >= 0:
            start, length = rows[i, POSITION], rows[i, SIZE] - CRC_BYTES
        else:
            expected, start, length = rows[i, BODY_CRC], rows[i, BODY_START], rows[i, BODY_LENGTH]
        actual = _crc32(np.uint32(0), base + np.uint64(start), np.uint64(length))
        found[i] = (np.int64(actual) & 0x7FFFFFFF) != expected
    return found
