"""A parser under test, and the loop that runs it: only declared errors, no hang, no growth, no change of state."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from fuzz.mutate import Mutator

CASE_S = 10.0  # of processor time
GROWTH_MAX = 96 << 20  # bytes at the peak of one case, above the level before
LEAK_MAX = 48 << 20  # bytes kept after all cases
CHECK_EVERY = 100
SHOWN = 300


@dataclass(frozen=True)
class Parser:
    """A function that parses bytes from a socket or a file.

    `errors` are the only exceptions that it may raise. `state`, if given, returns what a refused input must not change.
    `always_ends`: even valid bytes end with an error, as a connection does.
    """

    name: str
    parse: Callable[[bytes], object]
    corpus: Callable[[], list[bytes]]
    errors: tuple[type[BaseException], ...] = ()
    state: Callable[[], object] | None = None
    always_ends: bool = False


@dataclass
class Findings:
    """The result of one parser's cases. `accepted` counts inputs that were valid."""

    parser: str
    cases: int = 0
    accepted: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


class Hang(BaseException):
    """One case took too long."""


def run(parser: Parser, count: int, seed: int, extra: tuple[bytes, ...] = ()) -> Findings:
    """Run the kept cases, then `count` new ones. Stops at the fifth finding."""
    found = Findings(parser.name)
    mutator = Mutator(f"{seed} {parser.name}", parser.corpus())
    began, before = time.monotonic(), resident()
    kept = iter(extra)
    with deadline() as restart:
        while found.cases < count + len(extra) and len(found.wrong) < 5:
            data = next(kept, None)
            data = mutator.next() if data is None else data
            if found.cases % CHECK_EVERY == 0:
                level = _reset_peak()
            restart()
            _case(parser, data, found)
            if found.cases % CHECK_EVERY == 0 and peak() - level > GROWTH_MAX:
                found.wrong.append(
                    f"{peak() - level} bytes of memory for one of {CHECK_EVERY} cases up to {data[:SHOWN]!r}"
                )
    if resident() - before > LEAK_MAX:
        found.wrong.append(f"{resident() - before} bytes of memory are kept after {found.cases} cases")
    found.seconds = round(time.monotonic() - began, 2)
    return found


def _case(parser: Parser, data: bytes, found: Findings) -> None:
    found.cases += 1
    before = parser.state() if parser.state is not None else None
    try:
        parser.parse(data)
        found.accepted += 1
        return
    except parser.errors:
        pass
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # why: anything else is a finding, whatever it is
        found.wrong.append(f"{type(error).__name__}: {str(error)[:SHOWN]} for {data[:SHOWN]!r} ({len(data)} bytes)")
        return
    if parser.state is not None and parser.state() != before:
        found.wrong.append(f"a refused input changed the state: {data[:SHOWN]!r}")


@contextmanager
def deadline() -> Iterator[Callable[[], None]]:
    """Yield a function that starts the time of a case again. Processor time, since other programs share the machine."""

    def late(_: int, __: FrameType | None) -> None:
        raise Hang(f"more than {CASE_S:g} s")

    before = signal.signal(signal.SIGVTALRM, late)
    try:
        yield lambda: (signal.setitimer(signal.ITIMER_VIRTUAL, CASE_S), None)[1]
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    (kib,) = re.findall(r"VmHWM:\s+([0-9]+) kB", Path("/proc/self/status").read_text())
    return int(kib) * 1024


def _reset_peak() -> int:
    with suppress(OSError):  # without it the peak is that of the whole process, which only rises
        Path("/proc/self/clear_refs").write_text("5")
    return peak()
