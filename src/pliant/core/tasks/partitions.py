"""Records of a growing queue with partitions: which offsets they have, in the order of their numbers.

The offsets of a partition become records in ranges, as members see them. A range continues where the one before ended,
so every offset is one record. The state has only the ranges of records that are not done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

NAME_MAX = 255
PARTITIONS_MAX = 1024
RANGES_MAX = 4096  # that a state has; more offsets become records once some are done
AHEAD_SHARDS = 1000  # of records that were not given out


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets `start` to `stop` of a partition."""

    partition: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.stop - 1} of {self.partition}"


@dataclass(frozen=True, slots=True)
class KnownOffsets:
    """The offsets that are records of a queue: `partitions` has all, `waiting` those of records from `first` on."""

    partitions: tuple[OffsetRange, ...] = ()
    waiting: tuple[OffsetRange, ...] = ()
    first: int = 0

    def stops(self) -> dict[str, int]:
        return {each.partition: each.stop for each in self.partitions}

    def gap(self, seen: Iterable[OffsetRange]) -> OffsetRange | None:
        """Return offsets that were dropped from a partition before they became records."""
        stops = self.stops()
        for each in seen:
            if each.start > stops.get(each.partition, each.start):
                return OffsetRange(each.partition, stops[each.partition], each.start)
        return None

    def new(self, seen: Iterable[OffsetRange], room: int) -> tuple[OffsetRange, ...]:
        """Return the ranges that become records, up to `room` of them, from all partitions alike.

        A partition that was not known before has a range, which may be empty: its first offset is known from then on.
        """
        stops = self.stops()
        ahead = [replace(each, start=stops.get(each.partition, each.start)) for each in seen]
        behind = sum(each.stop > each.start for each in ahead)
        share = -(-room // behind) if behind and len(self.waiting) + behind <= RANGES_MAX else 0
        found = []
        for each in ahead:
            count = max(min(each.stop - each.start, share, room), 0)
            room -= count
            if count or each.partition not in stops:
                found.append(replace(each, stop=each.start + count))
        return tuple(found)

    def after(self, added: Iterable[OffsetRange]) -> KnownOffsets:
        """Return the offsets that are known once these were added."""
        partitions, waiting = {each.partition: each for each in self.partitions}, list(self.waiting)
        for each in added:
            known = partitions.get(each.partition, each)
            partitions[each.partition] = replace(known, stop=each.stop)
            last = waiting[-1] if waiting else None
            if last is not None and (last.partition, last.stop) == (each.partition, each.start):
                waiting[-1] = replace(last, stop=each.stop)
            elif len(each):
                waiting.append(each)
        return KnownOffsets(tuple(partitions.values()), tuple(waiting), self.first)

    def without_before(self, record: int) -> KnownOffsets:
        """Return the known offsets without ranges whose records all come before this one."""
        first, waiting = self.first, self.waiting
        while waiting and first + len(waiting[0]) <= record:
            first, waiting = first + len(waiting[0]), waiting[1:]
        return self if first == self.first else replace(self, waiting=waiting, first=first)

    def between(self, start: int, stop: int) -> tuple[OffsetRange, ...]:
        """Return the offsets of the records `start` to `stop`."""
        return tuple(cut(self.waiting, start - self.first, stop - self.first))


def cut(ranges: Iterable[OffsetRange], start: int, stop: int) -> Iterator[OffsetRange]:
    """Return the offsets from the place `start` to before `stop`, of ranges that follow each other."""
    for each in ranges:
        low, high = max(start, 0), min(stop, len(each))
        if low < high:
            yield OffsetRange(each.partition, each.start + low, each.start + high)
        start, stop = start - len(each), stop - len(each)


def bad_ranges(seen: tuple[OffsetRange, ...], offset_max: int) -> str:
    """Return what is wrong with the partitions that a member reports; empty if nothing is."""
    names = [each.partition for each in seen]
    if len(names) > PARTITIONS_MAX or len({*names}) < len(names):
        return f"a queue can have up to {PARTITIONS_MAX} partitions with different names; got {len(names)}"
    for each in seen:
        if not 0 < len(each.partition) <= NAME_MAX:
            return f"the name of a partition must have 1 to {NAME_MAX} characters; got {each.partition[:NAME_MAX]!r}"
        if not 0 <= each.start <= each.stop <= offset_max:
            return f"partition {each.partition} cannot have the offsets {each.start} to {each.stop}"
    return ""
