"""Micro-batches of a step, the samples they hold, and the digest of the samples that were really read.

A *micro-batch* is what one pass of the user's loop receives: the samples of some slots of one step, in ascending order.
`cut_micro_batches` cuts the slots of a member, `SampleIndices` lists their samples, and an adapter reads and digests
them. The samples depend on the step and the slots alone, so step and slots identify a micro-batch: data prefetched for
one owner is valid for any other owner.

It needs numpy (the `train` extra).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, pairwise
from struct import unpack
from typing import Any, TypeAlias

import numpy as np

from pliant.core.data.grid import Changes, Grid, Stretch
from pliant.core.data.sample_order import MASK_64, Order
from pliant.errors import BadInput, PliantError
from pliant.train.data.order import Samples, running_digests, slots_digest, take

SHUFFLED = "shuffled"
SEQUENTIAL = "sequential"
FUNCTION = "function"

# Samples computed at once, and the number of such blocks kept for data workers that read ahead.
BLOCK = 4096
BLOCKS_KEPT = 8
SHAPES_KEPT = 256
# The epoch that ends and the one being prefetched.
EPOCHS_KEPT = 2


OrderOfEpoch: TypeAlias = Callable[[int], Iterable[int]]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples that are yielded together: those of these slots of this step. It is also the key of prefetched data.

    `changes` are those of the batch that the step's samples depend on.
    """

    step: int
    slots: tuple[int, ...]
    changes: Changes = ()

    def __post_init__(self) -> None:
        if not _are_ascending(self.slots):
            raise BadInput(f"a micro-batch needs at least one slot, in ascending order; got {self.slots}")


