"""Decide what a command does to parameter servers, and what follows from a change of the membership."""

from __future__ import annotations

from typing import assert_never

from pliant.core.accounting.pauses import valid_seconds
from pliant.core.messages.events import Event
from pliant.core.messages.rejection import Code, Rejection
from pliant.core.model.job import Job, JobState, Mode, member_limit
from pliant.core.model.names import MEMBER_NAME_MAX, bad_name
from pliant.core.ps import messages as p
from pliant.core.ps.model import SERVERS_MAX, ServerAddress, ServerTable
from pliant.core.ps.place import next_placement

ADDRESS_MAX = 255

Decision = tuple[Event, ...] | Rejection


def decide_server(job: Job, command: p.ServerCommand, now: float) -> Decision:
    """Return the events of a command to a job that has not ended, or its refusal."""
    match command:
        case p.JoinServers():
            return _join(job, command, now)
        case p.ReportCopied():
            return _copied(job, command, now)
        case _:
            assert_never(command)


def _join(job: Job, command: p.JoinServers, now: float) -> Decision:
    if job.spec.mode not in (Mode.TASKS, Mode.LIVE):
        why = f"{command.member} is a parameter server, and the mode of {job.name} is {job.spec.mode.value}"
        return Rejection(Code.MISMATCH, f"{why}; run it with --mode tasks or live, under another name")
    if job.spec.queue:
        why = f"{command.member} is a parameter server, and {job.name} is in queue {job.spec.queue}"
        return Rejection(Code.MISMATCH, f"{why}, which gives slots to workers alone; run it without --queue")
    if command.member in job.gone:
        return Rejection(Code.GONE, f"{command.member} is gone for good; join as a new member")
    if command.member in job.members:
        return ()
    if job.state is JobState.STOPPING:
        return Rejection(Code.ENDED, f"job {job.name} is stopping: {job.why}")
    if wrong := bad_name(command.member, MEMBER_NAME_MAX) or bad_name(command.agent) or _bad_address(command.address):
        return Rejection(Code.BAD, wrong)
    if len(servers_of(job)) >= SERVERS_MAX or len(job.members) >= member_limit(job):
        return Rejection(Code.BAD, f"{job.name} has {len(servers_of(job))} servers; at most {SERVERS_MAX} are possible")
    who = (command.member, command.agent, job.joined + 1, max(command.pid, 0))
    return (p.ServerJoined(now, *who, command.address, valid_seconds(command.age_s)),)


def _bad_address(address: str) -> str:
    if 0 < len(address) <= ADDRESS_MAX and address.isprintable() and " " not in address:
        return ""
    return f"a server's address must be host:port in up to {ADDRESS_MAX} characters; got {address[:40]!r}"


def _copied(job: Job, command: p.ReportCopied, now: float) -> Decision:
    if command.member in job.gone:
        return Rejection(Code.GONE, f"{command.member} is gone for good; join as a new member")
    if job.ps is None or command.member not in job.members:
        return Rejection(Code.UNKNOWN, f"{command.member} is no server of {job.name}; join first")
    due = job.ps.layout.fillers() - job.ps.copied
    if command.layout != job.ps.layout.number or command.member not in due:
        return ()  # sent again, or about a layout that is over
    return (p.CopiesFilled(now, command.member),)


def servers_of(job: Job) -> tuple[ServerAddress, ...]:
    """Return the live servers of a job, the oldest first."""
    found = sorted((member for member in job.members.values() if member.is_server), key=lambda member: member.number)
    return tuple(ServerAddress(member.id, member.address) for member in found)


def next_of_servers(job: Job, table: ServerTable, now: float) -> tuple[Event, ...]:
    """Return the layout that follows from a change of the servers; `()` if none is due."""
    leaving = frozenset(member.id for member in job.members.values() if member.is_server and member.draining)
    placed = next_placement(table, servers_of(job), leaving, job.generation + 1)
    return () if placed is None else (p.LayoutChanged(now, placed.layout, placed.lost),)
