"""The decisions of one pump for one job, before they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pliant.coordinator.service.loaded_jobs import LoadedJob
from pliant.core import messages as m
from pliant.core.job.decide import changes_membership, decide, has_consequences, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.job.invariants import all_violations
from pliant.core.messages import Command, Event, Rejection
from pliant.core.model.job import Job
from pliant.core.tasks.messages import ShardProgress
from pliant.stores.base import Write
from pliant.wire.api import EVENTS
from pliant.wire.codec import encode_state

TAIL_MAX = 64  # events after the newest record before a write adds a record; or a quarter of the members, if more

Submitted = tuple[object, Command]  # a ticket and its command; the ticket of the service's own commands is None


@dataclass(slots=True)
class Draft:
    """The commands to a job, an answer to each (None accepts it), and the events. A draft with a bug is not written."""

    name: str
    known: LoadedJob
    submitted: list[Submitted]
    after: Job | None
    events: tuple[Event, ...]
    answers: list[Rejection | None]
    bug: str = ""

    @property
    def changes_membership(self) -> bool:
        return changes_membership(self.events)

    @property
    def changes_shards(self) -> bool:
        return any(isinstance(event, ShardProgress) for event in self.events)

    def encode(self) -> Write:
        """Return the write that makes the events durable."""
        known, job = self.known, self.after
        assert job is not None  # there are events, and the first of them created it
        # A record costs as much as the job has members, so it is written rarely and the tail has the events since.
        whole = known.revision == 0 or known.tail + len(self.events) > max(TAIL_MAX, len(job.members) // 4)
        if job.state.ended and known.job is not None and not known.job.state.ended:
            whole = True  # the events that it covers can all be archived
        encoded = tuple(EVENTS.encode(event) for event in self.events)
        record = encode_state(job) if whole else None
        return Write(self.name, known.revision, encoded, record, live=not job.state.ended)


def draft_decisions(
    name: str,
    known: LoadedJob,
    submitted: list[Submitted],
    wall: float,
    set_back: str | None,
    is_void: Callable[[str, Command], bool],
) -> Draft:
    """Decide commands one after the other. With a reason in `set_back`, only a cancellation is decided."""
    job = known.job
    events: tuple[Event, ...] = ()
    answers: list[Rejection | None] = []
    for _, command in submitted:
        if set_back is not None and not isinstance(command, m.Cancel):
            answers.append(Rejection(m.Code.SET_BACK, set_back))
            continue
        if is_void(name, command):
            answers.append(None)
            continue
        decision = decide(job, command, wall)
        if isinstance(decision, Rejection):
            answers.append(decision)
            continue
        answers.append(None)
        for event in decision:
            job = evolve(job, event)
        events += decision
    bug = ""
    if job is not None and has_consequences(events):
        job, more = settle_all(job, wall)
        events += more
    if any(not isinstance(event, m.StepsCommitted) for event in events):
        bug = "; ".join(all_violations(known.job, events))
    return Draft(name, known, submitted, job, events, answers, bug)