@lru_cache(maxsize=256)
def _are_ascending(slots: tuple[int, ...]) -> bool:
    """Return whether there is a slot and each is above the one before. Most steps share one result."""
    return bool(slots) and all(before < after for before, after in pairwise(slots))


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Instructions to read a micro-batch: its epoch, its samples in order, and the number of samples of each slot.

    `positions` has the position in the epoch of each sample if the epoch may hold a sample twice, else None.
    """

    micro_batch: MicroBatch
    epoch: int
    samples: Samples
    sizes: tuple[int, ...]
    positions: Samples | None = None


@dataclass(frozen=True, slots=True)
class LoadedMicroBatch:
    """A micro-batch that was read: the batch, and the count and digest of the samples really read for it."""

    micro_batch: MicroBatch
    data: Any
    samples: int
    digest: int


class SampleError(PliantError):
    """Reading failed. Report the slots: if a slot fails on two members, its samples fail the job (rule 20).

    A sample that cannot be read names its slot. A failure of several samples read or collated together names all their
    slots. `trace` is the traceback of the data set's own error, from the process that raised it.
    """

    def __init__(self, part: MicroBatch, slots: tuple[int, ...], samples: tuple[int, ...], trace: str) -> None:
        named = f"sample {samples[0]}" if len(samples) == 1 else f"{len(samples)} samples (first: {samples[0]})"
        where = f"slot {slots[0]}" if len(slots) == 1 else f"{len(slots)} slots from {slots[0]} on"
        super().__init__(f"{named} of step {part.step}, {where}, could not be read:\n{trace.rstrip()}")
        self.micro_batch = part
        self.slots = slots
        self.samples = samples
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleError, (self.micro_batch, self.slots, self.samples, self.trace)

    @property
    def slot(self) -> int:
        """The slot, or the first of several."""
        return self.slots[0]

    @property
    def sample(self) -> int:
        """The sample, or the first of several."""
        return self.samples[0]


class WrongSamples(PliantError):
    """The samples that all members read for a step are not those of the order. Nothing was applied."""

    def __init__(self, step: int) -> None:
        super().__init__(
            f"step {step} was not computed from the samples of its order, so it was not applied: "
            "check the loader and the order function of all members, one of them returns wrong samples"
        )
        self.step = step


def check_micro_batch(grid: Grid, micro_batch: int | None) -> None:
    """Raise BadInput if a slot of some step is wider than `micro_batch`. Call it when training starts."""
    if micro_batch is None:
        return
    if micro_batch < 1:
        raise BadInput(f"micro_batch must be at least 1, not {micro_batch}")
    # All steps but an epoch's last are alike, and only in the last can a slot be wider than the others.
    steps = {1, min(grid.steps_per_epoch, grid.total_steps)}
    widest = max(len(grid.slot(step, slot)) for step in steps for slot in grid.filled(step))
    if widest > micro_batch:
        raise _too_wide(widest, micro_batch, grid.slots, grid.batch)


def check_changed_batch(slots: int, batch: int, micro_batch: int | None) -> None:
    """Raise BadInput if a slot could be wider than `micro_batch` once the batch changes to this one.

    The change may leave an epoch any last step. A single last sample joins the slot before it.
    """
    full = -(-batch // slots)
    widest = full + 1 if full > 1 and slots > 1 else full
    if micro_batch is not None and widest > micro_batch:
        raise _too_wide(widest, micro_batch, slots, batch)


def _too_wide(widest: int, micro_batch: int, slots: int, batch: int) -> BadInput:
    return BadInput(
        f"a slot holds up to {widest} samples and cannot be split, so micro_batch={micro_batch} cannot be kept: "
        f"raise micro_batch to {widest}, or raise slots (now {slots}) towards the batch size ({batch})"
    )


def cut_micro_batches(grid: Grid, step: int, slots: Iterable[int], micro_batch: int | None) -> tuple[MicroBatch, ...]:
    """Cut the slots of a member in this step into micro-batches of at most `micro_batch` samples.

    Micro-batches ascend, are as few as possible or nearly so, and are as equal in size as slots permit. Slots without
    samples are left out; the result is empty if none holds any.
    """
    owned = _owned(tuple(slots), grid.slots, len(grid.filled(step)))
    if not owned:
        return ()
    if micro_batch is None:
        return (MicroBatch(step, owned, grid.changes_at(step)),)
    sizes = [len(grid.slot(step, slot)) for slot in owned]
    if max(sizes) > micro_batch:
        raise _too_wide(max(sizes), micro_batch, grid.slots, grid.stretch(step).batch)
    total = sum(sizes)
    count = -(-total // micro_batch)
    # With as many micro-batches as samples no two slots share one, so this ends.
    while max(map(sum, _spread(sizes, sizes, count))) > micro_batch:
        count += 1
    changes = grid.changes_at(step)
    return tuple(MicroBatch(step, tuple(group), changes) for group in _spread(owned, sizes, count))


@lru_cache(maxsize=256)
def _owned(slots: tuple[int, ...], count: int, filled: int) -> tuple[int, ...]:
    """Return those of a grid's slots that hold samples, ascending. Most steps share one result."""
    given = sorted(slots)
    if given and not 0 <= given[0] <= given[-1] < count:
        raise BadInput(f"the grid has slots 0 to {count - 1}, not {given[0]} to {given[-1]}: pass some of them")
    return tuple([slot for slot in given if slot < filled])


