"""A training thread that is stuck in user code is named, with its stack, before anybody asks."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

log = logging.getLogger(__name__)


class StallWatch:
    """Looks at the thread that made it. `busy_since` gives when that thread entered the user's code, None outside."""

    def __init__(self, who: str, stall_s: float, busy_since: Callable[[], float | None]) -> None:
        self._who = who
        self._stall_s = stall_s
        self._busy_since = busy_since
        self._thread_id = threading.get_ident()
        self._over = threading.Event()
        self._named: float | None = None
        self._thread = threading.Thread(target=self._look, name="pliant-stall", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(1.0)

    def _look(self) -> None:
        while not self._over.wait(min(self._stall_s / 4, 5.0)):
            since = self._busy_since()
            if since is None or since == self._named or time.monotonic() - since < self._stall_s:
                continue
            self._named = since
            frame = sys._current_frames().get(self._thread_id)
            stack = "".join(traceback.format_stack(frame)) if frame else "(its thread is gone)"
            log.warning("%s has been in the training loop's body for %.0f s:\n%s", self._who, self._stall_s, stack)
