"""The canonical order for arrays: the function of `pliant.core.data.sample_order`, without a Python loop per sample.

Use it for many samples at once: a loader that fills a step, an audit of a long job. It needs numpy (the `train` extra).
The core describes the construction; tests hold the two to the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GOLDEN, mix
from pliant.core.data.sample_order import MASK_64, MIX_1, MIX_2, Order, keys, sides
from pliant.errors import BadInput

Samples: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]
TakeSamples: TypeAlias = Callable[[int, range], Samples]

# Large enough to hide the cost of a numpy call, small enough for the buffers to stay in the processor's cache.
BLOCK = 2**14

_MIX_1 = np.uint64(MIX_1)
_MIX_2 = np.uint64(MIX_2)
_HALF = np.uint64(32)
_GOLDEN = np.uint64(GOLDEN)
_THIRTY, _TWENTY_SEVEN, _THIRTY_ONE = np.uint64(30), np.uint64(27), np.uint64(31)


def take(order: Order, epoch: int, positions: range) -> Samples:
    """Return the samples at these positions of this epoch's order as an array, equal to `order.take`.

    Call it once for all slots of a step: a call has a fixed cost, which thousands of samples share.
    """
    order.check(epoch, positions)
    if order.data is not None:
        return _take_passes(Order(order.seed, order.data), epoch * order.samples, positions)
    samples = np.empty(len(positions), dtype=np.int64)
    for start in range(0, len(positions), BLOCK):
        part = positions[start : start + BLOCK]
        block = np.arange(part.start, part.stop, part.step, dtype=np.int64).astype(np.uint64)
        samples[start : start + BLOCK] = _shuffle(order, epoch, block)
    return samples


def _take_passes(a_pass: Order, begin: int, positions: range) -> Samples:
    """Return the samples at these positions, counted from `begin`, of an endless row of passes over the data."""
    numbers, within = np.divmod(np.asarray(positions, dtype=np.int64) + begin, a_pass.samples)
    samples = np.empty(len(positions), dtype=np.int64)
    for number in np.unique(numbers).tolist():
        of_pass = numbers == number
        samples[of_pass] = _shuffle(a_pass, number, within[of_pass].astype(np.uint64))
    return samples


def expected_digest(grid: Grid, order: Order, step: int) -> int:
    """Return the same value as `pliant.core.data.ledger.expected_digest`, quickly for large batches.

    Pass it to an audit.
    """
    if grid.samples != order.samples:
        raise BadInput(
            f"the grid has {grid.samples} samples and the order {order.samples}: make both from the same data"
        )
    cursor = grid.cursor(step)
    begin = cursor.position
    samples = take(order, cursor.epoch, range(begin, begin + grid.size(step)))
    slots = grid.filled(step)
    ends = [grid.slot(step, slot).stop - begin for slot in slots]
    return slots_digest(step, slots, samples, ends)


def expected_digests(grid: Grid, take_samples: TakeSamples, steps: range) -> list[int]:
    """Return the digests of consecutive steps, as `expected_digest` does for one.

    `take_samples` returns the samples at the positions of an epoch. It is called once for a run of full steps.
    """
    digests: list[int] = []
    while steps:
        step = steps.start
        run, steps = steps[: (count := _equal_steps(grid, step))], steps[count:]
        cursor, size, filled = grid.cursor(step), grid.size(step), grid.filled(step)
        begin = cursor.position
        ends = tuple(grid.slot(step, slot).stop - begin for slot in filled)
        slots, within = _layout(filled, ends, size)
        samples = take_samples(cursor.epoch, range(begin, begin + size * len(run))).reshape(len(run), size)
        digests += steps_digests(np.asarray(run, dtype=np.int64), slots, within, samples).tolist()
    return digests


def _equal_steps(grid: Grid, step: int) -> int:
    """Return how many steps from this one on are full and of one epoch, as far as a block reaches; at least 1."""
    if grid.turns > 1:
        return 1
    found = grid.stretch(step)
    full = min((grid.samples - found.position) // found.batch, found.steps)
    return max(1, min(full - (step - found.first), BLOCK // found.batch))


def take_in_sequence(length: int, per_epoch: int, epoch: int, positions: range) -> Samples:
    """Return the samples at these positions if every epoch goes on through the data in its own order."""
    return (np.asarray(positions, dtype=np.int64) + epoch * per_epoch) % length


def slots_digest(step: int, slots: Sequence[int], samples: Samples, ends: Sequence[int]) -> int:
    """Add up the digests of several slots, equal to `pliant.core.data.ledger.slot_digest`, from one array.

    `ends` holds for each slot where its samples end in `samples`.
    """
    places, within = _layout(tuple(slots), tuple(ends), len(samples))
    both = np.empty((2, len(samples)), dtype=np.uint64)  # mixed together: a call of numpy costs more than its work
    np.add(places, np.uint64(mix(step)), out=both[0])
    both[1] = samples
    at, read = _mix(both)
    return int(_mix((at + within) ^ read).sum(dtype=np.uint64))


@lru_cache(maxsize=256)
def _layout(slots: tuple[int, ...], ends: tuple[int, ...], count: int) -> tuple[_Words, _Words]:
    """Return each sample's slot and its position in it. Most steps share one result."""
    stops = np.asarray(ends, dtype=np.int64)
    starts = np.concatenate(([0], stops[:-1]))
    sizes = stops - starts
    within = np.arange(count, dtype=np.int64) - np.repeat(starts, sizes)
    return np.repeat(np.asarray(slots, dtype=np.uint64), sizes), within.astype(np.uint64)