def _spread(things: Sequence[int], sizes: Sequence[int], count: int) -> list[list[int]]:
    """Put each thing into the one of `count` equal stretches that its middle falls into; drop empty ones."""
    total = sum(sizes)
    groups: list[list[int]] = [[] for _ in range(count)]
    before = 0
    for thing, size in zip(things, sizes, strict=True):
        groups[(2 * before + size) * count // (2 * total)].append(thing)
        before += size
    return [group for group in groups if group]


def _together(stretch: Stretch) -> int:
    """Return how many steps of a stretch make a block."""
    return max(1, BLOCK // stretch.batch)


class SampleIndices:
    """The canonical order of a job's samples, for members that read them.

    Create one per job and data set. `order` is "shuffled" (by the seed, P3), "sequential", or a function that takes the
    epoch, counted from 0, and returns the samples of its positions: the same on every member, any sample any number of
    times. `data` is the length of the data if an epoch has another length; "shuffled" and "sequential" then go through
    the data pass after pass, and an epoch takes the next samples. `kind` says where a function comes from.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        seed: int,
        order: str | OrderOfEpoch = SHUFFLED,
        data: int | None = None,
        kind: str = FUNCTION,
    ) -> None:
        if not callable(order) and order not in (SHUFFLED, SEQUENTIAL):
            raise BadInput(
                f'order must be "{SHUFFLED}", "{SEQUENTIAL}" or a function that returns the indices of an epoch, '
                f"not {order!r}"
            )
        self.grid = grid
        self.data = grid.samples if data is None else data
        self._order = order
        self._kind = kind
        self._shuffle = Order(seed, grid.samples, None if self.data == grid.samples else self.data)
        self._digests: dict[int, tuple[Samples, Samples]] = {}  # by step: its samples, and their running digests
        self._shapes: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}  # by slots, and the step's size
        self._blocks: dict[tuple[int, int, int], Samples] = {}  # by stretch, and index in it
        self._epochs: dict[int, Samples] = {}
        self._repeating: dict[int, bool] = {}  # whether an epoch of a function holds a sample twice
        self._edges: dict[int, tuple[int, ...]] = {}
        self._batch = grid.batch  # that `_shapes` and `_edges` are for

    def set_grid(self, grid: Grid) -> None:
        """Take the samples of a grid whose batch has changed. The order of an epoch stays the same."""
        self.grid = grid
        self._digests = {}
        self._blocks = {}

    @property
    def fingerprint(self) -> str:
        """The value that members must agree on at join, besides the seed. It calls a function for epoch 0."""
        if isinstance(self._order, str):
            return self._order if self._kind == FUNCTION else self._kind
        return f"{self._kind} {self.epoch_fingerprint(0)}"

    def epoch_fingerprint(self, epoch: int) -> str:
        """Return a digest of an epoch's whole order, for members to compare orders given by a function."""
        samples = self._take(epoch, range(self.grid.samples))
        return blake2b(samples.astype("<u8").tobytes(), digest_size=16, person=b"pliant epoch 1").hexdigest()

    def of(self, step: int, slot: int) -> Samples:
        """Return the samples of one slot. For several, call `of_micro_batch`."""
        return self.of_micro_batch(MicroBatch(step, (slot,)))

    def of_micro_batch(self, part: MicroBatch) -> Samples:
        """Return the samples of a micro-batch, slot after slot."""
        return self.plan_read(part).samples

    def plan_read(self, part: MicroBatch) -> ReadPlan:
        """Return the samples to read for a micro-batch. Call it just before reading: it is not free."""
        step, slots = part.step, part.slots
        self._keep_shapes_of_step(step)
        samples = self._of_step(step)
        edges = self._edges_of(step)
        if slots[0] < 0 or slots[-1] > len(edges) - 2:
            raise BadInput(f"step {step} has samples in slots 0 to {len(edges) - 2}, not in all of {slots}")
        shape = self._shape_of(slots, edges)
        if slots[-1] - slots[0] + 1 == len(slots):
            taken = samples[edges[slots[0]] : edges[slots[-1] + 1]]
        else:
            taken = np.concatenate([samples[edges[slot] : edges[slot + 1]] for slot in slots])
        cursor = self.grid.cursor(step)
        if not self._repeats(cursor.epoch):
            return ReadPlan(part, cursor.epoch, taken, shape)
        positions = np.concatenate([np.arange(edges[slot], edges[slot + 1]) for slot in slots]) + cursor.position
        return ReadPlan(part, cursor.epoch, taken, shape, positions)

    def _shape_of(self, slots: tuple[int, ...], edges: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of samples of each slot."""
        key = (slots, edges[-1])
        if key not in self._shapes:
            if len(self._shapes) >= SHAPES_KEPT:
                self._shapes.clear()
            self._shapes[key] = tuple([edges[slot + 1] - edges[slot] for slot in slots])
        return self._shapes[key]

    def _keep_shapes_of_step(self, step: int) -> None:
        """Drop what was kept for steps of another batch: a step of the same size may have other slots."""
        batch = self.grid.stretch(step).batch if self.grid.changes else self.grid.batch
        if batch != self._batch:
            self._batch = batch
            self._shapes, self._edges = {}, {}

    def _repeats(self, epoch: int) -> bool:
        """Return whether the epoch may hold a sample twice."""
        if isinstance(self._order, str):
            return self.data != self.grid.samples
        self._of_function(self._order, epoch)
        return self._repeating[epoch]

    def expected(self, step: int) -> int:
        """Return the sum that the digests of all slots of a step must have, to compare with the words' total."""
        return int(self._digests_of(step)[1][-1])

    def digest_read(self, part: MicroBatch, read: Samples | Sequence[int], ends: Iterable[int]) -> int:
        """Return the same as the function `digest_read`, faster if these are the samples of the order."""
        slots = part.slots
        samples, running = self._digests_of(part.step)
        self._keep_shapes_of_step(part.step)
        edges = self._edges_of(part.step)
        if slots[-1] - slots[0] + 1 == len(slots) and slots[-1] + 1 < len(edges):
            begin, end = edges[slots[0]], edges[slots[-1] + 1]
            wanted = samples[begin:end]
            is_order = read == wanted.tolist() if isinstance(read, list) else np.array_equal(read, wanted)
            if is_order and tuple(ends) == slot_ends(self._shape_of(slots, edges)):
                return (int(running[end]) - int(running[begin])) & MASK_64
        return digest_read(part, read, ends)

    def _digests_of(self, step: int) -> tuple[Samples, Samples]:
        if step not in self._digests:
            self._digests = self._digest_block(step)
        return self._digests[step]

    def _digest_block(self, step: int) -> dict[int, tuple[Samples, Samples]]:
        """Return the digests of all steps of a block that are as long as this one: one step costs hardly less."""
        found, size = self.grid.stretch(step), self.grid.size(step)
        self._keep_shapes_of_step(step)
        together = _together(found)
        first = step - (step - found.first) % together
        last = min(first + together, found.first + found.steps, self.grid.total_steps + 1)
        steps = [each for each in range(first, last) if self.grid.size(each) == size]
        edges = np.asarray(self._edges_of(step), dtype=np.int64)
        sizes = np.diff(edges).astype(np.int64)
        slots = np.repeat(np.arange(len(sizes)), sizes).astype(np.uint64)
        within = (np.arange(size) - np.repeat(edges[:-1], sizes)).astype(np.uint64)
        samples = np.stack([self._of_step(each) for each in steps])
        digests = running_digests(np.asarray(steps, dtype=np.int64), slots, within, samples)
        return dict(zip(steps, zip(samples, digests, strict=True), strict=True))

    def _edges_of(self, step: int) -> tuple[int, ...]:
        """Return where each slot with samples starts inside the step, and the step's end."""
        size = self.grid.size(step)
        if size not in self._edges:
            begin = self.grid.cursor(step).position
            starts = [self.grid.slot(step, slot).start - begin for slot in self.grid.filled(step)]
            self._edges[size] = (*starts, size)
        return self._edges[size]

    def _of_step(self, step: int) -> Samples:
        """Return the samples of a step. Several steps are computed at once, because a call has a fixed cost."""
        size = self.grid.size(step)  # raises for a step that the job does not have
        stretch = self.grid.stretch(step)
        batch, together = stretch.batch, _together(stretch)
        block, at = divmod((step - stretch.first) // self.grid.turns, together)
        key = (stretch.epoch, stretch.position, block)
        found = self._blocks.get(key)
        if found is None:
            begin = stretch.position + block * together * batch
            found = self._take(stretch.epoch, range(begin, min(begin + together * batch, self.grid.samples)))
            if len(self._blocks) >= BLOCKS_KEPT:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[key] = found
        return found[at * batch : at * batch + size]

    def _take(self, epoch: int, positions: range) -> Samples:
        if self._order == SHUFFLED:
            return take(self._shuffle, epoch, positions)
        if self._order == SEQUENTIAL:
            begin = epoch * self.grid.samples
            return np.arange(begin + positions.start, begin + positions.stop, dtype=np.int64) % self.data
        assert callable(self._order)
        return self._of_function(self._order, epoch)[positions.start : positions.stop]

    def _of_function(self, order: OrderOfEpoch, epoch: int) -> Samples:
        """Return the samples of an epoch, by the user's function. The last epochs are kept."""
        if epoch not in self._epochs:
            name = order_name(self._kind, epoch)
            samples = checked_order(order(epoch), name, self.data)
            if len(samples) != self.grid.samples:
                raise _other_length(name, len(samples), self.grid.samples)
            if len(self._epochs) >= EPOCHS_KEPT:
                oldest = next(iter(self._epochs))
                del self._epochs[oldest], self._repeating[oldest]
            self._epochs[epoch] = samples
            self._repeating[epoch] = len(np.unique(samples)) < len(samples)
        return self._epochs[epoch]


def order_name(kind: str, epoch: int) -> str:
    """Return the name of an epoch's order in messages."""
    return f"order({epoch})" if kind == FUNCTION else f"the {kind} in epoch {epoch}"


def _other_length(name: str, found: int, samples: int) -> BadInput:
    return BadInput(
        f"{name} returned {found} indices, but an epoch of this job has {samples}: return {samples} for every epoch, "
        f"or pass samples_per_epoch={min(found, samples)} to use the first {min(found, samples)} of each"
    )


def checked_order(given: Iterable[int], name: str, data: int) -> Samples:
    """Return the indices of an epoch as an array. Raises BadInput if one of them is no index of the data."""
    sized = given if hasattr(given, "__len__") else list(given)
    try:
        array = np.asarray(sized)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name} must return integers, the indices of samples: {error}") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise BadInput(
            f"{name} must return integers in one dimension, not an array of {array.dtype} with shape {array.shape}"
        )
    outside = array[(array < 0) | (array >= data)]
    if outside.size:
        raise BadInput(f"{name} returned index {outside[0]}, but samples are numbered 0 to {data - 1}")
    return array.astype(np.int64)


@lru_cache(maxsize=256)
def slot_ends(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return where each slot ends, from the number of samples in each."""
    return tuple(accumulate(sizes))


def digest_read(part: MicroBatch, read: Samples | Sequence[int], ends: Iterable[int]) -> int:
    """Digest the samples really read for a micro-batch. Call it where the samples are read, with their numbers.

    `ends` holds for each slot where its samples end in `read`. The result is the sum of the slots' digests, so the
    digests of a step's micro-batches add up to `SampleIndices.expected`.
    """
    return slots_digest(part.step, part.slots, np.asarray(read, dtype=np.int64), tuple(ends))


def sample_seeds(seed: int, epoch: int, sample: int, position: int | None = None) -> tuple[int, int, int]:
    """Return three seeds for reading one sample. They do not depend on the reader or the time.

    Pass the position in the epoch where a sample may occur twice, so that each occurrence is drawn anew.
    """
    occurrence = "" if position is None else f" {position:x}"
    return _three_seeds(f"sample {seed:x} {epoch:x} {sample:x}{occurrence}")


def epoch_seeds(seed: int, epoch: int) -> tuple[int, int, int]:
    """Return three seeds for what is drawn once in an epoch: its order, and what `set_epoch` draws."""
    return _three_seeds(f"epoch {seed:x} {epoch:x}")


def micro_batch_seeds(seed: int, part: MicroBatch) -> tuple[int, int, int]:
    """Return three seeds for work on a micro-batch as a whole: a batched read, a collate function."""
    return _three_seeds(f"part {seed:x} {part.step:x} {part.slots[0]:x}")


def _three_seeds(text: str) -> tuple[int, int, int]:
    stream = blake2b(text.encode(), digest_size=24, person=b"pliant chance 1").digest()
    first, second, third = unpack("<3Q", stream)
    return first, second, third


def step_seed(seed: int, step: int, slot: int | None) -> int:
    """Return the seed for user code in the micro-batch that begins with this slot; it never depends on a rank.

    With None it is the seed for user code after the step, which must draw the same numbers on every member.
    """
    text = f"{seed:x} {step:x} {'after' if slot is None else format(slot, 'x')}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8, person=b"pliant step 1").digest(), "little")
