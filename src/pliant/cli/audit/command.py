"""`pliant audit`: verify from the ledger that every sample was used exactly once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import click

from pliant.cli.audit.tasks import audit_tasks
from pliant.cli.connect import Flags, connection_options, job_argument, read_events, resolve_job
from pliant.cli.output import clean, json_option, print_json
from pliant.errors import Refused

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.core.data.audit import Audit
    from pliant.core.data.grid import Grid
    from pliant.core.data.ledger import LedgerLine, Lineage
    from pliant.core.data.ledger_check import LedgerCheck
    from pliant.core.data.sample_order import Order
    from pliant.core.messages import Event
    from pliant.core.model.fingerprint import Fingerprint
    from pliant.core.model.job import Terms

    Expected = Callable[[Grid, Order, int], int]

PROBLEMS_SHOWN = 20
UNKNOWN_ORDERS = ("function", "sampler", "shards")  # an audit cannot recompute them
EVERY_SAMPLE = "every sample used exactly once"
EVERY_POSITION = "every position of the order used exactly once"
EVERY_ITEM = "every item of the stream, by its number, used exactly once"
SHARD_ORDER_NOTE = (
    "The order follows the shards of the data. It cannot be recomputed here: the workers compared each step with it "
    "before they applied the step. The hash chain, the steps and the counts were checked here."
)
STREAM_NOTE = (
    "Items are numbered as the stream yields them. A number means the same item on every worker if the stream yields "
    "the same items each time it is opened: its beginning was compared when a worker joined."
)
DRAWN_ORDER_NOTE = (
    "The order comes from a {source} in the script and may repeat samples or leave some out. It cannot be recomputed "
    "here: the workers compared each step with it before they applied the step. The hash chain, the steps and the "
    "counts were checked here."
)


@dataclass(slots=True)
class LedgerHistory:
    """The ledger of a job's newest attempt, and of the attempts it continues."""

    terms: Terms | None = None
    fingerprint: Fingerprint = ()
    lines: list[LedgerLine] = field(default_factory=list)
    head: Lineage | None = None
    finished: bool = False

    def add(self, event: Event) -> None:
        """Take the next event of the job."""
        from pliant.core import messages as m
        from pliant.core.model.job import JobState
        from pliant.core.model.world import WorldKind

        match event:
            case m.JobCreated():
                self.finished = False
                if not event.resumes:
                    self.terms, self.fingerprint, self.head = None, (), None
                    self.begin()
            case m.MemberJoined():
                self.terms = event.terms.with_changes(())  # the lines have the changes of the batch
                self.fingerprint = self.fingerprint or event.member.fingerprint
            case m.StepsCommitted():
                self.take(event.lines)
                self.head = event.lines[-1].lineage
            case m.WorldFormed(world=world) if world.kind is not WorldKind.PLANNED:
                self.head = world.base  # before the last line if the world goes back to a checkpoint
            case m.StateChanged():
                self.finished = event.state is JobState.FINISHED and event.last_step is None
            case _:
                pass

    def begin(self) -> None:
        """Start a ledger."""
        self.lines = []

    def take(self, lines: tuple[LedgerLine, ...]) -> None:
        """Add accepted lines."""
        self.lines += lines

    def committed(self) -> dict[int, LedgerLine]:
        """Return the lines of the committed history by step."""
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
@connection_options
def audit(job: str | None, flags: Flags, as_json: bool) -> int:
    """Verify that every sample was used exactly once.

    Recomputes the digest of the samples that were read, for every committed step. Steps that were rolled back are
    counted separately. A running job is audited up to its last step. Exits with 1 if there is a problem.

    Of a task queue, every record must be in one completed shard. Records that may have been processed more than once,
    because a worker was lost before it reported them, are counted.
    """
    name = resolve_job(job)
    with flags.connect(name) as client:
        if client.job(name).tasks is not None:
            return audit_tasks(client, name, as_json=as_json)
        terms, found = _audit(client, name)
    promise = promise_of(terms)
    if as_json:
        print_json(_audit_json(found, promise))
    else:
        _print_audit(name, found, promise)
    return 0 if found.ok else 1