def steps_digests(steps: Samples, slots: _Words, within: _Words, samples: Samples) -> _Words:
    """Return the digest of each of several equal steps: a row of samples for each, in these slots and positions."""
    return running_digests(steps, slots, within, samples)[:, -1]


def running_digests(steps: Samples, slots: _Words, within: _Words, samples: Samples) -> _Words:
    """Return for each of several equal steps the digest of its samples so far, before the first and after each one."""
    places = _mix(_mix(steps.astype(np.uint64))[:, None] + slots)
    mixed = _mix((places + within) ^ _mix(samples.astype(np.uint64)))
    running = np.zeros((len(steps), samples.shape[1] + 1), dtype=np.uint64)
    np.cumsum(mixed, axis=1, out=running[:, 1:])
    return running


def digest_range(key: int, start: int, stop: int) -> int:
    """Return `pliant.core.tasks.model.range_digest` of these records; `key` is their `digest_key`."""
    total = 0
    for at in range(start, stop, BLOCK):
        records = np.arange(at, min(at + BLOCK, stop), dtype=np.uint64)
        total += int(_mix(np.uint64(key) ^ _mix(records)).sum(dtype=np.uint64))
    return total & MASK_64


def _mix(values: _Words) -> _Words:
    """Apply `pliant.core.data.ledger.mix` to every element, wrapping at 64 bits."""
    z = values + _GOLDEN
    z = (z ^ z >> _THIRTY) * _MIX_1
    z = (z ^ z >> _TWENTY_SEVEN) * _MIX_2
    result: _Words = z ^ z >> _THIRTY_ONE
    return result


def _shuffle(order: Order, epoch: int, positions: _Words) -> _Words:
    """Run the positions through the passes, and repeat those that are no samples until they are."""
    _passes(order, epoch, positions)
    beyond = np.flatnonzero(positions >= order.samples)
    while beyond.size:
        again = positions[beyond]
        _passes(order, epoch, again)
        positions[beyond] = again
        beyond = beyond[again >= order.samples]
    return positions


def _passes(order: Order, epoch: int, positions: _Words) -> None:
    """Run all passes over the positions, in place. All values fit into 64 bits because both sides fit into 32."""
    a, b = map(np.uint64, sides(order.samples))
    x, y = np.divmod(positions, b)
    z, w = np.empty_like(x), np.empty_like(x)
    for key_x, key_y in keys(order.seed, epoch, order.samples):
        _turn(x, y, a, np.uint64(key_x), z, w)
        _turn(y, x, b, np.uint64(key_y), z, w)
    np.multiply(x, b, out=positions)
    np.add(positions, y, out=positions)


def _turn(moved: _Words, by: _Words, side: np.uint64, key: np.uint64, z: _Words, w: _Words) -> None:
    """Do one pass: add F(by) to one coordinate, modulo its side. z and w are scratch space."""
    np.bitwise_xor(by, key, out=z)
    np.multiply(z, _MIX_1, out=z)
    np.right_shift(z, _HALF, out=w)
    np.bitwise_xor(z, w, out=z)
    np.multiply(z, _MIX_2, out=z)
    np.right_shift(z, _HALF, out=z)
    np.multiply(z, side, out=z)
    np.right_shift(z, _HALF, out=z)
    np.add(moved, z, out=moved)
    # Below the side the difference wraps to a huge number, so the smaller of the two is the remainder.
    np.subtract(moved, side, out=z)
    np.minimum(moved, z, out=moved)
