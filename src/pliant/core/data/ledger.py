"""The ledger: one line per committed step, chained by hash (rules 2, 6, 24), and the digest in each line.

The cursor alone cannot prove that every sample was used: a step that forgets a lost member's slot moves the cursor just
as well. So each member digests the samples it *really read*, where a slot's gradient enters the buffer. The control
words add up these digests, and the sum goes into the line. The line's own digest covers its parent, so no line can be
changed, dropped or inserted later without breaking every line after it.

This is evidence against mistakes of honest members with buggy code. It is no proof against a member that lies: a member
that can compute the expected digest can report it. `pliant.core.data.audit` checks a whole ledger.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from pliant.core.data.grid import Grid, change_batch
from pliant.core.data.sample_order import MASK_64, MIX_1, MIX_2, Cursor, Order
from pliant.errors import BadInput

DIGESTS_CACHED = 65_536
"""Number of cached expected digests: enough for a simulated job, a few megabytes."""

GOLDEN = 0x9E3779B97F4A7C15
_CHAIN = struct.Struct("<11Q")


@dataclass(frozen=True, slots=True)
class Lineage:
    """The history of a state: the generation of its last step, that step, and the chain's digest.

    Equal lineages mean equal histories. Of two different ones the higher generation wins, then the higher step. Never
    compare by step alone: a step redone by a later generation is another step with the same number. The digest is an
    unsigned 64-bit number, as it travels in the control words.
    """

    generation: int
    step: int
    digest: int

    def key(self) -> tuple[int, int]:
        """Return the sort key of lineages (rule 2), for `max` and `sorted`."""
        return (self.generation, self.step)

    def newer_than(self, other: Lineage) -> bool:
        """Return whether this lineage wins over the other one. Of two lineages with one key neither is newer."""
        return (self.generation, self.step) > (other.generation, other.step)


GENESIS = Lineage(generation=0, step=0, digest=0)
"""The lineage of a state to which no step has been applied."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One committed step: its lineage and its parent's, its start, and the totals of its control words.

    `epoch` and `position` are the cursor the step started from. `samples` is the number of samples really read, and
    `digest` the sum of the slot digests. `state` is the hash of the state the step was computed from, as all holders
    sent it in those words; 0 if no hash was taken. `next_batch` is the batch that the members agreed on for the steps
    after this one; 0 if it does not change. Create lines with `make_line`.
    """

    lineage: Lineage
    parent: Lineage
    epoch: int
    position: int
    samples: int
    digest: int
    state: int = 0
    next_batch: int = 0


def slot_digest(step: int, slot: int, samples: Iterable[int]) -> int:
    """Digest the samples really read for a slot. Call it where the slot's gradient enters the buffer.

    It is a sum over the samples, each mixed with its step, its slot and its position in the slot. The order inside the
    slot counts, because another order is another sum of floating-point numbers, and so other bits. A slot without
    samples has digest 0 and changes no total. It is meant to find mistakes, so it is fast and not cryptographic.
    `pliant.train.data.order` has the same function for arrays.
    """
    if not (0 <= step <= MASK_64 and 0 <= slot <= MASK_64):
        raise _not_64_bits(step, slot)
    base = mix(mix(step) + slot)
    total = 0
    for at, sample in enumerate(samples):
        if not 0 <= sample <= MASK_64:
            raise _not_64_bits(step, slot)
        total += mix((base + at) ^ mix(sample))
    return total & MASK_64


def _not_64_bits(step: int, slot: int) -> BadInput:
    return BadInput(
        f"step {step}, slot {slot} and every sample must be integers from 0 to 2**64 - 1: "
        "digest the numbers of the samples, not the samples"
    )


def mix(value: int) -> int:
    """Spread a number over 64 bits, one to one.

    A constant is added first, so that small numbers have distant images.
    """
    z = (value + GOLDEN) & MASK_64
    z = ((z ^ z >> 30) * MIX_1) & MASK_64
    z = ((z ^ z >> 27) * MIX_2) & MASK_64
    return z ^ z >> 31


def add_digests(a: int, b: int) -> int:
    """Add two slot digests, or sums of them. The order of addition does not matter."""
    return (a + b) & MASK_64


def expected_digest(grid: Grid, order: Order, step: int) -> int:
    """Return the sum of a step's slot digests for exactly the samples that the canonical order promises."""
    return _expected_digest(grid, order, step)


