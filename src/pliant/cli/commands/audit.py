"""`pliant audit`: exactly once, shown from the ledger."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection, job_argument, the_job
from pliant.cli.output import clean, json_option, print_json
from pliant.errors import Refused

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.core.data.audit import Audit
    from pliant.core.data.grid import Grid
    from pliant.core.data.ledger import LedgerLine, Lineage
    from pliant.core.data.sample_order import Order
    from pliant.core.messages import Event
    from pliant.core.model.fingerprint import Fingerprint
    from pliant.core.model.job import Terms

    Expected = Callable[[Grid, Order, int], int]

PAGE = 1000
SHOWN = 20  # problems; the rest are counted
FUNCTION = (
    "The order comes from a function of the script, so which samples it named cannot be recomputed here: what was "
    "checked is the chain, the steps and the counts."
)


@dataclass(slots=True)
class History:
    """What a job's events say about its ledger: that of the newest attempt, and of those it goes on from."""

    terms: Terms | None = None
    bits: Fingerprint = ()
    lines: list[LedgerLine] = field(default_factory=list)
    head: Lineage | None = None
    finished: bool = False

    def add(self, event: Event) -> None:
        from pliant.core import messages as m
        from pliant.core.model.job import JobState
        from pliant.core.model.world import WorldKind

        match event:
            case m.JobCreated():
                self.finished = False
                if not event.onward:
                    self.terms, self.bits, self.lines, self.head = None, (), [], None
            case m.MemberJoined():
                self.terms = self.terms or event.terms
                self.bits = self.bits or event.member.fingerprint
            case m.StepsCommitted():
                self.lines += event.lines
                self.head = event.lines[-1].lineage
            case m.WorldFormed(world=world) if world.kind is not WorldKind.PLANNED:
                self.head = world.base  # behind the last line where the world goes back to a checkpoint
            case m.StateChanged():
                self.finished = event.state is JobState.FINISHED
            case _:
                pass

    def committed(self) -> dict[int, LedgerLine]:
        """By step, the lines of the committed history."""
        known = {line.lineage: line for line in self.lines}
        found: dict[int, LedgerLine] = {}
        line = known.get(self.head) if self.head is not None else None
        while line is not None and line.lineage.step not in found:
            found[line.lineage.step] = line
            line = known.get(line.parent)
        return found


@click.command()
@job_argument
@json_option
@connection
def audit(job: str | None, flags: Flags, as_json: bool) -> int:
    """Show from the ledger that every sample was used exactly once.

    The digest of what was really read is recomputed for every committed step; steps that were rolled back are counted
    apart. A job that still runs is audited as far as it has come. Status 1 if anything is not as it must be.
    """
    name = the_job(job)
    with flags.connect(name) as client:
        history = read_history(client, name)
    if history.terms is None:
        raise Refused(f"There is nothing to audit yet: nobody has joined {name}.")
    order = dict(history.terms.extra).get("order", "shuffled").partition(" ")[0]
    found = _audited(history, history.terms, order)
    if as_json:
        print_json(_facts(found, order))
    else:
        _show(name, found, order)
    return 0 if found.ok else 1


def read_history(client: Client, job: str) -> History:
    """All of a job's events, for what they say about its ledger."""
    history = History()
    with progress("Reading events", client.job(job).job.revision) as step:
        for event in all_events(client, job):
            history.add(event)
            step()
    return history


def all_events(client: Client, job: str) -> Iterator[Event]:
    after = 0
    while page := client.events(job, after, PAGE):
        yield from (event for _, event in page)
        after = page[-1][0]


def _audited(history: History, terms: Terms, kind: str) -> Audit:
    from pliant.core.data.audit import audit as check

    order, expected = _order(terms, kind, history)
    with progress("Checking steps", len(history.lines)) as step:

        def counted(grid: Grid, order: Order, number: int) -> int:
            step()
            return expected(grid, order, number)

        return check(terms.grid, order, history.lines, head=history.head, finished=history.finished, expected=counted)


def _order(terms: Terms, kind: str, history: History) -> tuple[Order, Expected]:
    """The order that was promised, and what a step's digest must be in it."""
    from pliant.core.data.ledger import expected_digest
    from pliant.core.data.sample_order import Order

    shuffled = Order(terms.seed, terms.grid.samples)
    match kind:
        case "sequential":
            return _sequential(shuffled), expected_digest
        case "function":
            written = history.committed()
            return shuffled, lambda _grid, _order, step: written[step].digest
        case "shuffled":
            return shuffled, _quick() or expected_digest
        case _:
            raise Refused(f"The job's order is {kind!r}, which this version of Pliant does not know; use a newer one.")


def _sequential(order: Order) -> Order:
    from pliant.core.data.sample_order import Order

    class Sequential(Order):
        """Every epoch in the data's own order."""

        __slots__ = ()

        def take(self, epoch: int, positions: range) -> tuple[int, ...]:
            self.check(epoch, positions)
            return tuple(positions)

    return Sequential(order.seed, order.samples)


def _quick() -> Expected | None:
    """The same with arrays, where numpy is installed."""
    try:
        from pliant.train.data.order import expected_digest
    except ModuleNotFoundError:
        return None
    return expected_digest


def _facts(found: Audit, order: str) -> dict[str, object]:
    return {
        "ok": found.ok,
        "samples": found.samples,
        "lost": found.lost,
        "repeated": found.repeated,
        "steps": found.steps,
        "rolled_back": found.rolled_back,
        "problems": found.problems,
        "order": order,
    }


def _show(name: str, found: Audit, order: str) -> None:
    verdict = "every sample exactly once" if found.ok else "not as it must be"
    click.echo(f"{name}: {verdict}")
    click.echo(
        f"{found.samples} samples in {found.steps} committed steps, {found.lost} lost, {found.repeated} repeated"
    )
    if found.rolled_back:
        click.echo(f"{found.rolled_back} steps were rolled back, and are not in the committed history")
    if order == "function":
        click.echo(FUNCTION)
    for line in _problems(found.problems):
        click.echo(line)


def _problems(problems: Iterable[str]) -> Iterator[str]:
    every = list(problems)
    yield from (f"- {clean(problem)}" for problem in every[:SHOWN])
    if len(every) > SHOWN:
        yield f"- and {len(every) - SHOWN} more; --json has them all"


@contextmanager
def progress(what: str, length: int) -> Iterator[Callable[[], None]]:
    """Shown on a terminal alone."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=length, label=what, file=sys.stderr, update_min_steps=max(1, length // 100)) as bar:
        yield lambda: bar.update(1)
