"""The place of a worker in its code, for a harness that strikes it there.

A worker writes its place into a small file in shared memory: after a SIGKILL the file still has the place of the
process. Through a file that all workers read, the harness may ask workers to wait at a certain place until they are
struck. Pliant knows nothing of this: the training script wraps the functions that it observes.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

SIZE = 64
HELD_MAX_S = 4.0  # a worker that no fault strikes goes on after this
_PACE, _ARMED, _TURN = 0, 8, 12  # in the file of the harness
_DOING, _WIRING, _TRANSFER, _HELD, _STEP = 0, 1, 2, 3, 4  # in a worker's file
_NEVER = threading.Event()


class Place(IntEnum):
    """The places where a worker can be. Wiring and transfer run in threads of their own."""

    BETWEEN = 0
    FORWARD = 1
    BACKWARD = 2
    REDUCTION = 3
    APPLY = 4
    WIRING = 5
    TRANSFER = 6


STRUCK = (Place.FORWARD, Place.BACKWARD, Place.REDUCTION, Place.APPLY, Place.WIRING, Place.TRANSFER)


def _shared(path: Path) -> mmap.mmap:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(handle, SIZE)
        return mmap.mmap(handle, SIZE)
    finally:
        os.close(handle)


class Wish:
    """The requests of the harness to all workers. The harness and every worker open the same file."""

    def __init__(self, folder: Path) -> None:
        self._file = _shared(folder / "wish")

    @property
    def pace_s(self) -> float:
        """Return how long a step should take at least."""
        pace_s: float = struct.unpack_from("<d", self._file, _PACE)[0]
        return pace_s

    @pace_s.setter
    def pace_s(self, pace_s: float) -> None:
        struct.pack_into("<d", self._file, _PACE, pace_s)

    @property
    def armed(self) -> Place:
        """Return where a worker is to wait; BETWEEN: nowhere."""
        return Place(self._file[_ARMED])

    @armed.setter
    def armed(self, place: Place) -> None:
        self._file[_ARMED] = place


class Whereabouts:
    """One worker's file, as the harness reads it."""

    def __init__(self, folder: Path, pid: int) -> None:
        self._file = _shared(folder / f"{pid}.place")

    @property
    def held(self) -> Place | None:
        """Return where it waits to be struck, if it does."""
        found = self._file[_HELD]
        return Place(found) if found else None

    @property
    def place(self) -> Place:
        """Return where it is, or was when it died: held, else in a background thread, else in training."""
        if (held := self.held) is not None:
            return held
        if self._file[_TRANSFER]:
            return Place.TRANSFER
        if self._file[_WIRING]:
            return Place.WIRING
        return Place(self._file[_DOING])

    @property
    def changing(self) -> bool:
        """Return whether it is wiring, or a state or gradient is on its way from or to it."""
        return bool(self._file[_WIRING] or self._file[_TRANSFER])

    @property
    def step(self) -> int:
        step: int = struct.unpack_from("<I", self._file, _STEP)[0]
        return step


class Probe:
    """A worker's own side: it says where it is, waits there if it is to, and paces its steps."""

    def __init__(self, folder: Path) -> None:
        self._file = _shared(folder / f"{os.getpid()}.place")
        self._wish = Wish(folder)
        self._lock = threading.Lock()
        self._chance = random.Random(os.getpid())  # a generator of its own: Pliant seeds the others
        self._pause_in = Place.FORWARD

    def at(self, place: Place) -> None:
        """The training thread is here now."""
        self._file[_DOING] = place

    def begin_step(self, step: int) -> None:
        """A part is in the user's hands: with the step's first, in which place it is to take its time is drawn."""
        if step == struct.unpack_from("<I", self._file, _STEP)[0]:
            return
        struct.pack_into("<I", self._file, _STEP, step)
        self._pause_in = self._chance.choice((Place.FORWARD, Place.BACKWARD, Place.APPLY))

    def point(self, place: Place) -> None:
        """A moment inside a place: take the step's time here if this is where, and wait if a member is to be struck."""
        if place is self._pause_in and (pace_s := self._wish.pace_s) > 0:
            self._pause_in = Place.BETWEEN
            _NEVER.wait(pace_s)
        if self._wish.armed is place and self._chance.random() < 0.7:
            self._wait_to_be_struck(place)

    def _wait_to_be_struck(self, place: Place) -> None:
        self._file[_HELD] = place
        until = time.monotonic() + HELD_MAX_S
        while self._wish.armed is place and time.monotonic() < until:
            _NEVER.wait(0.002)
        self._file[_HELD] = 0

    @contextmanager
    def inside(self, place: Place) -> Iterator[None]:
        """The training thread is here for a block; it may be struck at the beginning or at the end."""
        before, self._file[_DOING] = self._file[_DOING], place
        self.point(place)
        try:
            yield
            self.point(place)
        finally:
            self._file[_DOING] = before

    @contextmanager
    def beside(self, place: Place) -> Iterator[None]:
        """The same for another thread than the training one; there may be several."""
        at = _WIRING if place is Place.WIRING else _TRANSFER
        with self._lock:
            self._file[at] += 1
        try:
            self.point(place)
            yield
            self.point(place)
        finally:
            with self._lock:
                self._file[at] -= 1

    def wrap(self, owner: Any, original: Callable[..., Any], place: Place) -> None:
        """Have every call of a function or method of `owner` observed."""
        how = self.beside if place in (Place.WIRING, Place.TRANSFER) else self.inside

        def observed(*args: Any, **kwargs: Any) -> Any:
            with how(place):
                return original(*args, **kwargs)

        self._replace(owner, original, observed)

    def wrap_generator(self, owner: Any, original: Callable[..., Iterator[Any]], place: Place) -> None:
        """The same for a generator: it is observed until it is closed, and may be struck between two items."""

        def observed(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with self.beside(place):
                for item in original(*args, **kwargs):
                    self.point(place)
                    yield item

        self._replace(owner, original, observed)

    @staticmethod
    def _replace(owner: Any, original: Callable[..., Any], observed: Callable[..., Any]) -> None:
        if getattr(owner, original.__name__, None) is not original:
            raise LookupError(f"{owner} has no {original.__name__} of its own")
        setattr(owner, original.__name__, observed)


def install(probe: Probe, *reducers: Any) -> None:
    """Observe the places inside Pliant, those in the reducers of a framework too. Call it before a worker joins."""
    from pliant.train import session
    from pliant.train.group import wiring
    from pliant.train.live import loop
    from pliant.train.state import transfer

    # The functions themselves, not their names: a renamed one is found by the type checker.
    for reducer in reducers:
        probe.wrap(reducer, reducer.reduce, Place.REDUCTION)
    probe.wrap(loop.Loop, loop.Loop.apply, Place.APPLY)
    probe.wrap(wiring.TcpWiring, wiring.TcpWiring.run, Place.WIRING)
    probe.wrap(wiring.TcpWiring, wiring.TcpWiring._connect, Place.WIRING)
    probe.wrap(transfer.StateDownload, transfer.StateDownload._receive_stripe, Place.TRANSFER)
    probe.wrap(session, transfer.fetch_gradient, Place.TRANSFER)
    probe.wrap_generator(transfer.StateSource, transfer.StateSource._send_stripe, Place.TRANSFER)
    probe.wrap_generator(transfer.StateSource, transfer.StateSource._send_gradient, Place.TRANSFER)
