"""Numbers and texts within bytes, read, written and compared in compiled code. Bounds are the caller's to check."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.kernels.compiled import compiled, inlined

Array = NDArray[Any]


@inlined
def u32(data: Array, at: int) -> int:
    """An unsigned number of 4 bytes, big-endian."""
    return (
        (np.int64(data[at]) << 24)
        | (np.int64(data[at + 1]) << 16)
        | (np.int64(data[at + 2]) << 8)
        | np.int64(data[at + 3])
    )


@inlined
def i32(data: Array, at: int) -> int:
    """A signed number of 4 bytes."""
    value = u32(data, at)
    return value - (np.int64(1) << 32) if value >= (np.int64(1) << 31) else value


@inlined
def i64(data: Array, at: int) -> int:
    """A signed number of 8 bytes."""
    return (u32(data, at) << 32) | u32(data, at + 4)


@inlined
def copy(out: Array, at: int, data: Array, start: int, length: int) -> int:
    """data[start:start + length] to `at` of `out`; returns where it ends."""
    to, first = np.uint64(at), np.uint64(start)  # unsigned positions let this become a block copy
    for step in range(np.uint64(length)):
        out[to + step] = data[first + step]
    return at + length


@compiled
def digits(out: Array, at: int, value: int) -> int:
    """Decimal digits of 0 or more at `at` of `out`; returns where they end."""
    end = at + 1
    rest = value // 10
    while rest:
        end += 1
        rest //= 10
    for place in range(end - 1, at - 1, -1):
        out[place] = 48 + value % 10
        value //= 10
    return end


@compiled
def same(one: Array, start: int, other: Array, begin: int, length: int) -> bool:
    """Whether so many bytes are equal."""
    for step in range(length):
        if one[start + step] != other[begin + step]:
            return False
    return True
