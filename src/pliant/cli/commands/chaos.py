"""`pliant chaos`: faults on purpose, at a job that allowed them."""

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

from pliant import settings
from pliant.agent.job_dir import Folder
from pliant.cli.connect import Flags, connection, job_argument, the_job
from pliant.cli.main import INTERRUPTED
from pliant.cli.output import clean, json_option, print_json
from pliant.errors import BadInput

if TYPE_CHECKING:
    from pliant.chaos.inject import Over
    from pliant.chaos.processes import Process
    from pliant.chaos.report import Report
    from pliant.chaos.sockets import Around
    from pliant.core.messages import Event

PAGE = 1000
SEEDS = 2**31
USUAL = "kill,stop,partition,coordinator,slow"
_SECONDS = click.FloatRange(0, min_open=True)


@click.command()
@job_argument
@click.option("--faults", default=USUAL, show_default=True, metavar="A,B", help="Which; there is `all`, too.")
@click.option("--every", "every_s", type=_SECONDS, default=10.0, show_default=True, metavar="S", help="How often.")
@click.option("--for", "for_s", type=_SECONDS, default=600.0, show_default=True, metavar="S", help="How long.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="The same seed draws the same faults.")
@json_option
@connection
def chaos(
    job: str | None, faults: str, every_s: float, for_s: float, seed: int | None, flags: Flags, as_json: bool
) -> int:
    """Strike at a job on purpose, and report what it made of it.

    For a job that `pliant run --allow-chaos` started, on a machine it runs on. Nobody is left stopped, slowed down or
    cut off, however this ends. Status 1 if a promise was broken: the job failed, a committed step was lost, a worker
    that nothing was done to was lost, or training did not go on.
    """
    from pliant.chaos.plan import Wish, parse
    from pliant.chaos.runner import Storm

    name = the_job(job)
    wish = Wish(random.randrange(SEEDS) if seed is None else seed, parse(faults), every_s, for_s)
    if flags.asleep(name) is not None:
        raise BadInput(f"{name} is not run now. Start it with `pliant run --allow-chaos`.")
    with flags.connect(name) as client, _heeded() as over:
        status = client.job(name)
        if status.job.state.ended:
            raise BadInput(f"{name} is {status.job.state.value}: {status.job.why}.")
        if not status.spec.chaos_allowed:
            raise BadInput(
                f"{name} does not allow chaos. Whoever starts it allows it: `pliant run --allow-chaos`, for a job that "
                "is new, has ended, or is begun anew with --fresh."
            )
        click.echo(f"pliant: striking at {name} for {for_s:g} s, with --seed {wish.seed}", err=True)
        storm = Storm(client, name, wish, _Here(name, flags), over, lambda text: click.echo(clean(text), err=True))
        found = storm.run()
    if as_json:
        print_json(found)
    else:
        for line in _lines(found):
            click.echo(clean(line))
    if found.interrupted:
        return INTERRUPTED
    return 0 if found.ok else 1


@contextmanager
def _heeded() -> Iterator[Over]:
    """Ctrl-C and SIGTERM end the storm, and what was begun is undone; a second one does not hurry it.

    So does Ctrl-Z: a tool that stands still would leave whoever it struck as it is.
    """
    from pliant.chaos.inject import Over

    over = Over()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
    before = {number: signal.signal(number, over.say) for number in numbers}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class _Here:
    """What of the job is on this machine, as its folder and the processes themselves say."""

    job: str
    flags: Flags

    @property
    def _folder(self) -> Folder:
        return Folder(settings.read().home / "jobs" / self.job)

    def member(self, pid: int, member: str) -> Process | None:
        from pliant.agent.process.template_child import MARK
        from pliant.chaos.processes import recognise

        return recognise(pid, self.job, member, MARK, self._folder.runner_pid())

    def coordinator(self) -> Process | None:
        from pliant.chaos.processes import recognise_coordinator

        endpoint = self._folder.read_endpoint()
        if endpoint is None or endpoint.url not in self.flags.place(self.job).urls:
            return None  # a job of that name has one here, and is not the one that was asked whether it may be struck
        return recognise_coordinator(self._folder.coordinator_pid(), self._folder.path)

    def around(self, hosts: frozenset[str]) -> Around:
        from pliant.chaos.sockets import Around, own_ends

        named = [urlsplit(url) for url in self.flags.place(self.job).urls]
        at = {(each.hostname or "", each.port or 80) for each in named}
        return Around(
            coordinator=frozenset((address, port) for host, port in at for address in _addresses(host)),
            elsewhere=frozenset(address for host in hosts for address in _addresses(host)),
            spared=own_ends(),
        )

    def is_run(self) -> bool:
        return self.flags.asleep(self.job) is None

    def rest(self, after: int) -> list[Event]:
        found: list[Event] = []
        with self.flags.connect(self.job) as client:
            while page := client.events(self.job, after + len(found), PAGE):
                found += [event for _, event in page]
        return found


def _addresses(host: str) -> set[str]:
    with suppress(OSError):
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return set()


def _lines(found: Report) -> Iterator[str]:
    """The report for people; each fault was told when it happened."""
    totals = found.totals
    kinds = ", ".join(f"{count} {kind}" for kind, count in totals.by_kind.items()) or "none"
    yield f"{found.job}: {'every promise was kept' if found.ok else 'not as it must be'}, with --seed {found.seed}"
    yield f"{totals.faults} faults in {found.lasted_s:.0f} s ({kinds}); {totals.put_off} put off"
    yield f"the job is {found.state.value}: {found.why}" if found.why else f"the job is {found.state.value}"
    if totals.next_step_median_s is not None and totals.next_step_max_s is not None:
        yield (
            f"training went on after {totals.next_step_median_s:.2f} s (median), {totals.next_step_max_s:.2f} s at most"
        )
    yield (
        f"{totals.steps} steps committed, {totals.rolled_back} rolled back ({totals.rolled_back_by_all} by killing "
        f"all), {totals.restarts} workers started"
    )
    yield from (f"left out: {each}" for each in found.left_out)
    yield from (f"{each} runs on another machine, and was not struck at" for each in found.elsewhere)
    yield from (f"- {each}" for each in found.broken)
