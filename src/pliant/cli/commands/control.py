"""`pliant resize`, `drain`, `checkpoint` and `cancel`: commands that change an existing job."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection_options, job_argument, resolve_job, resolve_job_and_argument
from pliant.cli.output import clean, json_option, print_json
from pliant.errors import BadInput, PliantError, Unreachable

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.core.model.checkpoint import Checkpoint


def parse_placement(text: str) -> tuple[str, int]:
    """Parse `AGENT=N`."""
    agent, _, count = text.rpartition("=")
    if not agent or not count.isdecimal():
        raise click.BadParameter(f"{text!r} is not AGENT=N, such as gpu-1=4.")
    return agent, int(count)


@click.command()
@job_argument
@click.argument("size", required=False, metavar="N")
@click.option(
    "--place",
    "places",
    type=parse_placement,
    multiple=True,
    metavar="AGENT=N",
    help="Number of workers on this agent. Repeatable.",
)
@json_option
@connection_options
def resize(job: str | None, size: str | None, places: tuple[tuple[str, int], ...], flags: Flags, as_json: bool) -> None:
    """Change the number of workers of a job, or their placement."""
    from pliant.core.messages import Resize
    from pliant.core.model.job import Target
    from pliant.core.model.names import AgentId
    from pliant.core.policy.schedule import next_entry

    name, size = (resolve_job(job), size) if places else resolve_job_and_argument(job, size)
    if (size is None) == (not places):
        raise click.UsageError("Pass either a number of workers or --place AGENT=N.")
    if size is not None and not size.isdecimal():
        raise click.UsageError(f"The number of workers must be a number, not {size!r}.")
    placement = tuple((AgentId(agent), count) for agent, count in places)
    target = Target(sum(count for _, count in placement) if size is None else int(size), placement)
    with flags.connect(name) as client:
        room = {agent.id: agent.capacity for agent in client.job(name).agents} if placement else {}
        for agent, count in placement:
            if agent not in room:
                raise BadInput(f"Job {name} has no agent {agent}. See `pliant status {name}`.")
            if count > room[agent]:
                raise BadInput(f"Agent {agent} can run {room[agent]} workers, not {count}.")
        done = client.send(name, Resize(target))
        found = client.job(name)
    if as_json:
        print_json({"job": name, "target": target, "revision": done.revision})
    else:
        where = f" ({', '.join(f'{count} on {agent}' for agent, count in placement)})" if placement else ""
        entry = next_entry(found.spec.schedule, found.job.step)
        until = "" if entry is None else f", until step {entry[0]} of its schedule"
        click.echo(f"{name}: target set to {target.size} workers{where}{until}.")


@click.command()
@job_argument
@click.argument("member", required=False)
@click.option("--agent", metavar="AGENT", help="Drain all members of this agent instead.")
@click.option(
    "--grace-s",
    metavar="S",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds that members have to leave.",
)
@click.option("--leave", is_flag=True, help="With --agent: let the agent itself leave. It starts nothing more.")
@click.option("--why", default="requested with pliant drain", help="Reason, shown in the events.")
@json_option
@connection_options
def drain(
    job: str | None,
    member: str | None,
    agent: str | None,
    grace_s: float,
    leave: bool,
    why: str,
    flags: Flags,
    as_json: bool,
) -> None:
    """Let a member, or all members of an agent, leave a job.

    They leave at the next boundary. No work is lost if a step and the switch fit into the grace period. Of several
    grace periods the one that ends first counts.
    """
    from pliant.core.messages import Drain, DrainAgent
    from pliant.core.model.names import AgentId, MemberId

    name, member = (resolve_job(job), member) if agent is not None else resolve_job_and_argument(job, member)
    if (member is None) == (agent is None):
        raise click.UsageError("Pass either MEMBER or --agent.")
    if leave and agent is None:
        raise click.UsageError("--leave needs --agent: a member that is drained always leaves.")
    command: Drain | DrainAgent
    if member is not None:
        command, leaving = Drain(MemberId(member), grace_s, why), member
    else:
        command, leaving = DrainAgent(AgentId(agent or ""), grace_s, why, leave=leave), f"All members of {agent}"
    with flags.connect(name) as client:
        done = client.send(name, command)
    if as_json:
        print_json({"job": name, "member": member, "agent": agent, "grace_s": grace_s, "revision": done.revision})
    else:
        click.echo(f"{clean(leaving)} will leave {name} at the next boundary, within {grace_s:g} s.")
        if leave:
            click.echo(f"{clean(agent or '')} then exits. Its workers are replaced on other agents that have room.")


@click.command()
@job_argument
@json_option
@connection_options
def checkpoint(job: str | None, flags: Flags, as_json: bool) -> None:
    """Save a checkpoint of a job and wait for it.

    The checkpoint is taken at the next boundary. Training continues.
    """
    from pliant.core.messages import RequestCheckpoint

    name = resolve_job(job)
    with flags.connect(name) as client:
        before = client.job(name).job.revision
        client.send(name, RequestCheckpoint("requested with pliant checkpoint"))
        now = client.job(name)
        saved = now.checkpoint
        if saved is None or saved.lineage != now.durable:
            saved = _wait_for_checkpoint(client, name, before)
    if as_json:
        print_json({"job": name, "step": saved.lineage.step, "checkpoint": saved.name, "nbytes": _nbytes(saved)})
    else:
        click.echo(
            f"Checkpoint of {name} saved at step {saved.lineage.step}: {saved.name}, {_nbytes(saved) / 1e6:.1f} MB."
        )


def _wait_for_checkpoint(client: Client, job: str, after: int) -> Checkpoint:
    """Return the next checkpoint that is published after that revision."""
    from pliant.core.messages import CheckpointFailed, CheckpointPublished, StateChanged

    for _, event in client.follow(job, after):
        match event:
            case CheckpointPublished():
                return event.checkpoint
            case CheckpointFailed():
                click.echo(f"pliant: {clean(event.member)} could not write its part ({clean(event.why)}).", err=True)
            case StateChanged() if event.state.ended and event.state.value != "finished":
                raise PliantError(f"Job {job} is {event.state.value} and was not saved: {event.why}")
    raise AssertionError("the event stream ended")


def _nbytes(saved: Checkpoint) -> int:
    return sum(piece.nbytes for piece in saved.pieces)


@click.command()
@job_argument
@click.option("--why", default="requested with pliant cancel", help="Reason, shown in the events.")
@json_option
@connection_options
def cancel(job: str | None, why: str, flags: Flags, as_json: bool) -> None:
    """Cancel a job."""
    from pliant.core.messages import Cancel
    from pliant.core.model.job import JobState

    name = resolve_job(job)
    with flags.connect(name) as client:
        before = client.job(name).job
        done = client.send(name, Cancel(why))
        state, reason = (before.state, before.why) if before.state.ended else (JobState.CANCELLED, why)
        with suppress(Unreachable):  # the coordinator of `pliant run` ends with its job
            now = client.job(name, patience_s=0.0).job  # it may have ended by itself meanwhile
            state, reason = now.state, now.why
    if as_json:
        print_json({"job": name, "state": state, "why": reason, "revision": done.revision})
    else:
        click.echo(f"{name} is {state.value}: {clean(reason)}")
