"""Which of several coordinators does the work. That two may believe it is theirs harms nobody: see `stores.base`."""

from __future__ import annotations

from enum import Enum

from pliant.errors import StoreError
from pliant.stores.base import Hold, Store

HOLD_TTL_S = 3.0


class Standing(Enum):
    """How a coordinator stands: it leads, it leads anew and knows nothing yet, or another one does."""

    LEADS = "leads"
    NEWLY = "newly"
    WAITS = "waits"


class Leader:
    """Keeps the hold. `why` says, while it waits, what for."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._hold: Hold | None = None
        self._just_read = False  # the last pump was the first of its hold, and may have taken long
        self.why = "it has not asked yet"

    @property
    def leads(self) -> bool:
        return self._hold is not None

    def is_sure(self, now: float) -> bool:
        """Whether the hold is in force without asking."""
        return self._hold is not None and now < self._hold.until_s

    def keep(self, now: float) -> Standing:
        """Call at the start of every pump; asks the store only when half of the hold's time is over."""
        if self._hold is not None and now < self._hold.until_s - HOLD_TTL_S / 2:
            self._just_read = False
            return Standing.LEADS
        try:
            held = self._store.hold("coordinator", self._owner, HOLD_TTL_S, now)
        except StoreError as error:
            return self._wait(f"the store did not answer: {error}")
        if not isinstance(held, Hold):
            return self._wait(f"{held.hold.owner} is coordinating")
        before, self._hold = self._hold, held
        # Reading a large store may take longer than a hold lasts. Terms grow with every hold gained, so if this one
        # follows the one it was read under, nobody else had it in between, and it need not be read again.
        kept = before is not None and held.term <= before.term + self._just_read
        self._just_read = not kept
        return Standing.LEADS if kept else Standing.NEWLY

    def release(self) -> None:
        """Call on a clean exit: whoever comes next need not wait for this hold to run out."""
        if self._hold is not None:
            hold, self._hold = self._hold, None
            self._store.release(hold)

    def forget(self, why: str) -> None:
        """Call when leading cannot begin: the next pump asks for the hold again."""
        self._wait(why)

    def _wait(self, why: str) -> Standing:
        self._hold, self.why = None, why
        return Standing.WAITS
