"""The decisions of an agent that lends its machine to many jobs: which of their agents to start and stop in its slots.

One pure function for each observation: `follow_orders`, `agent_ended`, `refuse_script`, `forgive` and `leave` return
the next state, and some of them also actions. The coordinator orders a job for each slot (`core.allocate.machines`). An
agent is started only in a slot that is empty: the one before has ended, with all its processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from pliant.core.allocate.machines import REFUSED_MAX, WHY_MAX, LentMachine, LentSlot

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
YOUNG_S = 5.0  # an agent that ends sooner counts as failed, whatever its exit status


@dataclass(frozen=True, slots=True)
class JobTrouble:
    """A job whose agents fail on this machine: how often in a row, the reason, and when to try again."""

    count: int
    why: str
    until: float


@dataclass(frozen=True, slots=True)
class UsedSlot:
    """A slot with an agent in it."""

    job: str
    since: float
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class Lender:
    """The state of the agent: its slots, those in use, and the jobs that it cannot run for some time."""

    name: str
    slots: int
    install_id: str = ""
    used: Mapping[int, UsedSlot] = field(default_factory=dict)
    troubles: Mapping[str, JobTrouble] = field(default_factory=dict)
    is_leaving: bool = False

    @property
    def is_done(self) -> bool:
        """True once it leaves and no agent runs in any slot."""
        return self.is_leaving and not self.used


@dataclass(frozen=True, slots=True)
class StartAgent:
    """Start the agent of a job in an empty slot."""

    slot: int
    job: str


@dataclass(frozen=True, slots=True)
class StopAgent:
    """Ask the agent in a slot to leave its job: its worker drains."""

    slot: int


SlotAction = StartAgent | StopAgent


def machine_report(lender: Lender, now: float) -> LentMachine:
    """Return the report about this machine."""
    slots = [lender.used.get(at) for at in range(lender.slots)]
    refused = [(job, trouble.why) for job, trouble in sorted(lender.troubles.items()) if trouble.until > now]
    return LentMachine(
        lender.name,
        tuple(LentSlot() if each is None else LentSlot(each.job, each.is_stopping) for each in slots),
        lender.install_id,
        tuple(refused[:REFUSED_MAX]),
        lender.is_leaving,
    )


def follow_orders(lender: Lender, orders: Sequence[str], now: float) -> tuple[Lender, tuple[SlotAction, ...]]:
    """Start the agents that are ordered for empty slots, and stop those whose slots are ordered for another job."""
    used, actions = dict(lender.used), list[SlotAction]()
    for slot, job in enumerate(orders[: lender.slots]):
        here = used.get(slot)
        if here is None:
            if job and not lender.is_leaving and not is_refused(lender, job, now):
                used[slot] = UsedSlot(job, now)
                actions.append(StartAgent(slot, job))
        elif here.job != job and not here.is_stopping:
            used[slot] = replace(here, is_stopping=True)
            actions.append(StopAgent(slot))
    return replace(lender, used=used), tuple(actions)


def agent_ended(lender: Lender, slot: int, code: int, why: str, now: float) -> Lender:
    """Empty the slot. An agent that failed, or ended at once, is not started again for a while."""
    here = lender.used[slot]
    lender = replace(lender, used={at: each for at, each in lender.used.items() if at != slot})
    if here.is_stopping:
        return lender
    if code or now - here.since < YOUNG_S:
        return _refuse(lender, here.job, why or f"its agent ended with exit status {code}", now)
    return forgive(lender, here.job)


def refuse_script(lender: Lender, job: str, why: str) -> Lender:
    """Refuse a job whose script cannot be run here, until `forgive`."""
    return replace(lender, troubles={**lender.troubles, job: JobTrouble(1, why[:WHY_MAX], inf)})


def forgive(lender: Lender, job: str) -> Lender:
    """Forget that a job failed or was refused."""
    return replace(lender, troubles={name: each for name, each in lender.troubles.items() if name != job})


def _refuse(lender: Lender, job: str, why: str, now: float) -> Lender:
    """Refuse a job for a time that doubles with each failure in a row."""
    kept = {name: each for name, each in lender.troubles.items() if now - each.until < BACKOFF_MAX_S}
    count = kept[job].count + 1 if job in kept else 1
    pause_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(count - 1, 10))
    return replace(lender, troubles={**kept, job: JobTrouble(count, why[:WHY_MAX], now + pause_s)})


def leave(lender: Lender) -> tuple[Lender, tuple[SlotAction, ...]]:
    """Ask all agents of this machine to leave their jobs."""
    stopped = tuple(StopAgent(slot) for slot, each in sorted(lender.used.items()) if not each.is_stopping)
    used = {slot: replace(each, is_stopping=True) for slot, each in lender.used.items()}
    return replace(lender, used=used, is_leaving=True), stopped


def is_refused(lender: Lender, job: str, now: float) -> bool:
    """Return whether a job failed here lately and is not tried again yet."""
    trouble = lender.troubles.get(job)
    return trouble is not None and trouble.until > now
