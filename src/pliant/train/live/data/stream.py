"""Data that can only be iterated from its beginning: its items are numbered as they come.

Every process that reads iterates the whole stream, keeps the items of its own slots and drops the others. The same
number means the same item only if the stream yields the same items in the same order each time it is opened. Pliant
helps with that: it seeds the generators of the framework, numpy and `random` before each item, and hides the
information on data workers by which a data set would divide its items. The first items are compared between members.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np

from pliant.errors import BadInput
from pliant.train.data.loader import epoch_seeds, sample_seeds
from pliant.train.live.data.tools import ArrayTools

log = logging.getLogger(__name__)

COMPARED = 8
"""Items at the beginning of a stream that members compare."""

LOG_EVERY_S = 10.0


def is_stream(dataset: Any, tools: ArrayTools) -> bool:
    """Return whether the data set can be iterated, but not read by number."""
    by_number = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return hasattr(dataset, "__iter__") and (tools.is_iterable(dataset) or not by_number)


class _Pass:
    """One pass over a stream, from its beginning, with seeded generators."""

    def __init__(self, source: Any, number: int, seed: int, tools: ArrayTools) -> None:
        self.yielded = 0
        self._tools = tools
        self._number = number
        self._seed = seed
        tools.seed(epoch_seeds(seed, number))
        with tools.hide_worker():
            if callable(set_epoch := getattr(source, "set_epoch", None)):
                set_epoch(number)
            self._items = iter(source)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._tools.seed(sample_seeds(self._seed, self._number, self.yielded))
        with self._tools.hide_worker():
            item = next(self._items)
        self.yielded += 1
        return item


def beginning(source: Any, seed: int, tools: ArrayTools) -> str:
    """Return a digest of the first items, for members to compare. Raises BadInput if opening it again changes them."""
    kind = type(source).__name__
    with tools.preserve():
        first = _digest(list(islice(_Pass(source, 0, seed, tools), COMPARED)), tools)
        again = _digest(list(islice(_Pass(source, 0, seed, tools), COMPARED)), tools)
    if first != again:
        raise BadInput(
            f"{kind} yielded other items when it was iterated again, so its items cannot be numbered: open the stream "
            "in __iter__, and draw from torch, numpy or random without a generator of your own"
        )
    return first


def count_items(source: Any, seed: int, tools: ArrayTools) -> int:
    """Return the number of items in a pass over the stream: its length if it has one, else by reading all of it."""
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        pass
    progress = _ProgressLog(f"counting the items of {type(source).__name__} (samples_per_epoch=N skips this)")
    count = 0
    with tools.preserve():
        for count, _ in enumerate(_Pass(source, 0, seed, tools), 1):
            progress.report(count)
    log.info("%s has %d items", type(source).__name__, count)
    return count


class StreamDataset:
    """The items of a stream by number: `samples` in each epoch. Fast where they are read in sequence.

    Without `endless` an epoch is a pass over the stream, and `samples` its length. An endless stream is one row of
    passes, from which each epoch takes the next items. The last `keep` items stay in memory, because members that
    finish the step of a lost member go back by less than a step.
    """

    def __init__(self, source: Any, samples: int, *, endless: bool, seed: int, keep: int, tools: ArrayTools) -> None:
        self.source = source
        self._samples = samples
        self._endless = endless
        self._seed = seed
        self._keep = keep
        self._tools = tools
        self._epoch = 0
        self._pass: _Pass | None = None
        self._row = -1  # the epoch whose pass is open; 0 if endless
        self._number = 0  # of the open pass
        self._next = 0  # index of the next item in the row
        self._recent: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the items that are read next. The stream gets the number of its pass when it is opened."""
        self._epoch = epoch

    def __getitem__(self, position: int) -> Any:
        row, index = (0, self._epoch * self._samples + position) if self._endless else (self._epoch, position)
        if row != self._row or (index < self._next and index not in self._recent):
            self._rewind(row)
        progress = _ProgressLog(f"reading {type(self.source).__name__} on to item {index + 1:,}")
        while self._next <= index:
            progress.report(self._next)
            self._recent[self._next] = self._read_next()
            self._next += 1
            if len(self._recent) > self._keep:
                del self._recent[next(iter(self._recent))]
        return self._recent[index]

    def _rewind(self, row: int) -> None:
        self._row, self._number, self._next = row, row, 0
        self._recent.clear()
        self._pass = _Pass(self.source, self._number, self._seed, self._tools)

    def _read_next(self) -> Any:
        assert self._pass is not None
        for item in self._pass:
            if not self._endless and self._pass.yielded == self._samples:
                self._check_end(self._pass)
            return item
        if not self._endless:
            raise ValueError(
                f"{type(self.source).__name__} ended after {self._pass.yielded} of {self._samples} items in pass "
                f"{self._number}: it must yield as many each time, or pass samples_per_epoch="
            )
        if not self._pass.yielded:
            raise ValueError(f"{type(self.source).__name__} yielded no item in pass {self._number}")
        self._number += 1
        self._pass = _Pass(self.source, self._number, self._seed, self._tools)
        return self._read_next()

    def _check_end(self, items: _Pass) -> None:
        for _ in items:
            raise ValueError(
                f"{type(self.source).__name__} has more than {self._samples} items in pass {self._number}: it must "
                "yield as many each time, or pass samples_per_epoch="
            )


class _ProgressLog:
    """Reports of something that may take long: one line every few seconds."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._last = time.monotonic()

    def report(self, count: int) -> None:
        if count % 256 == 0 and time.monotonic() - self._last >= LOG_EVERY_S:
            self._last = time.monotonic()
            log.info("%s: %s so far", self._doing, f"{count:,}")


def _digest(items: list[Any], tools: ArrayTools) -> str:
    found = blake2b(digest_size=8)
    for piece in _content(items, tools):
        found.update(piece)
    return found.hexdigest()


def _content(thing: Any, tools: ArrayTools) -> Iterator[bytes]:
    """Yield the bytes of tensors, arrays, numbers and text. Of other objects only the type counts."""
    yield type(thing).__qualname__.encode()
    if (of_framework := tools.content(thing)) is not None:
        yield from of_framework
    elif isinstance(thing, np.ndarray) and thing.dtype.kind in "biufc":
        yield repr((thing.dtype.str, thing.shape)).encode()
        yield np.ascontiguousarray(thing).tobytes()
    elif isinstance(thing, str | bytes | int | float | np.generic) or thing is None:
        yield repr(thing).encode()
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from _content(key, tools)
            yield from _content(value, tools)
    elif isinstance(thing, list | tuple):
        for each in thing:
            yield from _content(each, tools)
