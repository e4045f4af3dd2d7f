"""`pliant resize`, `drain`, `checkpoint` and `cancel`: what a person asks of a job that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection, job_and, job_argument, the_job
from pliant.cli.output import clean, json_option, print_json
from pliant.errors import BadInput, PliantError

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.core.model.checkpoint import Checkpoint


def placed(text: str) -> tuple[str, int]:
    """`AGENT=N`."""
    agent, _, count = text.rpartition("=")
    if not agent or not count.isdecimal():
        raise click.BadParameter(f"{text!r} is not AGENT=N, gpu-1=4 for instance.")
    return agent, int(count)


@click.command()
@job_argument
@click.argument("size", required=False, metavar="N")
@click.option(
    "--place", "places", type=placed, multiple=True, metavar="AGENT=N", help="So many on this agent. May be repeated."
)
@json_option
@connection
def resize(job: str | None, size: str | None, places: tuple[tuple[str, int], ...], flags: Flags, as_json: bool) -> None:
    """Change how many workers a job wants, or where."""
    from pliant.core.messages import Resize
    from pliant.core.model.job import Target
    from pliant.core.model.names import AgentId

    name, size = (the_job(job), size) if places else job_and(job, size)
    if (size is None) == (not places):
        raise click.UsageError("Say how many workers, or where with --place AGENT=N; one of the two.")
    if size is not None and not size.isdecimal():
        raise click.UsageError(f"How many workers? {size!r} is not a number.")
    placement = tuple((AgentId(agent), count) for agent, count in places)
    target = Target(sum(count for _, count in placement) if size is None else int(size), placement)
    with flags.connect(name) as client:
        room = {agent.id: agent.capacity for agent in client.job(name).agents} if placement else {}
        for agent, count in placement:
            if agent not in room:
                raise BadInput(f"{name} has no agent {agent}; `pliant status {name}` lists those it has.")
            if count > room[agent]:
                raise BadInput(f"{agent} has room for {room[agent]} workers, not for {count}.")
        done = client.send(name, Resize(target))
    if as_json:
        print_json({"job": name, "target": target, "revision": done.revision})
    else:
        where = f" ({', '.join(f'{count} on {agent}' for agent, count in placement)})" if placement else ""
        click.echo(f"{name} wants {target.size} workers now{where}.")


@click.command()
@job_argument
@click.argument("member", required=False)
@click.option("--agent", help="Everybody on this agent instead of one member.")
@click.option("--grace-s", type=click.FloatRange(0), default=30.0, show_default=True, help="How long it may take.")
@click.option("--why", default="asked for with pliant drain", help="The reason, for those who read about it later.")
@json_option
@connection
def drain(
    job: str | None, member: str | None, agent: str | None, grace_s: float, why: str, flags: Flags, as_json: bool
) -> None:
    """Let a member, or everybody on an agent, leave a job.

    They leave at the next boundary and lose nothing, if a step and the switch fit into the grace period.
    """
    from pliant.core.messages import Drain, DrainAgent
    from pliant.core.model.names import AgentId, MemberId

    name, member = (the_job(job), member) if agent is not None else job_and(job, member)
    if (member is None) == (agent is None):
        raise click.UsageError("Name a member, or an agent with --agent; one of the two.")
    command: Drain | DrainAgent
    if member is not None:
        command, who = Drain(MemberId(member), grace_s, why), member
    else:
        command, who = DrainAgent(AgentId(agent or ""), grace_s, why), f"Everybody on {agent}"
    with flags.connect(name) as client:
        done = client.send(name, command)
    if as_json:
        print_json({"job": name, "member": member, "agent": agent, "grace_s": grace_s, "revision": done.revision})
    else:
        click.echo(f"{clean(who)} leaves {name} at the next boundary, within {grace_s:g} s.")


@click.command()
@job_argument
@json_option
@connection
def checkpoint(job: str | None, flags: Flags, as_json: bool) -> None:
    """Have a job's state saved at the next boundary, and wait for it."""
    from pliant.core.messages import RequestCheckpoint

    name = the_job(job)
    with flags.connect(name) as client:
        before = client.job(name).job.revision
        client.send(name, RequestCheckpoint("asked for with pliant checkpoint"))
        now = client.job(name)
        saved = now.checkpoint
        if saved is None or saved.lineage != now.durable:
            saved = _published(client, name, before)
    if as_json:
        print_json({"job": name, "step": saved.lineage.step, "checkpoint": saved.name, "nbytes": _nbytes(saved)})
    else:
        click.echo(f"{name} is saved at step {saved.lineage.step}: {saved.name}, {_nbytes(saved) / 1e6:.1f} MB.")


def _published(client: Client, job: str, after: int) -> Checkpoint:
    """The next checkpoint that is published after that revision."""
    from pliant.core.messages import CheckpointFailed, CheckpointPublished, StateChanged

    for _, event in client.follow(job, after):
        match event:
            case CheckpointPublished():
                return event.checkpoint
            case CheckpointFailed():
                click.echo(f"pliant: {clean(event.member)} could not write its part ({clean(event.why)}).", err=True)
            case StateChanged() if event.state.ended and event.state.value != "finished":
                raise PliantError(f"{job} is {event.state.value} and was not saved: {event.why}")
    raise AssertionError("events are followed without end")


def _nbytes(saved: Checkpoint) -> int:
    return sum(piece.nbytes for piece in saved.pieces)


@click.command()
@job_argument
@click.option("--why", default="asked for with pliant cancel", help="The reason, for those who read about it later.")
@json_option
@connection
def cancel(job: str | None, why: str, flags: Flags, as_json: bool) -> None:
    """End a job."""
    from pliant.core.messages import Cancel

    name = the_job(job)
    with flags.connect(name) as client:
        done = client.send(name, Cancel(why))
        now = client.job(name).job  # it may have ended before, and otherwise
    if as_json:
        print_json({"job": name, "state": now.state, "why": now.why, "revision": done.revision})
    else:
        click.echo(f"{name} is {now.state.value}: {clean(now.why)}")