def expected_slot_digest(grid: Grid, order: Order, step: int, slot: int) -> int:
    """Return the digest that one slot must have. Results are cached."""
    return _expected_slot_digest(grid, order, step, slot)


@lru_cache(maxsize=DIGESTS_CACHED)
def _expected_digest(grid: Grid, order: Order, step: int) -> int:
    return sum(_expected_slot_digest(grid, order, step, slot) for slot in grid.filled(step)) & MASK_64


@lru_cache(maxsize=DIGESTS_CACHED)
def _expected_slot_digest(grid: Grid, order: Order, step: int, slot: int) -> int:
    if grid.samples != order.samples:
        raise BadInput(
            f"the grid has {grid.samples} samples and the order {order.samples}: make both from the same data"
        )
    positions = grid.slot(step, slot)
    return slot_digest(step, slot, order.take(grid.cursor(step).epoch, positions))


def make_line(
    parent: Lineage,
    generation: int,
    step: int,
    cursor: Cursor,
    samples: int,
    digest: int,
    state: int = 0,
    next_batch: int = 0,
) -> LedgerLine:
    """Create the line of a committed step, with the totals of its control words.

    `cursor` is where the step started. The new lineage's digest covers the whole parent and every other field. The
    function does not judge: `can_follow` does where a line is accepted, and the audit over the whole ledger.
    """
    sealed = _chain(parent, generation, step, cursor, samples, digest, state, next_batch)
    lineage = Lineage(generation, step, sealed)
    return LedgerLine(lineage, parent, cursor.epoch, cursor.position, samples, digest, state, next_batch)


def is_sealed(line: LedgerLine) -> bool:
    """Return whether the line's own digest covers its content. If not, the line was altered afterwards."""
    own = line.lineage
    try:
        digest = _chain(
            line.parent,
            own.generation,
            own.step,
            Cursor(line.epoch, line.position),
            line.samples,
            line.digest,
            line.state,
            line.next_batch,
        )
    except BadInput:
        return False
    return digest == own.digest


def can_follow(line: LedgerLine, head: Lineage) -> bool:
    """Return whether the line may come after `head`. Call it before accepting a line (rules 17, 24).

    It must be a child of exactly that lineage, the next step, of the same generation or a later one, and sealed.
    """
    return (
        line.parent == head
        and line.lineage.step == head.step + 1
        and line.lineage.generation >= head.generation
        and is_sealed(line)
    )


def with_changes_of(grid: Grid, lines: Iterable[LedgerLine]) -> Grid:
    """Return the grid with the changes of the batch that these lines agreed on. They follow its own changes."""
    for line in lines:
        if line.next_batch:
            grid = change_batch(grid, line.lineage.step, line.next_batch)
    return grid


def _chain(
    parent: Lineage,
    generation: int,
    step: int,
    cursor: Cursor,
    samples: int,
    digest: int,
    state: int,
    next_batch: int,
) -> int:
    try:
        content = _CHAIN.pack(
            parent.generation,
            parent.step,
            parent.digest,
            generation,
            step,
            cursor.epoch,
            cursor.position,
            samples,
            digest,
            state,
            next_batch,
        )
    except struct.error as error:
        raise BadInput(
            f"every number in the line of step {step} must be an integer from 0 to 2**64 - 1: "
            "add digests with add_digests, which keeps them there"
        ) from error
    if not next_batch:  # lines without one of these are sealed as before the field existed
        content = content[:-8] if state else content[:-16]
    return int.from_bytes(blake2b(content, digest_size=8, person=b"pliant line 1").digest(), "little")
