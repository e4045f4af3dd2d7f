"""`pliant status`: show one job with its members and agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection_options, job_argument, resolve_job
from pliant.cli.output import clean, json_option, print_json, print_table

if TYPE_CHECKING:
    from pliant.wire.api import AgentLine, JobStatus, MemberLine


@click.command()
@job_argument
@json_option
@connection_options
def status(job: str | None, flags: Flags, as_json: bool) -> None:
    """Show a job with its members and agents."""
    name = resolve_job(job)
    with flags.connect(name) as client:
        found = client.job(name)
    if as_json:
        print_json(_status_json(found))
        return
    for line in _summary_lines(found):
        click.echo(line)
    if found.members:
        click.echo()
        print_table(
            ("member", "state", "rank", "agent", "pid", "cpu", "memory", "reason"),
            [
                (x.id, x.state.value, _or_dash(x.rank), x.agent, _or_dash(x.pid or None), *_usage(x), x.why)
                for x in found.members
            ],
        )
    if found.agents:
        click.echo()
        print_table(
            ("agent", "capacity", "wanted", "members", "address"),
            [(x.id, str(x.capacity), str(x.wanted), str(x.members), _agent_address(x)) for x in found.agents],
        )


def _summary_lines(found: JobStatus) -> list[str]:
    job = found.job
    total = "" if job.total_steps is None else f" of {job.total_steps}"
    limit_s = found.spec.wait_limit_s
    limit = "" if limit_s is None else f"; fails after waiting {limit_s:g} s for workers"
    placement = ", ".join(f"{count} on {agent}" for agent, count in found.target.placement)
    checkpoint = (
        "none" if found.checkpoint is None else f"step {found.checkpoint.lineage.step}, {found.checkpoint.name}"
    )
    facts = [
        (job.name, f"{job.state.value}: {job.why}" if job.why else job.state.value),
        ("attempt", str(found.attempt) if found.attempt > 1 else ""),
        ("mode", "" if found.live else f"{found.spec.mode.value}: a change restarts all workers"),
        ("workers", f"{job.size} in the world, {job.target} wanted, {job.size_min} to {job.size_max} allowed{limit}"),
        ("placement", placement),
        ("world", f"generation {job.generation}" if job.generation else "none yet"),
        ("broken", found.broken),
        (
            "durable",
            f"step {job.step}{total}" + (f", epoch {job.epoch}" if job.total_steps else "") if found.live else "",
        ),
        ("checkpoint", checkpoint if found.live else ""),
        ("failures", f"{found.failures} of {found.spec.max_restarts} allowed"),
        ("chaos", "allowed (`pliant chaos`)" if found.spec.chaos_allowed else ""),
        ("revision", str(job.revision)),
    ]
    width = max(len(name) for name, _ in facts)
    return [f"{name.ljust(width)}  {clean(text)}" for name, text in facts if text]


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