@dataclass(frozen=True, slots=True)
class Promise:
    """The meaning of exactly-once for a job's data: its kind of order, the sentence, and a note on the checks."""

    order: str
    sentence: str
    note: str = ""


def promise_of(terms: Terms) -> Promise:
    """Return what a job with these terms promises about its samples."""
    order = dict(terms.extra).get("order", "shuffled").partition(" ")[0]
    length, per_epoch = _data_length(terms), terms.grid.samples
    sentence, notes = EVERY_SAMPLE, []
    if length != per_epoch:
        sentence = EVERY_POSITION
        notes.append(
            f"Each epoch takes {per_epoch} samples of passes over {length} samples, from where the epoch before it "
            "ended."
        )
    match order:
        case "function" | "sampler":
            sentence, notes = EVERY_POSITION, [DRAWN_ORDER_NOTE.format(source=order)]
        case "shards":
            notes.append(SHARD_ORDER_NOTE)
        case "stream":
            sentence, notes = EVERY_ITEM, [STREAM_NOTE]
        case _:
            pass
    return Promise(order, sentence, " ".join(notes))


def _data_length(terms: Terms) -> int:
    """Return the number of samples in the data; a term names it if an epoch has another number."""
    named = dict(terms.extra).get("data", "").partition(" ")[0]
    return int(named) if named.isdecimal() else terms.grid.samples


def read_history(client: Client, job: str) -> LedgerHistory:
    """Read the ledger of a job from its events."""
    history = LedgerHistory()
    _read(client, job, history)
    return history


def _read(client: Client, job: str, history: LedgerHistory) -> None:
    with progress("Reading events", client.job(job).job.revision) as step:
        for _, event in read_events(client, job):
            history.add(event)
            step()


def _audit(client: Client, job: str) -> tuple[Terms, Audit]:
    """Audit a job: while its events arrive, and again with the whole ledger in memory if there may be a problem."""
    history = CheckedHistory()
    _read(client, job, history)
    if history.terms is not None and history.checked_terms not in (None, history.terms):
        history = CheckedHistory(checked_terms=history.terms)  # terms that were changed later hold for all steps
        _read(client, job, history)
    if history.terms is not None and (found := history.result()) is not None:
        return history.terms, found
    whole = read_history(client, job)
    if whole.terms is None:
        raise Refused(f"Nothing to audit: no worker has joined {job} yet.")
    return whole.terms, _run_audit(whole, whole.terms, promise_of(whole.terms).order)


@dataclass(slots=True)
class CheckedHistory(LedgerHistory):
    """A ledger that is checked while it is read. It keeps no line, so that a job of a million steps can be audited."""

    checked_terms: Terms | None = None
    check: LedgerCheck | None = None

    def begin(self) -> None:
        self.check = None

    def take(self, lines: tuple[LedgerLine, ...]) -> None:
        from pliant.core.data.ledger_check import LedgerCheck

        if self.check is None:
            terms = self.checked_terms = self.checked_terms or self.terms
            if terms is None:
                return  # no worker had joined: `result` returns None
            self.check = LedgerCheck(terms.grid, _expected_digests(terms, promise_of(terms).order))
        for line in lines:
            self.check.add(line)

    def result(self) -> Audit | None:
        """Return the audit of a sound ledger; None if the whole ledger must be looked at."""
        if self.check is None or self.terms != self.checked_terms:
            return None
        return self.check.result(head=self.head, finished=self.finished)


