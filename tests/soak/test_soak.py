"""The soak on a small scale, and whether what it concludes would notice anything."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.model.names import MemberId
from pliant.wire.api import EVENTS
from soak.looks import Look
from soak.plan import KINDS, kinds, windows
from soak.verdict import (
    Span,
    false_evictions,
    files_too_large,
    flatness,
    log_sizes,
    progress,
    rate,
    steps_at,
    store_growth,
)
from unit.core.build import A, B, lines

MIB = 2**20


def looked(role: str, at: float, rss: int, age_s: float = 100.0) -> Look:
    return Look(at, role, 1, age_s, rss, files=20, threads=4)


def broken(seen: list[Look]) -> list[str]:
    return [each.what for each in flatness(seen, 0.0, 90.0) if not each.ok]


def test_quiet_and_disturbed_windows_take_turns_before_the_loaded_one() -> None:
    found = windows(30.0)
    total = {
        kind: sum(each.seconds for each in found if each.kind == kind) for kind in ("quiet", "disturbed", "loaded")
    }
    assert total == pytest.approx({"quiet": 6 * 60, "disturbed": 24 * 60, "loaded": 6 * 60})
    assert [each.kind for each in found[-3:]] == ["quiet", "disturbed", "loaded"]


def test_every_kind_of_fault_comes_as_often_as_any_other() -> None:
    first = list(islice(kinds(3), 40))
    assert first == list(islice(kinds(3), 40)) != list(islice(kinds(4), 40))
    assert {kind: first.count(kind) for kind in KINDS} == dict.fromkeys(KINDS, 10)


def test_what_grows_is_found() -> None:
    steady = [looked("agent", float(at), 50 * MIB + at % 3) for at in range(90)]
    growing = [looked("coordinator", float(at), 50 * MIB + at * MIB) for at in range(90)]
    assert broken(steady) == []
    assert broken(steady + growing) == ["coordinator rss_bytes"]


def test_young_workers_are_not_compared_with_old_ones() -> None:
    young = [looked("worker", float(at), 50 * MIB, age_s=1.0) for at in range(60)]
    old = [looked("worker", float(at), 500 * MIB) for at in range(30, 90)]
    assert broken(young + old) == []


def test_a_few_looks_say_nothing() -> None:
    assert flatness([looked("agent", 40.0, 1), looked("agent", 80.0, 10**12)], 0.0, 90.0) == []
    assert store_growth([(0.0, 1)], [(0.0, 1)]) == []


def test_a_store_that_takes_ever_more_for_a_step_is_found() -> None:
    reports = [(float(at), 1000 * at) for at in range(90)]
    assert [each.ok for each in store_growth([(float(at), 1000 * 200 * at) for at in range(90)], reports)] == [True]
    assert [each.ok for each in store_growth([(float(at), 1000 * at**3) for at in range(90)], reports)] == [False]
    assert store_growth([(float(at), at) for at in range(90)], [(0.0, 5), (100.0, 5)]) == []
    assert not files_too_large(40 * MIB, 5 * MIB)
    assert files_too_large(80 * MIB, 5 * MIB)


def test_the_log_is_measured_as_it_is_written() -> None:
    events = [m.WorldEntered(1.0, 1), m.WorldEntered(2.0, 2)]
    size = len(EVENTS.encode(events[0]))
    assert log_sizes(events) == [(1.0, size), (2.0, 2 * size)]


def test_steps_between_two_reports_are_in_proportion() -> None:
    reports = [(10.0, 100), (20.0, 200), (20.0, 210)]
    assert [steps_at(reports, at) for at in (5.0, 10.0, 15.0, 20.0, 99.0)] == [100, 100, 150, 210, 210]
    spans = [Span("quiet", 10.0, 15.0), Span("quiet", 15.0, 20.0)]
    assert rate(reports, spans, 2) == pytest.approx(22.0)
    assert rate(reports, [], 2) == 0.0


def test_progress_is_what_the_reports_say() -> None:
    committed = m.StepsCommitted(3.0, 1, A, lines(GENESIS, 1, 4))
    assert progress([m.WorldEntered(1.0, 1), committed]) == [(3.0, 4)]


def test_only_whom_something_was_done_to_may_be_lost() -> None:
    events = [
        m.MemberGone(1.0, A, "lost", "its process ended with signal 9"),
        m.MemberGone(2.0, B, "lost", "its lease ran out"),
        m.MemberGone(2.0, MemberId("c"), "left", "drained"),
        m.MemberGone(99.0, MemberId("d"), "lost", "after it was over"),
    ]
    assert false_evictions(events, {A}, 50.0) == ["b lost: its lease ran out"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_short_soak_keeps_every_promise(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-m", "soak", "--minutes", "0.25", "--every", "4"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, found["ok"], found["broken"]) == (0, True, []), done.stderr[-3000:]
    assert (found["steps_lost"], found["false_evictions"]) == (0, 0)
    assert sum(found["faults"].values()) >= 2
    assert found["samples_per_second"]["undisturbed"] > 0.0
    assert list(tmp_path.glob("pliant-soak-*")) == []
