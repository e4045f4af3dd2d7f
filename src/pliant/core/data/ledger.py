"""The ledger: one line per committed step, chained by hash (rules 2, 6, 24), and what a line's digest is
made of.

The cursor alone cannot show that every sample was used: a step that forgets a lost member's slot moves the
cursor just as well (H15). So each member digests the samples it *really read*, where a slot's gradient
enters the buffer; the digests are added up in the control words; the sum goes into the line; and the line's
own digest covers its parent, so that no line can be changed, dropped or put in later without breaking every
line after it.

This is evidence against mistakes, made by honest members with buggy code. It is no proof against a member
that lies: whoever can compute the expected digest can report it. `pliant.core.data.audit` reads a ledger as a
whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from pliant.core.data.grid import Grid
from pliant.core.data.sample_order import MASK_64, MIX_1, MIX_2, Cursor, Order
from pliant.errors import BadInput

DIGESTS_CACHED = 65_536
"""How many expected digests are kept: enough for a simulated job, a few megabytes of them."""

GOLDEN = 0x9E3779B97F4A7C15
_CHAIN = struct.Struct("<10Q")


@dataclass(frozen=True, slots=True)
class Lineage:
    """Which history a state belongs to: the generation its last step was applied in, that step, the chain's
    digest.

    Equal lineages mean equal histories. Of two different ones the higher generation wins, then the higher
    step; never compare by step alone, because a step redone by a later generation is another step with the
    same number (H10). The digest is an unsigned 64-bit number: it rides in the control words.
    """

    generation: int
    step: int
    digest: int

    def key(self) -> tuple[int, int]:
        """Give what lineages are sorted by (rule 2): use it with `max` and `sorted`."""
        return (self.generation, self.step)

    def newer_than(self, other: Lineage) -> bool:
        """Tell whether this lineage wins over the other one. Two lineages with one key: neither is newer."""
        return (self.generation, self.step) > (other.generation, other.step)


GENESIS = Lineage(generation=0, step=0, digest=0)
"""The lineage of a state to which no step has been applied."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """What one committed step did: its lineage and its parent's, where it started, what was counted in its
    words.

    `epoch` and `position` are the cursor the step started from. `samples` and `digest` are the
    totals of the control words: how many samples were really read, and the sum of the slot digests. `state` is
    the hash of the state the step was computed from, as all who held it said in those words; 0: nobody took one.
    Make lines with `make_line`.
    """

    lineage: Lineage
    parent: Lineage
    epoch: int
    position: int
    samples: int
    digest: int
    state: int = 0


def slot_digest(step: int, slot: int, samples: Iterable[int]) -> int:
    """Digest the samples really read for a slot. Call it where the slot's gradient enters the buffer.

    A sum over the samples, each mixed with its step, its slot and its place in the slot: the order inside the slot
    counts, because another order is another sum of floating-point numbers, and so other bits. A slot without samples
    has digest 0 and changes no total. It is meant to find mistakes, so it is quick and not cryptographic;
    `pliant.train.data.order` has the same function for arrays.
    """
    if not (0 <= step <= MASK_64 and 0 <= slot <= MASK_64):
        raise _not_64_bits(step, slot)
    place = mix(mix(step) + slot)
    total = 0
    for at, sample in enumerate(samples):
        if not 0 <= sample <= MASK_64:
            raise _not_64_bits(step, slot)
        total += mix((place + at) ^ mix(sample))
    return total & MASK_64


def _not_64_bits(step: int, slot: int) -> BadInput:
    return BadInput(
        f"step {step}, slot {slot} and every sample must be integers from 0 to 2**64 - 1: "
        "digest the numbers of the samples, not the samples"
    )


def mix(value: int) -> int:
    """Spread a number over 64 bits, one to one, after adding a constant so that small numbers have far images."""
    z = (value + GOLDEN) & MASK_64
    z = ((z ^ z >> 30) * MIX_1) & MASK_64
    z = ((z ^ z >> 27) * MIX_2) & MASK_64
    return z ^ z >> 31


def add_digests(a: int, b: int) -> int:
    """Add two slot digests, or sums of them. It does not matter in which order slots are added up."""
    return (a + b) & MASK_64


def expected_digest(grid: Grid, order: Order, step: int) -> int:
    """Say what the digests of a step must add up to, if it reads just what the canonical order promises."""
    return _expected_digest(grid, order, step)


def expected_slot_digest(grid: Grid, order: Order, step: int, slot: int) -> int:
    """Say what one slot's digest must be. It is remembered for a while: asking again costs little."""
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
    parent: Lineage, generation: int, step: int, cursor: Cursor, samples: int, digest: int, state: int = 0
) -> LedgerLine:
    """Write the line of a step: call it when the step is committed, with what its control words added up to.

    `cursor` is where the step started. The new lineage's digest covers the whole parent and every other
    field. It does not judge: `can_follow` does that where a line is accepted, and the audit where all of
    them are read.
    """
    lineage = Lineage(generation, step, _chain(parent, generation, step, cursor, samples, digest, state))
    return LedgerLine(lineage, parent, cursor.epoch, cursor.position, samples, digest, state)


def is_sealed(line: LedgerLine) -> bool:
    """Tell whether the line's own digest covers what the line says. If not, it was altered afterwards."""
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
        )
    except BadInput:
        return False
    return digest == own.digest


def can_follow(line: LedgerLine, head: Lineage) -> bool:
    """Tell whether the line may come after `head`. Call it before accepting a line (rules 17, 24).

    It must be a child of just that lineage, the next step, of the same generation or a later one, and sealed.
    """
    return (
        line.parent == head
        and line.lineage.step == head.step + 1
        and line.lineage.generation >= head.generation
        and is_sealed(line)
    )


def _chain(parent: Lineage, generation: int, step: int, cursor: Cursor, samples: int, digest: int, state: int) -> int:
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
        )
    except struct.error as error:
        raise BadInput(
            f"every number in the line of step {step} must be an integer from 0 to 2**64 - 1: "
            "add digests with add_digests, which keeps them there"
        ) from error
    if not state:
        content = content[:-8]  # as all lines were before there were states in them: those stay sealed
    return int.from_bytes(blake2b(content, digest_size=8, person=b"pliant line 1").digest(), "little")
