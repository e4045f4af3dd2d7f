"""`pliant status`: show one job with its members and agents."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection_options, job_argument, resolve_job
from pliant.cli.job_poller import JobPoller
from pliant.cli.output import clean, count, describe_deadline, json_option, print_json, print_table, short_time
from pliant.core.model.view import MemberState
from pliant.core.policy.schedule import describe_schedule, next_entry

if TYPE_CHECKING:
    from pliant.wire.api import AgentLine, JobLine, JobStatus, MemberLine

REFRESH_S = 1.0
LOOK_S = 0.2


@click.command()
@job_argument
@click.option("--watch", is_flag=True, help="Show it again whenever it changes, until the job ends.")
@json_option
@connection_options
def status(job: str | None, watch: bool, flags: Flags, as_json: bool) -> None:
    """Show a job with its members and agents."""
    poller = JobPoller(flags, resolve_job(job), REFRESH_S)
    stopped = flags.stopped_job(poller.job) is not None
    found = poller.connect_once()
    _print_status(found, stopped, as_json)
    if watch and not stopped:
        _watch(poller, found, as_json)


def _watch(poller: JobPoller, shown: JobStatus, as_json: bool) -> None:
    with poller:
        while not (shown.job.state.ended or poller.stopped):
            time.sleep(LOOK_S)
            found = poller.poll()
            if found is not None and found != shown:
                _print_again(found, False, as_json)
                shown = found
    if not shown.job.state.ended:
        _print_again(poller.connect_once(), True, as_json)


def _print_again(found: JobStatus, stopped: bool, as_json: bool) -> None:
    """Print a newer status: in place of the one before on a terminal, below it in a pipe."""
    if not as_json:
        click.clear() if sys.stdout.isatty() else click.echo()
    _print_status(found, stopped, as_json)


def _print_status(found: JobStatus, stopped: bool, as_json: bool) -> None:
    """Print a status. The members of a stopped job are those of its last moment, and no process is left of them."""
    if stopped and not found.job.state.ended:
        members = tuple(replace(line, state=MemberState.ENDED, pid=None) for line in found.members)
        found = replace(found, members=members)
    if as_json:
        print_json(_status_json(found))
        return
    for line in _summary_lines(found, stopped):
        click.echo(line)
    if found.members:
        click.echo()
        print_table(
            ("member", "state", "rank", "agent", "pid", "cpu", "memory", "reason"),
            [
                (x.id, x.state.value, _or_dash(x.rank), x.agent, _or_dash(x.pid), *_usage(x), x.why)
                for x in found.members
            ],
        )
    if found.agents and not found.job.state.ended:  # the record of an ended job keeps the last ones
        click.echo()
        print_table(
            ("agent", "capacity", "wanted", "members", "address"),
            [(x.id, str(x.capacity), str(x.wanted), str(x.members), _agent_address(x)) for x in found.agents],
        )


def describe_state(job: JobLine, stopped: bool = False) -> str:
    """Return one phrase for the state of a job: `running since 10:03, 2 workers`, or another state and its reason."""
    if stopped and not job.state.ended:
        return f"stopped at step {job.step}; resume it with the same `pliant run` command"
    at = f" {'at' if job.state.ended else 'since'} {short_time(job.since)}" if job.since else ""
    if job.state.value == "running":
        return f"running{at}, {count(job.size, 'worker')}"
    return f"{job.state.value}{at}: {job.why}" if job.why else f"{job.state.value}{at}"


def _summary_lines(found: JobStatus, stopped: bool) -> list[str]:
    job = found.job
    total = "" if job.total_steps is None else f" of {job.total_steps}"
    sizes = f"{job.size_min}" if job.size_min == job.size_max else f"{job.size_min} to {job.size_max}"
    limit_s = found.spec.wait_limit_s
    limit = "" if limit_s is None else f"; fails after waiting {limit_s:g} s for workers"
    placement = ", ".join(f"{count} on {agent}" for agent, count in found.target.placement)
    checkpoint = (
        "none" if found.checkpoint is None else f"step {found.checkpoint.lineage.step}, {found.checkpoint.name}"
    )
    granted = "" if found.granted is None else f"{found.granted} in queue {found.spec.queue}: {found.granted_why}"
    facts = [
        (job.name, describe_state(job, stopped)),
        ("warning", job.warning),
        ("attempt", str(found.attempt) if found.attempt > 1 else ""),
        ("mode", "" if found.live else f"{found.spec.mode.value}: a change restarts all workers"),
        (
            "workers",
            f"{job.size} {'at work' if found.tasks else 'in the world'}, {job.target} wanted, {sizes} allowed{limit}",
        ),
        ("schedule", _describe_schedule(found)),
        ("granted", granted),
        ("cost", _describe_cost(found)),
        ("deadline", _describe_deadline(found)),
        ("autoscale", _describe_autoscale(found)),
        ("placement", placement),
        ("shards", _describe_tasks(found)),
        ("world", "" if found.tasks else f"generation {job.generation}" if job.generation else "none yet"),
        ("broken", "" if stopped else found.broken),
        (
            "step",
            f"{job.step}{total}" + (f", epoch {job.epoch}" if job.total_steps else "")
            if found.live and not found.tasks
            else "",
        ),
        ("checkpoint", checkpoint if found.live and not found.tasks else ""),
        ("failures", f"{found.failures} of {found.spec.max_restarts} allowed"),
        ("chaos", "allowed (`pliant chaos`)" if found.spec.chaos_allowed else ""),
        ("revision", str(job.revision)),
    ]
    width = max(len(name) for name, _ in facts)
    return [f"{name.ljust(width)}  {clean(text)}" for name, text in facts if text]


def _describe_cost(found: JobStatus) -> str:
    from pliant.core.allocate.reasons import amount

    most = found.spec.at_most_cost
    if most is None and not found.price and not found.spent:
        return ""
    limit = "" if most is None else f" of at most {amount(most)}"
    return f"{amount(found.spent)}{limit} spent; {found.price:g} for a slot and hour"


def _describe_deadline(found: JobStatus) -> str:
    deadline = found.spec.deadline
    ended_at = found.job.since if found.job.state.ended else None
    return "" if deadline is None else describe_deadline(deadline, time.time(), ended_at)


def _describe_schedule(found: JobStatus) -> str:
    schedule = found.spec.schedule
    if not schedule:
        return ""
    if not found.live:
        return f"{describe_schedule(schedule)}; it counts steps once the workers call pliant.join()"
    entry = next_entry(schedule, found.job.step)
    then = "no entry is left" if entry is None else f"{count(entry[1], 'worker')} from step {entry[0]}"
    return f"{describe_schedule(schedule)}; next: {then}"


def _describe_autoscale(found: JobStatus) -> str:
    chosen = found.spec.autoscale.value
    advised = f"; {count(found.advised, 'worker')} advised: {found.advised_why}" if found.advised else ""
    return "" if chosen == "off" else f"{chosen}{advised}"


def _describe_tasks(found: JobStatus) -> str:
    tasks = found.tasks
    if tasks is None:
        return ""
    returned = f", {tasks.returned} to be given out again" if tasks.returned else ""
    growing = " so far, and the data may grow" if tasks.awaits_records else ""
    return f"{tasks.done} of {tasks.total} done{growing}, {tasks.held} held{returned}; epoch {tasks.epoch}"


def _status_json(found: JobStatus) -> dict[str, object]:
    """Return one flat object: the job's own fields, members and agents."""
    from dataclasses import fields

    line = {each.name: getattr(found.job, each.name) for each in fields(found.job)}
    rest = {each.name: getattr(found, each.name) for each in fields(found) if each.name not in ("job", "target")}
    return {**line, **rest, "placement": found.target.placement}


def _usage(member: MemberLine) -> tuple[str, str]:
    if member.cpu is None or member.rss_bytes is None:
        return "-", "-"
    return f"{member.cpu:.2f}", f"{member.rss_bytes / 2**20:.0f} MiB"


def _agent_address(agent: AgentLine) -> str:
    return f"{agent.address or '-'}{', leaving' if agent.draining else ''}"


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
