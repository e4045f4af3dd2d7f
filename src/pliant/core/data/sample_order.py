"""The cursor, and the canonical order of the samples that it moves through (P3, rule 21).

The order is a permutation of `range(samples)` for each epoch, fixed for ever by (seed, epoch, samples). No world, rank
or machine influences it. Any position of any epoch can be computed without the rest, so a worker that joins at position
ten billion of epoch seven reads its first sample as quickly as one that was there from the start.

**The construction** is a Feistel network on the rectangle Z_a x Z_b, where a is the smallest even number whose square
holds all samples and b the smallest number of columns with `a * b >= samples`. A position p is written as `(x, y) =
divmod(p, b)`. The passes come in pairs::

    x = (x + F(key, y)) mod a           y = (y + F(next key, x)) mod b

and the result is `x * b + y`. `F` mixes 64 bits with two multiplications and scales the upper half to its side.

**Why it is a bijection.** A pass changes one coordinate only, by an amount that depends on the other one only;
subtracting the same amount undoes it for any F. So every pass permutes the rectangle, and so do all of them together.
The rectangle may be larger than the data (by less than a). Where the result is no sample it is fed in again ("cycle
walking"). Starting from a real position and following its cycle, the first real sample met belongs to exactly one
position, since walking the same cycle backwards leads back to it. The walk ends, because the cycle contains its own
start. About one position in sqrt(samples) needs it.

**Why a is even.** On a rectangle with two odd sides each pass is an even permutation, and half of all orders could
never occur.

**Why short data takes more passes.** With few cells a pass has few outcomes. Compared with the uniform choice among all
orders of 8 samples, random passes are off by 0.28 (total variation) after 8, and by less than 0.01 after 24. Long data
does not need them: its passes have many outcomes each.

`pliant.train.data.order` is the same function for arrays, tested to be equal. The values are a promise (a job resumed
by a newer Pliant must continue in the same order), so tests pin some of them. The shuffle is not cryptographic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_256
from math import isqrt
from struct import unpack

from pliant.errors import BadInput

SAMPLES_MAX = 2**62
PASSES = 8
PASSES_SHORT = 24
SHORT = 64
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
MASK_64 = 2**64 - 1
MASK_32 = 2**32 - 1


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The position of training: the epoch, counted from 0, and the position in that epoch's order.

    Cursors compare in the order of time. Everything before the cursor has been consumed, and nothing after it.
    """

    epoch: int
    position: int


@lru_cache
def sides(samples: int) -> tuple[int, int]:
    """Return the sides (a, b) of the rectangle. For the order and its vectorised twin only."""
    a = isqrt(samples - 1) + 1
    a += a % 2
    return a, -(-samples // a)


@lru_cache
def keys(seed: int, epoch: int, samples: int) -> tuple[tuple[int, int], ...]:
    """Return the keys of each pair of passes. For the order and its vectorised twin only."""
    count = PASSES_SHORT if samples < SHORT else PASSES
    # Hexadecimal writes a number of any size and sign in one way only, on every platform.
    stream = shake_256(f"pliant order 1: {seed:x} {epoch:x}".encode()).digest(8 * count)
    flat = unpack(f"<{count}Q", stream)
    return tuple(zip(flat[::2], flat[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class Order:
    """The canonical order of a job's samples, from the job's seed and the length of its data.

    Any integer is a seed. Call `take` for a slot's samples and `at` for a single one; both cost the same per sample at
    any position. For whole batches use `pliant.train.data.order`, which returns the same values.

    `samples` is the length of an epoch. `data` is the length of the data where that is another number: then every epoch
    takes the next `samples` of an endless row of shuffled passes over the data, so no sample is ahead of another by
    more than one pass.
    """

    seed: int
    samples: int
    data: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= SAMPLES_MAX:
            raise BadInput(f"an order needs between 1 and 2**62 samples, not {self.samples}: check the data's length")
        if self.data is not None and not 1 <= self.data <= SAMPLES_MAX:
            raise BadInput(f"an order needs data of 1 to 2**62 samples, not {self.data}: check the data's length")

    def at(self, epoch: int, position: int) -> int:
        """Return the sample at this position of this epoch's order. For several, call `take`."""
        (sample,) = self.take(epoch, range(position, position + 1))
        return sample

    def take(self, epoch: int, positions: range) -> tuple[int, ...]:
        """Return the samples at these positions of this epoch's order. Pass the result of `Grid.slot`."""
        self.check(epoch, positions)
        if self.data is not None:
            a_pass = Order(self.seed, self.data)
            begin = epoch * self.samples
            return tuple([a_pass.at(*divmod(begin + position, self.data)) for position in positions])
        a, b = sides(self.samples)
        pairs = keys(self.seed, epoch, self.samples)
        return tuple([_sample(position, self.samples, a, b, pairs) for position in positions])

    def check(self, epoch: int, positions: range) -> None:
        """Raise BadInput unless these are positions of an epoch. For the order and its array twin only."""
        if epoch < 0:
            raise BadInput(f"epochs are counted from 0, so there is no epoch {epoch}: pass 0 or more")
        if positions and not (0 <= positions[0] < self.samples and 0 <= positions[-1] < self.samples):
            raise BadInput(
                f"positions {positions} are not all inside an epoch of {self.samples} samples: cut them at its end"
            )


def _sample(position: int, samples: int, a: int, b: int, pairs: tuple[tuple[int, int], ...]) -> int:
    """Run one position through the passes, again and again until the result is a sample.

    F is written out twice rather than called: this is the innermost loop of the simulator and of the audit.
    """
    while True:
        x, y = divmod(position, b)
        for key_x, key_y in pairs:
            z = ((y ^ key_x) * MIX_1) & MASK_64
            x += (((((z ^ (z >> 32)) * MIX_2) >> 32) & MASK_32) * a) >> 32
            if x >= a:
                x -= a
            z = ((x ^ key_y) * MIX_1) & MASK_64
            y += (((((z ^ (z >> 32)) * MIX_2) >> 32) & MASK_32) * b) >> 32
            if y >= b:
                y -= b
        position = x * b + y
        if position < samples:
            return position