def _expected_digests(terms: Terms, kind: str) -> Callable[[Grid, range], Sequence[int]] | None:
    """Return the function for the digests of consecutive steps of a grid; None if they cannot be recomputed."""
    if kind in UNKNOWN_ORDERS:
        return None
    order, _ = _order(terms, kind, LedgerHistory())
    length = _data_length(terms)
    try:
        from pliant.train.data.order import expected_digests, take, take_in_sequence
    except ModuleNotFoundError:  # without numpy
        from pliant.core.data.ledger import expected_digest

        return lambda grid, steps: [expected_digest(grid, order, step) for step in steps]
    samples = partial(take, order) if kind == "shuffled" else partial(take_in_sequence, length, terms.grid.samples)
    return lambda grid, steps: expected_digests(grid, samples, steps)


def _run_audit(history: LedgerHistory, terms: Terms, kind: str) -> Audit:
    """Audit a ledger with all its lines, and explain every problem."""
    from pliant.core.data.audit import audit as check

    order, expected = _order(terms, kind, history)
    with progress("Checking steps", len(history.lines)) as step:

        def counted(grid: Grid, order: Order, number: int) -> int:
            step()
            return expected(grid, order, number)

        return check(terms.grid, order, history.lines, head=history.head, finished=history.finished, expected=counted)


def _order(terms: Terms, kind: str, history: LedgerHistory) -> tuple[Order, Expected]:
    """Return the promised order, and the function for the expected digest of a step."""
    from pliant.core.data.ledger import expected_digest
    from pliant.core.data.sample_order import Order

    length = _data_length(terms)
    shuffled = Order(terms.seed, terms.grid.samples, None if length == terms.grid.samples else length)
    match kind:
        case "sequential" | "stream":
            return _sequential(shuffled, length), expected_digest
        case known if known in UNKNOWN_ORDERS:
            written = history.committed()
            return shuffled, lambda _grid, _order, step: written[step].digest
        case "shuffled":
            return shuffled, _fast_expected_digest() or expected_digest
        case _:
            raise Refused(
                f"The job's order is {kind!r}, which this version of Pliant does not support. Use a newer version."
            )


def _sequential(order: Order, length: int) -> Order:
    from pliant.core.data.sample_order import Order

    class Sequential(Order):
        """The order of the data itself, in every epoch."""

        __slots__ = ()

        def take(self, epoch: int, positions: range) -> tuple[int, ...]:
            self.check(epoch, positions)
            return tuple((epoch * self.samples + position) % length for position in positions)

    return Sequential(order.seed, order.samples)


def _fast_expected_digest() -> Expected | None:
    """Return the vectorized digest function, if numpy is installed."""
    try:
        from pliant.train.data.order import expected_digest
    except ModuleNotFoundError:
        return None
    return expected_digest


def _audit_json(found: Audit, promise: Promise) -> dict[str, object]:
    return {
        "ok": found.ok,
        "samples": found.samples,
        "lost": found.lost,
        "repeated": found.repeated,
        "steps": found.steps,
        "rolled_back": found.rolled_back,
        "problems": found.problems,
        "order": promise.order,
        "promise": promise.sentence,
    }


def _print_audit(name: str, found: Audit, promise: Promise) -> None:
    verdict = promise.sentence if found.ok else "problems found"
    click.echo(f"{name}: {verdict}")
    click.echo(
        f"{found.samples} samples in {found.steps} committed steps, {found.lost} lost, {found.repeated} repeated"
    )
    if found.rolled_back:
        click.echo(f"{found.rolled_back} steps were rolled back and are not part of the committed history")
    if promise.note:
        click.echo(promise.note)
    for line in _problem_lines(found.problems):
        click.echo(line)


def _problem_lines(problems: Iterable[str]) -> Iterator[str]:
    every = list(problems)
    yield from (f"- {clean(problem)}" for problem in every[:PROBLEMS_SHOWN])
    if len(every) > PROBLEMS_SHOWN:
        yield f"- and {len(every) - PROBLEMS_SHOWN} more; --json has them all"


@contextmanager
def progress(what: str, length: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=length, label=what, file=sys.stderr, update_min_steps=max(1, length // 100)) as bar:
        yield lambda: bar.update(1)
