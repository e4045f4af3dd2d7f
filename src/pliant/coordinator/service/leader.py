"""Elect one of several coordinators to lead. If two believe that they lead, no harm follows: see `stores.base`."""

from __future__ import annotations

from enum import Enum

from pliant.errors import StoreError
from pliant.stores.base import Hold, Store

HOLD_TTL_S = 3.0


class Standing(Enum):
    """The role of a coordinator: it leads, it newly leads and has no job loaded yet, or it waits for another leader."""

    LEADS = "leads"
    NEWLY = "newly"
    WAITS = "waits"


class Leader:
    """The coordinator's hold on the store. While it waits, `why` is the reason."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._hold: Hold | None = None
        self._just_read = False  # the last pump was the first of its hold, and read the whole store
        self.why = "it has not asked for the hold yet"

    @property
    def leads(self) -> bool:
        return self._hold is not None

    def is_sure(self, now: float) -> bool:
        """Return whether the hold is in force, without asking the store."""
        return self._hold is not None and now < self._hold.until_s

    def gain_or_renew(self, now: float) -> Standing:
        """Gain or renew the hold at the start of a pump. Asks the store only when half of the hold's time is over."""
        if self._hold is not None and now < self._hold.until_s - HOLD_TTL_S / 2:
            self._just_read = False
            return Standing.LEADS
        try:
            held = self._store.hold("coordinator", self._owner, HOLD_TTL_S, now)
        except StoreError as error:
            return self._wait(f"the store did not answer: {error}")
        if not isinstance(held, Hold):
            return self._wait(f"{held.hold.owner} leads")
        before, self._hold = self._hold, held
        # Reading a large store may take longer than a hold lasts. Terms grow with every hold gained. If this term
        # follows that of the hold it was read under, no other coordinator wrote, and it need not be read again.
        kept = before is not None and held.term <= before.term + self._just_read
        self._just_read = not kept
        return Standing.LEADS if kept else Standing.NEWLY

    def release(self) -> None:
        """End the hold on a clean exit, so that the next coordinator need not wait for its expiry."""
        if self._hold is not None:
            hold, self._hold = self._hold, None
            self._store.release(hold)

    def forget(self, why: str) -> None:
        """Give up leading because the jobs could not be loaded. The next pump asks for the hold again."""
        self._wait(why)

    def _wait(self, why: str) -> Standing:
        self._hold, self.why = None, why
        return Standing.WAITS
