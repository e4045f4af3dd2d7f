"""A hash of arrays that is fast enough for every step, by the same method as that of tensors in `pliant.torch`.

An array's bytes are read as 64-bit numbers. The upper half of each is added to the lower one; each is multiplied by an
odd factor of its position, and all are added modulo 2**64. A single flipped bit always changes the sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from pliant.train.live.arrays.frame import Array

_CHUNK = 1 << 16  # numbers; each chunk uses the same factors
_DOWN = np.int64(33)  # not 32: the signs of two neighbours in single precision would meet in one bit


def arrays_hash(arrays: Iterable[Array], besides: bytes = b"") -> int:
    """Return one hash of the arrays, in order, and of `besides`."""
    digest = hashlib.blake2b(besides, digest_size=8, person=b"pliant array 1")
    for array in arrays:
        digest.update(_sums(array).tobytes())
    return int.from_bytes(digest.digest(), "little")


def _sums(array: Array) -> Array:
    octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if octets.size % 8 or octets.ctypes.data % 8:
        padded = np.zeros(-(-octets.size // 8) * 8, np.uint8)
        padded[: octets.size] = octets
        octets = padded
    numbers = octets.view(np.int64)
    factors = _factors()
    sums = np.zeros(-(-len(numbers) // _CHUNK), np.int64)
    room = np.empty(min(_CHUNK, len(numbers)), np.int64)
    for at in range(len(sums)):
        chunk = numbers[at * _CHUNK : (at + 1) * _CHUNK]
        folded = np.right_shift(chunk, _DOWN, out=room[: len(chunk)])
        folded += chunk
        sums[at] = np.dot(folded, factors[: len(chunk)])
    return sums


@lru_cache(maxsize=1)
def _factors() -> Array:
    chance = np.random.Generator(np.random.PCG64(11))
    return chance.integers(-(1 << 62), 1 << 62, _CHUNK) * 2 + 1
