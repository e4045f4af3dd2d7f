"""The hold by which one of several coordinators leads. If two believe that they lead, no harm follows: `stores.base`.

A leader that receives no message leaves its hold to a coordinator that members may reach (ADR 0030, ADR 0033).

Pure: `pliant.coordinator.service.pump` asks the store and passes the answers to this module.
"""

from __future__ import annotations

from enum import Enum
from math import inf

from pliant.errors import StoreError
from pliant.stores.base import Busy, Hold

HOLD_NAME = "coordinator"
STANDBY_NAME = "standby"  # held by a coordinator that waits, so that an isolated leader knows of it
CALLED_NAME = "called"  # held by a coordinator that waits and gets renewals, whose senders do not reach the leader
CALLED_FRACTION = 0.2  # of a lease without any message, after which a leader leaves the hold to one that is called
CALLED_MIN_S = 2.0  # for short leases: a leader may be slow for a moment
HOLD_TTL_S = 3.0
HOLD_RENEWALS = 3  # in the time of one hold: two may fail before the hold is over
STAND_BACK_S = 2.0  # an isolated leader leaves the hold to others for so long; they ask for it every second


class Standing(Enum):
    """The role of a coordinator.

    It leads. It leads again, after a time in which no coordinator did. It newly leads and has no job loaded yet. Or it
    waits for another leader.
    """

    LEADS = "leads"
    AGAIN = "again"
    NEWLY = "newly"
    WAITS = "waits"


class Leader:
    """The hold of one coordinator. While it has none, `why` is the reason and `url` the leader's URL, if known."""

    def __init__(self) -> None:
        self.hold: Hold | None = None
        self.why = "it has not asked for the hold yet"
        self.url = ""
        self.is_other = False  # another coordinator leads
        self._not_before = 0.0  # the time until which this coordinator leaves the hold to others
        self._led_since = inf
        self._called_at = -inf  # the time of the last renewal that reached this coordinator while it waited

    def note_call(self, now: float) -> None:
        """Note that a member or an agent renews here while another coordinator leads: it does not reach that one."""
        self._called_at = now

    def names_of_a_standby(self, now: float) -> tuple[str, ...]:
        """Return the names that this coordinator holds while it waits, for the leader to see."""
        is_called = now - self._called_at < HOLD_TTL_S / HOLD_RENEWALS
        return (STANDBY_NAME, CALLED_NAME) if is_called else (STANDBY_NAME,)

    def successors(self, quiet_s: float, is_isolated: bool, lease_ttl_s: float, now: float) -> tuple[str, ...]:
        """Return the names whose holder may lead instead of this coordinator, which got no message for `quiet_s`.

        A renewal that reached the other coordinator is evidence, so that a short time is enough. Otherwise this one
        must be isolated, and must have had messages before: the members may be on their way.
        """
        is_quiet = min(quiet_s, now - self._led_since) > max(CALLED_MIN_S, lease_ttl_s * CALLED_FRACTION)
        called = (CALLED_NAME,) if is_quiet else ()
        return (*called, STANDBY_NAME) if is_isolated and quiet_s < inf else called

    def is_sure(self, now: float) -> bool:
        """Return whether the hold is in force, without asking the store."""
        return self.hold is not None and now < self.hold.until_s

    def is_due(self, now: float) -> bool:
        """Return whether to ask the store for the hold now."""
        if self.hold is None:
            return now >= self._not_before
        return now >= self.hold.until_s - HOLD_TTL_S * (1 - 1 / HOLD_RENEWALS)

    def answered(self, found: Hold | Busy, now: float) -> Standing:
        """Note the store's answer."""
        if isinstance(found, Busy):
            url = found.hold.url
            standing = self.lose(f"{found.hold.owner} leads{f' at {url}' if url else ''}")
            self.url, self.is_other = url, True
            return standing
        before, self.hold = self.hold, found
        self.url, self.is_other = "", False
        if before is not None and found.term == before.term:
            return Standing.LEADS
        self._led_since = now
        # Terms grow with every hold gained. If this term follows that of the last hold, no other coordinator led since,
        # and the loaded jobs are up to date. This process was paused, or a read took longer than a hold lasts.
        return Standing.AGAIN if before is not None and found.term == before.term + 1 else Standing.NEWLY

    def failed(self, error: StoreError, now: float) -> Standing:
        """Note that the store did not answer. The hold stays in force until its end, and is asked for again."""
        if self.is_sure(now):
            return Standing.LEADS
        return self.lose(f"the store did not answer: {error}")

    def stand_back(self, now: float) -> Standing:
        """Leave the hold for a moment to a coordinator that members may reach."""
        self._not_before = now + STAND_BACK_S
        return self.lose("no message arrives here, so that another coordinator may lead")

    def lose(self, why: str) -> Standing:
        """Give up the hold. The next pump asks for it again."""
        self.hold, self.why = None, why
        self.url, self.is_other = "", False
        return Standing.WAITS
