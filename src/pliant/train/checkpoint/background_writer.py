"""One member's part of a checkpoint on its way to the disk, beside training.

Between a boundary and the next apply the state does not change, so a thread copies it block by block and writes each
block before it takes the next. What it has not reached when the step wants to be applied is copied then, and that is
all a step ever waits for: `secure`. So there is never more memory in use than this member's part of the state, and most
often no more than a block. The thread is the least urgent one of its process: on a busy machine training comes first.
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

# Bytes that are copied at once, and whose memory goes back at once. Between two blocks the thread holds the interpreter
# for a moment; if it loses its processor just then, training waits until it has it again. So blocks are not small.
BLOCK = 16 << 20
NICE = 10

Content = Callable[[], memoryview]
"""The bytes of one leaf, as they are now. On an accelerator this copies them."""

Copy = Callable[[memoryview], memoryview]
"""A copy of bytes that are about to change, as quick as the framework can."""


class WriteAbandoned(Exception):
    """Nobody wants this part any more."""


class BackgroundWriter:
    """Begins at once. Exactly one of `written` and `failed` is called in the end, unless it is abandoned.

    For `writes_for_s` it writes each block before it takes the next. Then the step will soon be applied, and it only
    copies, which is six times as quick: what it copies now `secure` need not. Contents that are aside already (`rests`)
    do not change, whatever training does.
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
        rests: bool = False,
    ) -> None:
        self.name = writer.name
        self._writer = writer
        self._contents = deque(contents)  # still to be copied, the first one from `_at` on
        self._copy = copy
        self._written = written
        self._failed = failed
        self._is_stable = rests
        self._copy_only_after = time.monotonic() + writes_for_s
        self._moved = threading.Condition()
        self._current: memoryview | None = None  # the first of `_contents`, if it was asked for already
        self._at = 0  # what lies before it in there is copied
        self._copied: deque[memoryview] = deque()  # not written yet
        self._copy_error: OSError | None = None  # what `secure` met with
        self._confirmed: bool | None = None  # None: not known yet
        self._cancelled = False
        # The interpreter waits for it at its end: a checkpoint that is wanted is not given up halfway.
        self._thread = threading.Thread(target=self._run, name="pliant-save")
        self._thread.start()

    def copy_rest(self) -> int:
        """Call before the state changes: copies what is still to be copied, and says how many bytes that was.

        It never waits for the thread, which may be stuck in a slow disk or get no processor for a while: a block that
        the thread is at is copied here once more, and the thread's own copy of it is not used.
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
        """If there is no memory for a copy, it is the checkpoint that fails and not the training."""
        try:
            yield
        except OSError as error:
            self._copy_error = error
            self._forget_contents()

    def confirm(self) -> None:
        """The step is committed: finish it, and say so."""
        self._decide(wanted=True)

    def abandon(self) -> None:
        """It is of no use: leave nothing behind. Does nothing to one that is wanted and under way."""
        self._decide(wanted=False)

    def cancel(self) -> None:
        """The same, wanted or not, and without waiting for it. If it was as good as written, `written` is called."""
        with self._moved:
            self._confirmed, self._cancelled = False, True
            self._moved.notify_all()

    def cancel_and_wait(self) -> None:
        """Call at the end of everything."""
        self.cancel()
        self._thread.join()

    def wait(self) -> None:
        """Returns once it is finished, one way or another; call when that is decided."""
        self._thread.join()

    @property
    def is_busy(self) -> bool:
        """Whether it was wanted, and its thread may still be at it."""
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
        except Exception as error:  # why: whatever keeps a part from being written, others wait to hear of it
            self._cancel_copies()
            self._remove_partial_file()
            self._failed(getattr(error, "strerror", None) or str(error) or type(error).__name__)

    def _remove_partial_file(self) -> None:
        """A disk that fails may not even let go of what is on it. That must not keep anybody from hearing of it."""
        try:
            self._writer.abandon()
        except OSError as error:
            log.warning("what was written of a checkpoint could not be removed: %s", error.strerror or error)

    def _write_all(self) -> None:
        while (block := self._next()) is not None:
            self._writer.write(block)
        with self._moved:
            self._moved.wait_for(lambda: self._confirmed is not None)
            self._raise_if_stopped()

    def _next(self) -> memoryview | None:
        """The next bytes to write. None: that was all."""
        while not self._copied or time.monotonic() > self._copy_only_after:
            if not self._copy_block():
                break
        with self._moved:
            self._raise_if_stopped()
            return self._copied.popleft() if self._copied else None

    def _copy_block(self) -> bool:
        """Copy, without holding up `secure`: if that came meanwhile, it has copied this block, too. False: no more."""
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
