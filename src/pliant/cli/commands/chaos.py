"""`pliant chaos`: inject faults into a job that allows them."""

from __future__ import annotations

import random
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from pliant.agent.job_dir import JobDir
from pliant.cli.connect import Flags, connection_options, job_argument, read_events, resolve_job
from pliant.cli.local_jobs import job_dir
from pliant.cli.main import INTERRUPTED
from pliant.cli.output import clean, json_option, print_json
from pliant.errors import BadInput

if TYPE_CHECKING:
    from pliant.chaos.inject import StopRequest
    from pliant.chaos.processes import ProcessRef
    from pliant.chaos.report import ChaosReport
    from pliant.chaos.sockets import NetworkFacts
    from pliant.core.messages import Event

SEED_MAX = 2**31
DEFAULT_FAULTS = "kill,stop,partition,coordinator,slow"
_SECONDS = click.FloatRange(0, min_open=True)


@click.command()
@job_argument
@click.option(
    "--faults",
    default=DEFAULT_FAULTS,
    show_default=True,
    metavar="A,B",
    help="Kinds of faults to inject. `all` (kill every worker) is off by default.",
)
@click.option(
    "--every", "every_s", type=_SECONDS, default=10.0, show_default=True, metavar="S", help="Seconds between faults."
)
@click.option("--for", "for_s", type=_SECONDS, default=600.0, show_default=True, metavar="S", help="Seconds to run.")
@click.option(
    "--seed", type=click.IntRange(0), metavar="N", help="Seed for choosing faults; the same seed gives the same faults."
)
@json_option
@connection_options
def chaos(
    job: str | None, faults: str, every_s: float, for_s: float, seed: int | None, flags: Flags, as_json: bool
) -> int:
    """Inject faults into a job and report how it recovers.

    Run it on a machine of a job that was started with `pliant run --allow-chaos`. All faults are undone, however this
    command ends. Exits with 1 if a promise was broken: the job failed, a committed step was lost, a worker that was not
    a target was lost, or training did not resume.
    """
    from pliant.chaos.plan import ChaosOptions, parse_kinds
    from pliant.chaos.runner import ChaosRunner

    name = resolve_job(job)
    options = ChaosOptions(
        random.Random().randrange(SEED_MAX) if seed is None else seed, parse_kinds(faults), every_s, for_s
    )
    if flags.stopped_job(name) is not None:
        raise BadInput(f"Job {name} is not running. Start it with `pliant run --allow-chaos`.")
    with flags.connect(name) as client, _stop_on_signals() as stop:
        status = client.job(name)
        if status.job.state.ended:
            raise BadInput(f"Job {name} is {status.job.state.value}: {status.job.why}.")
        if not status.spec.chaos_allowed:
            raise BadInput(
                f"Job {name} does not allow chaos. Start it with `pliant run --allow-chaos`: a new job, one that has "
                "ended, or with --fresh."
            )
        click.echo(f"pliant: injecting faults into {name} for {for_s:g} s, with --seed {options.seed}", err=True)
        runner = ChaosRunner(
            client, name, options, _JobOnThisMachine(name, flags), stop, lambda text: click.echo(clean(text), err=True)
        )
        found = runner.run()
    if as_json:
        print_json(found)
    else:
        for line in _report_lines(found):
            click.echo(clean(line))
    if found.interrupted:
        return INTERRUPTED
    return 0 if found.ok else 1


@contextmanager
def _stop_on_signals() -> Iterator[StopRequest]:
    """Turn Ctrl-C, SIGTERM, SIGHUP and Ctrl-Z into a stop request; a second signal changes nothing.

    Ctrl-Z ends the run too, because a stopped tool would leave its victims as they are.
    """
    from pliant.chaos.inject import StopRequest

    stop = StopRequest()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
    before = {number: signal.signal(number, stop.request) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class _JobOnThisMachine:
    """The part of the job on this machine, from the job's folder and its processes."""

    job: str
    flags: Flags

    @property
    def _folder(self) -> JobDir:
        return job_dir(self.job)

    def find_member(self, pid: int, member: str) -> ProcessRef | None:
        from pliant.agent.process.template_child import MARK
        from pliant.chaos.processes import find_member

        return find_member(pid, self.job, member, MARK, self._folder.runner_pid())

    def find_coordinator(self) -> ProcessRef | None:
        from pliant.chaos.processes import find_coordinator

        endpoint = self._folder.read_endpoint()
        if endpoint is None or endpoint.url not in self.flags.resolve(self.job).urls:
            return None  # the coordinator of another job of that name, which did not allow chaos
        return find_coordinator(self._folder.coordinator_pid(), self._folder.path)

    def network_facts(self, hosts: frozenset[str]) -> NetworkFacts:
        from pliant.chaos.sockets import NetworkFacts, own_addresses

        named = [urlsplit(url) for url in self.flags.resolve(self.job).urls]
        at = {(each.hostname or "", each.port or 80) for each in named}
        return NetworkFacts(
            coordinator_addresses=frozenset((address, port) for host, port in at for address in _addresses(host)),
            remote_hosts=frozenset(address for host in hosts for address in _addresses(host)),
            exempt=own_addresses(),
        )

    def is_running(self) -> bool:
        return self.flags.stopped_job(self.job) is None

    def read_events(self, after: int) -> list[Event]:
        with self.flags.connect(self.job) as client:
            return [event for _, event in read_events(client, self.job, after)]


def _addresses(host: str) -> set[str]:
    with suppress(OSError):
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return set()


def _report_lines(found: ChaosReport) -> Iterator[str]:
    """Yield the summary. The faults themselves were printed as they happened."""
    totals = found.totals
    kinds = ", ".join(f"{count} {kind}" for kind, count in totals.by_kind.items()) or "none"
    yield f"{found.job}: {'all promises kept' if found.ok else 'promises broken'}, with --seed {found.seed}"
    yield f"{totals.faults} faults in {found.lasted_s:.0f} s ({kinds}); {totals.postponed} postponed"
    yield f"the job is {found.state.value}: {found.why}" if found.why else f"the job is {found.state.value}"
    if totals.next_step_median_s is not None and totals.next_step_max_s is not None:
        yield (
            f"training resumed after {totals.next_step_median_s:.2f} s (median), {totals.next_step_max_s:.2f} s at most"
        )
    yield (
        f"{totals.steps} steps committed, {totals.rolled_back} rolled back ({totals.rolled_back_by_all} by "
        f"`all`), {totals.restarts} workers started"
    )
    yield from (f"not available here: {each}" for each in found.unavailable)
    yield from (f"{each} runs on another machine and was left alone" for each in found.remote_members)
    yield from (f"- {each}" for each in found.violations)
