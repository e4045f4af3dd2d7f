"""The values that go into the coordinator's service and come out of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from pliant.core import messages as m
from pliant.core.data.ledger import Lineage
from pliant.core.messages import Command, Event, Rejection
from pliant.core.messages.commands import SCHEDULED
from pliant.core.model.job import FailingSlots
from pliant.core.model.names import AgentId, MemberId
from pliant.core.ps.messages import JoinServers, ReportCopied
from pliant.core.tasks.messages import (
    AdvanceShard,
    CompleteShard,
    FailShard,
    GrowData,
    JoinTasks,
    SaveModel,
    ShardOverdue,
    TakeShards,
)
from pliant.core.tasks.model import HeldShard


class Sender(NamedTuple):
    """A member or an agent of a job: `kind` is "member" or "agent"."""

    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The command is durable, or there was nothing to do. `durable` is the newest durable step, for its member."""

    revision: int
    durable: Lineage | None
    shards: tuple[HeldShard, ...] | None = None  # all that the sender holds, if it is a member of a task queue


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Nothing was decided. Retry here or at another coordinator."""

    why: str


Answer = Accepted | Rejection | Unavailable

SLOTS_MAX = 1024  # failing slots kept of one report
SAMPLES_MAX = 4096  # samples kept of all these slots together
TEXT_MAX = 2000  # characters kept of a text; the sender's own log has the rest


def truncate_texts(command: Command) -> Command:
    """Return the command with long texts truncated, because the store keeps them for ever and sends them to readers."""
    if isinstance(command, m.Raised):
        short = _truncate_slots(command.failing_slots)
        return command if short == command.failing_slots else m.Raised(short)
    match command:
        case m.Drain() | m.DrainAgent() | m.Cancel() | m.Leave() | m.Stopped() | m.RequestCheckpoint() if (
            len(command.why) > TEXT_MAX
        ):
            return replace(command, why=_truncate(command.why))
        case m.Exited() | FailShard() | GrowData() if len(command.error) > TEXT_MAX:
            return replace(command, error=_truncate(command.error))
        case _:
            return command


def _truncate_slots(failing: FailingSlots) -> FailingSlots:
    slots = failing.slots[:SLOTS_MAX]
    samples, left = [], SAMPLES_MAX
    for of_slot in failing.samples[: len(slots)]:
        samples.append(of_slot[:left])
        left -= len(samples[-1])
    return replace(failing, slots=slots, samples=tuple(samples), error=_truncate(failing.error))


def _truncate(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one command. `ticket` is the value that was submitted with it.

    The answer is based on `revision`. A member that has a newer view must not act on a rejection.
    """

    ticket: object
    job: str
    command: Command
    answer: Answer
    revision: int = 0


@dataclass(frozen=True, slots=True)
class RenewalReply:
    """The answer to one renewal; otherwise like `Reply`."""

    ticket: object
    job: str
    sender: Sender
    answer: Answer
    revision: int = 0


@dataclass(frozen=True, slots=True)
class LookupReply:
    """A job was looked up. `refusal` is the reason if it could not be; otherwise the job is loaded, if it exists."""

    ticket: object
    refusal: Unavailable | None


@dataclass(frozen=True, slots=True)
class DeletionReply:
    """The answer to one deletion. If it was accepted, `revision` is that of the job when it was deleted."""

    ticket: object
    answer: Answer
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Pumped:
    """The results of one pump.

    `renewed` answers the renewals that had to wait for this pump, `found` the lookups. `changed` are the jobs that have
    new events; those in `moved` have more than progress. `took_over`: this pump was the first of a new hold, so other
    coordinators may have written before it. `decided` has the events written to each job, in order. `bugs` describes
    decisions that were not written because they would break an invariant, and jobs that cannot be read. The caller logs
    them as errors.
    """

    replies: tuple[Reply, ...]
    renewed: tuple[RenewalReply, ...] = ()
    found: tuple[LookupReply, ...] = ()
    deleted: tuple[DeletionReply, ...] = ()
    changed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    took_over: bool = False
    decided: tuple[tuple[str, tuple[Event, ...]], ...] = ()
    bugs: tuple[str, ...] = ()

    @property
    def all_replies(self) -> tuple[Reply | RenewalReply, ...]:
        return (*self.replies, *self.renewed)


def sender_of(command: Command) -> MemberId | None:
    """Return the member that sent the command, or None. The answer to that member has the durable step."""
    match command:
        case m.Join(member=member) | m.Report(member=member) | m.Stopped(member=member):
            return member
        case m.WiringFailed(member=member) | m.Publish(member=member) | m.Drain(member=member):
            return member
        case m.PartNotWritten(member=member) | m.NotReadable(member=member):
            return member
        case JoinTasks(member=member) | TakeShards(member=member) | AdvanceShard(member=member):
            return member
        case CompleteShard(member=member) | FailShard(member=member):
            return member
        case GrowData(member=member) | SaveModel(member=member):
            return member
        case JoinServers(member=member) | ReportCopied(member=member):
            return member
        case _:
            return None


def is_sign_of_life(command: Command) -> bool:
    """Return whether a member or an agent sent the command. A command of a person is no contact with a machine."""
    if isinstance(command, m.Drain):
        return False  # people send it too
    agents = m.Exited | m.AgentJoin | m.AgentReady | m.AgentLeave
    return sender_of(command) is not None or isinstance(command, m.Raised | m.Leave | agents)


def command_for_expiry(kind: str, ident: str) -> Command:
    """Return the command that follows from the expiry of a lease or deadline of that kind."""
    match kind:
        case "member":
            return m.Expire(MemberId(ident))
        case "agent":
            return m.AgentExpire(AgentId(ident))
        case "suspect":
            return m.Suspect(MemberId(ident))
        case "agent-suspect":
            return m.AgentSuspect(AgentId(ident))
        case "save":
            return m.RequestCheckpoint(SCHEDULED)
        case "shard":
            attempt, _, upto = ident.partition(":")
            return ShardOverdue(int(attempt), int(upto))
        case _:
            return m.WaitOver()


def describe_set_back(name: str, acknowledged: int, found: int) -> str:
    """Describe a store that has lost a revision which was acknowledged before."""
    return (
        f"the store has {name} at revision {found}, but revision {acknowledged} was acknowledged: an older copy of the "
        "store was put in its place. Put the newer one back, or cancel this job and create one under another name that "
        "resumes from the last checkpoint"
    )
