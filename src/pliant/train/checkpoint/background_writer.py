"""Write one member's part of a checkpoint in the background, beside training.

The state does not change between a boundary and the next apply. Meanwhile a thread copies it block by block, and writes
each block before it takes the next. `copy_rest` copies the remaining blocks when the step is about to be applied; a
step never waits for more than that. So memory use never exceeds this member's part of the state, and is mostly one
block. The thread has the lowest priority of its process: on a busy machine training comes first.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf

from pliant.core.model.checkpoint import Piece
from pliant.train.checkpoint import PieceWriter

log = logging.getLogger(__name__)

# Bytes copied, and freed, at once. Between two blocks the thread holds the interpreter lock for a moment. If it loses
# its processor just then, training waits for it, so blocks are not small.
BLOCK = 16 << 20
NICE = 10

Content = Callable[[], memoryview]
"""Returns the current bytes of one leaf. On an accelerator it copies them."""

Copy = Callable[[memoryview], memoryview]
"""Copies bytes that are about to change, as fast as the framework can."""


class WriteAbandoned(Exception):
    """The part is no longer wanted."""


class BackgroundWriter:
    """A background write that starts at once. It calls either `written` or `failed` once, unless it is abandoned.

    For `writes_for_s` it writes each block before it copies the next. After that the step will soon be applied, so it
    only copies, which is six times as fast and leaves less for `copy_rest`. With `is_stable` the contents are copies
    already and do not change during training.
    """

    def __init__(
        self,
        writer: PieceWriter,
        contents: Sequence[Content],
        copy: Copy,
        written: Callable[[tuple[Piece, ...]], None],
        failed: Callable[[str], None],
        writes_for_s: float = inf,
        *,
        is_stable: bool = False,
    ) -> None:
        self.name = writer.name
        self._writer = writer
        self._contents = deque(contents)  # not copied yet; of the first one only the bytes before `_at`
        self._copy = copy
        self._written = written
        self._failed = failed
        self._is_stable = is_stable
        self._copy_only_after = time.monotonic() + writes_for_s
        self._moved = threading.Condition()
        self._current: memoryview | None = None  # the bytes of the first of `_contents`, once requested
        self._at = 0  # bytes of `_current` that are copied
        self._copied: deque[memoryview] = deque()  # blocks not written yet
        self._copy_error: OSError | None = None  # from `copy_rest`
        self._confirmed: bool | None = None  # None: undecided
        self._cancelled = False
        # At exit the interpreter waits for this thread, so a confirmed checkpoint is not lost halfway. A thread
        # inherits `daemon` from the thread that starts it, so it is set here.
        self._thread = threading.Thread(target=self._run, name="pliant-save", daemon=False)
        self._thread.start()

    def copy_rest(self) -> int:
        """Copy everything that is not copied yet, before the state changes. Return the number of bytes.

        It never waits for the thread, which may be stuck in a slow disk or without a processor. A block that the thread
        is copying is copied here as well, and the thread's copy of it is dropped.
        """
        nbytes = 0
        if self._is_stable:
            return nbytes
        with self._moved, self._fail_on_copy_error():
            while self._contents:
                live = (self._contents[0]() if self._current is None else self._current)[self._at :]
                if self._confirmed is not False:
                    self._copied.extend(self._copy(live[at : at + BLOCK]) for at in range(0, live.nbytes, BLOCK))
                nbytes += live.nbytes
                self._contents.popleft()
                self._current, self._at = None, 0
        return nbytes

    @contextmanager
    def _fail_on_copy_error(self) -> Iterator[None]:
        """Make the checkpoint fail, and not the training, if there is no memory for a copy."""
        try:
            yield
        except OSError as error:
            self._copy_error = error
            self._forget_contents()

    def confirm(self) -> None:
        """Finish the part, because its step is committed, and report it."""
        self._decide(wanted=True)

    def abandon(self) -> None:
        """Leave nothing behind. It has no effect on a part that is confirmed."""
        self._decide(wanted=False)

    def cancel(self) -> None:
        """Abandon the part even if it is confirmed, without waiting.

        If it was nearly written, `written` is still called.
        """
        with self._moved:
            self._confirmed, self._cancelled = False, True
            self._moved.notify_all()

    def cancel_and_wait(self) -> None:
        """Cancel the part and wait for its thread. Call it at the end of the run."""
        self.cancel()
        self._thread.join()

    def wait(self) -> None:
        """Wait until the part is finished or abandoned. Call it only after that was decided."""
        self._thread.join()

    @property
    def is_busy(self) -> bool:
        """True if the part was confirmed or cancelled, and its thread may still be running."""
        return (bool(self._confirmed) or self._cancelled) and self._thread.is_alive()

    def _decide(self, *, wanted: bool) -> None:
        with self._moved:
            if self._confirmed is None:
                self._confirmed = wanted
            self._moved.notify_all()

    # --------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            self._write_all()
            self._written(self._writer.finish())
        except WriteAbandoned:
            self._remove_partial_file()
        except Exception as error:  # why: the other members wait for a result, whatever the error
            self._cancel_copies()
            self._remove_partial_file()
            self._failed(getattr(error, "strerror", None) or str(error) or type(error).__name__)

    def _remove_partial_file(self) -> None:
        """Remove the file. A failing disk may refuse that, which must not keep `failed` from being called."""
        try:
            self._writer.abandon()
        except OSError as error:
            log.warning("the partial file of a checkpoint could not be removed: %s", error.strerror or error)

    def _write_all(self) -> None:
        while (block := self._next()) is not None:
            self._writer.write(block)
        with self._moved:
            self._moved.wait_for(lambda: self._confirmed is not None)
            self._raise_if_stopped()

    def _next(self) -> memoryview | None:
        """Return the next bytes to write; None if there are no more."""
        while not self._copied or time.monotonic() > self._copy_only_after:
            if not self._copy_block():
                break
        with self._moved:
            self._raise_if_stopped()
            return self._copied.popleft() if self._copied else None

    def _copy_block(self) -> bool:
        """Copy one block without delaying `copy_rest`.

        Return False if no block is left, or `copy_rest` took this one.
        """
        with self._moved:
            self._raise_if_stopped()
            if not self._contents:
                return False
            content, live, at = self._contents[0], self._current, self._at
        live = content() if live is None else live
        block = self._copy(live[at : at + BLOCK])
        with self._moved:
            if not self._contents:
                return False
            self._copied.append(block)
            self._current, self._at = live, at + block.nbytes
            if self._at >= live.nbytes:
                self._contents.popleft()
                self._current, self._at = None, 0
            return True

    def _raise_if_stopped(self) -> None:
        if self._confirmed is False:
            raise WriteAbandoned
        if self._copy_error is not None:
            raise self._copy_error

    def _cancel_copies(self) -> None:
        with self._moved:
            self._confirmed = False
            self._forget_contents()

    def _forget_contents(self) -> None:
        self._current, self._at = None, 0
        self._contents.clear()
        self._copied.clear()
