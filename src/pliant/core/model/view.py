"""The part of a job's state that the coordinator sends to one member."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pliant.core.data.grid import Changes
from pliant.core.data.ledger import Lineage
from pliant.core.model.checkpoint import NEVER_WHOLE, Checkpoint
from pliant.core.model.copies import change
from pliant.core.model.fingerprint import fingerprint_difference
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import MemberId
from pliant.core.model.world import World
from pliant.core.ps.model import BucketLayout
from pliant.core.tasks.model import ModelPeers


class MemberState(StrEnum):
    """The activity of a member, derived from the worlds it is in and never stored. `ended`: with its job."""

    JOINING = "joining"
    SPARE = "spare"
    ACTIVE = "active"
    DRAINING = "draining"
    ENDED = "ended"


@dataclass(frozen=True)
class View:
    """The state that the coordinator sends to one member: enough to act on without further requests.

    It has no slots, so that `change` copies it.
    """

    revision: int
    state: JobState
    why: str
    known: bool  # False: gone for good, or never joined (P6)
    draining: bool
    grace_s: float
    worlds: tuple[World, ...]
    current: int
    sealed: int
    unenterable_generations: frozenset[int]
    gone_in_open_worlds: frozenset[MemberId]
    holders: frozenset[MemberId]
    durable: Lineage
    checkpoint: Checkpoint | None
    kept_checkpoints: tuple[str, ...] = ()  # names of the checkpoints that must not be removed
    history_from_generation: int = 0  # writes of this generation and lower ones belong to another history
    written_parts: tuple[tuple[str, int], ...] = ()  # (checkpoint, part) of unfinished ones; or NEVER_WHOLE
    checkpoint_wanted: bool = False  # at the next boundary
    split_storage: bool = False  # one member writes the whole checkpoint
    immediate: bool = False  # as `Member.immediate`
    save_steps: int = 0  # steps between checkpoints; 0: not by steps
    spare_why: str = ""  # why it is a spare; empty: it is none
    layout: BucketLayout | None = None  # of the parameter servers, once there are some
    table_history: int = 0  # the attempt with which their tables began
    changes: Changes = ()  # of the batch, up to the durable step
    model_peers: ModelPeers | None = None  # of a task queue with pair averaging


def view_of(job: Job, revision: int, member: MemberId) -> View:
    """Return the view of one member."""
    return view_for(shared_view(job, revision), job, member)


def view_for(shared: View, job: Job, member: MemberId) -> View:
    """Return the view of one member, given what all members of that job see."""
    record = job.members.get(member)
    if record is None:
        return shared
    return change(
        shared,
        known=True,
        draining=record.draining,
        grace_s=record.grace_s,
        immediate=record.immediate,
        spare_why=spare_why(job, member),
    )


def shared_view(job: Job, revision: int) -> View:
    """Return what all members see, as the view of one that the job does not know."""
    return View(
        revision=revision,
        state=job.state,
        why=job.why,
        known=False,
        draining=False,
        grace_s=0.0,
        worlds=job.worlds,
        current=job.current,
        sealed=job.sealed,
        unenterable_generations=job.unenterable_generations,
        gone_in_open_worlds=job.gone_in_open_worlds,
        holders=job.holders,
        durable=job.durable,
        checkpoint=job.checkpoint,
        kept_checkpoints=kept_checkpoints(job),
        history_from_generation=job.history_from_generation,
        written_parts=written_parts(job),
        checkpoint_wanted=job.checkpoint_wanted_at_step is not None,
        split_storage=job.split_storage,
        save_steps=job.spec.checkpoints.steps,
        layout=job.ps.layout if job.ps is not None else None,
        table_history=job.ps.history if job.ps is not None else 0,
        changes=job.terms.grid.changes if job.terms is not None else (),
        model_peers=model_peers(job),
    )


def model_peers(job: Job) -> ModelPeers | None:
    """Return the members whose models are averaged; None without pair averaging."""
    if job.tasks is None or not job.tasks.terms.averages:
        return None
    staying = sorted((each for each in job.workers.values() if not each.draining), key=lambda each: each.number)
    names, addresses = tuple(each.id for each in staying), tuple(each.address for each in staying)
    return ModelPeers(job.joined, names, addresses, job.tasks.saves, job.tasks.saved)


def kept_checkpoints(job: Job) -> tuple[str, ...]:
    """Return the names of checkpoints that must not be removed. Damaged ones are kept, too: parts may be good."""
    newest = (job.checkpoint,) if job.checkpoint is not None else ()
    return (*job.damaged, *[checkpoint.name for checkpoint in (*job.older_checkpoints, *newest)])


def written_parts(job: Job) -> tuple[tuple[str, int], ...]:
    """Return the parts written of unfinished checkpoints, and which of these will never be finished."""
    parts = [(each, ((NEVER_WHOLE, ()),) if each.failed else each.pieces) for each in job.unfinished_checkpoints]
    return tuple([(each.name, part) for each, there in parts for part, _ in there])


def mismatch_why(job: Job, member: MemberId) -> str:
    """Return why that member can never be in a world of this job; empty if it can."""
    record = job.members.get(member)
    return fingerprint_difference(job.fingerprint, record.fingerprint) if record is not None else ""


def spare_why(job: Job, member: MemberId) -> str:
    """Return why that member is a spare; empty if it is none."""
    if job.tasks is not None or member not in job.members or member_state(job, member) is not MemberState.SPARE:
        return ""
    return mismatch_why(job, member) or "the job has its target number of members"


def member_state(job: Job, member: MemberId) -> MemberState:
    """Return the activity of that live member, for people."""
    record = job.members[member]
    if record.draining:
        return MemberState.DRAINING
    if record.is_server:
        return MemberState.ACTIVE
    if job.tasks is not None:
        return MemberState.ACTIVE if job.tasks.held_by(member) else MemberState.SPARE
    if any(member in world.members for world in job.worlds):
        return MemberState.ACTIVE if member in job.holders else MemberState.JOINING
    newest = job.newest
    if mismatch_why(job, member):
        return MemberState.SPARE
    if newest is not None and len(newest.members) >= job.wanted_size:
        return MemberState.SPARE
    return MemberState.JOINING
