"""CRC-32 (that of zlib) for compiled code, and the CRC of two pieces from theirs.

Source: the polynomial arithmetic is that of ISO 3309; sixteen bytes a step, by table ("slicing").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.kernels.compiled import compiled

_POLYNOMIAL = 0xEDB88320
_SLICES = 16


def _slices() -> NDArray[np.uint32]:
    """Row k: what a byte contributes that is followed by k others."""
    table = np.zeros((_SLICES, 256), dtype=np.uint32)
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(_POLYNOMIAL), values >> 1).astype(np.uint32)
    table[0] = values
    for number in range(1, _SLICES):
        table[number] = (table[number - 1] >> 8) ^ table[0][table[number - 1] & 0xFF]
    return table


def _multiplied(a: int, b: int) -> int:
    """a * b modulo the polynomial; bit 31 is x**0."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


def _powers() -> NDArray[np.uint32]:
    """Entry n: x**(8 * 2**n), what 2**n zero bytes multiply a CRC by."""
    power = 1 << 30
    for _ in range(3):
        power = _multiplied(power, power)
    powers = []
    for _ in range(32):
        powers.append(power)
        power = _multiplied(power, power)
    return np.array(powers, dtype=np.uint32)


SLICES = _slices()
POWERS = _powers()


@compiled
def crc32(data: Any, start: int, stop: int, crc: Any) -> Any:
    """The CRC of what `crc` is of, followed by data[start:stop]."""
    at, end = np.uint64(start), np.uint64(stop)  # unsigned positions are not looked at for being negative
    value = np.uint32(crc) ^ np.uint32(0xFFFFFFFF)
    table = SLICES
    byte = np.uint32(0xFF)
    while at + np.uint64(16) <= end:
        value ^= (
            np.uint32(data[at])
            | (np.uint32(data[at + np.uint64(1)]) << np.uint32(8))
            | (np.uint32(data[at + np.uint64(2)]) << np.uint32(16))
            | (np.uint32(data[at + np.uint64(3)]) << np.uint32(24))
        )
        value = (
            table[15, value & byte]
            ^ table[14, (value >> np.uint32(8)) & byte]
            ^ table[13, (value >> np.uint32(16)) & byte]
            ^ table[12, value >> np.uint32(24)]
            ^ table[11, data[at + np.uint64(4)]]
            ^ table[10, data[at + np.uint64(5)]]
            ^ table[9, data[at + np.uint64(6)]]
            ^ table[8, data[at + np.uint64(7)]]
            ^ table[7, data[at + np.uint64(8)]]
            ^ table[6, data[at + np.uint64(9)]]
            ^ table[5, data[at + np.uint64(10)]]
            ^ table[4, data[at + np.uint64(11)]]
            ^ table[3, data[at + np.uint64(12)]]
            ^ table[2, data[at + np.uint64(13)]]
            ^ table[1, data[at + np.uint64(14)]]
            ^ table[0, data[at + np.uint64(15)]]
        )
        at += np.uint64(16)
    while at < end:
        value = table[0, (value ^ np.uint32(data[at])) & byte] ^ (value >> np.uint32(8))
        at += np.uint64(1)
    return value ^ np.uint32(0xFFFFFFFF)


@compiled
def joined(first: Any, second: Any, length: int) -> Any:
    """The CRC of two pieces, from that of each; the second has `length` bytes."""
    value = np.uint32(first)
    number = 0
    while length:
        if length & 1:
            a = POWERS[number]
            b = value
            value = np.uint32(0)
            bit = np.uint32(1 << 31)
            while bit:
                if a & bit:
                    value ^= b
                b = (b >> np.uint32(1)) ^ (np.uint32(_POLYNOMIAL) * (b & np.uint32(1)))
                bit >>= np.uint32(1)
        length >>= 1
        number += 1
    return value ^ np.uint32(second)
