"""The servers of buckets, as servers come and go."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.messages import Code
from pliant.core.messages.describe import describe
from pliant.core.model.job import JobSpec, JobState, Mode, member_limit
from pliant.core.model.names import MemberId
from pliant.core.model.view import MemberState, member_state, view_of
from pliant.core.ps import decide as rules
from pliant.core.ps import messages as p
from pliant.core.ps.evolve import evolve_servers
from pliant.core.ps.invariants import layout_violation, table_change_violation
from pliant.core.ps.model import BUCKETS, NONE, SERVERS_MAX, BucketCopies, BucketLayout, ServerTable, empty_layout
from unit.core.build import TERMS as LIVE_TERMS
from unit.core.ps.fleet import A, B, C, D, Fleet
from unit.core.tasks.queue import X


def test_the_first_server_has_every_bucket_and_the_second_the_copies() -> None:
    fleet = Fleet()
    fleet.serve(A)
    assert fleet.primaries() == {A: BUCKETS}
    assert fleet.it.state is JobState.WAITING
    fleet.serve(B)
    assert fleet.moving() == BUCKETS
    assert fleet.backups() == {A: 0, B: 0}
    fleet.fill()
    assert fleet.primaries() == fleet.backups() == {A: 512, B: 512}


def test_a_layout_is_whole_once_every_bucket_has_its_copies_and_no_server_leaves() -> None:
    fleet = Fleet()
    found = [empty_layout(0).is_whole]

    def look() -> None:
        found.append(fleet.layout.is_whole)

    fleet.serve(A)
    look()  # a lone server has no backups
    fleet.serve(B)
    look()
    fleet.fill()
    look()
    assert found == [True, True, False, True]
    fleet.settle(C)
    look()
    fleet.tell(m.Drain(B, 30.0, "drained"))
    look()
    fleet.fill()
    fleet.kill(A)
    look()  # the buckets of the killed server have no backup
    assert found[4:] == [True, False, False]


def test_the_ids_of_servers_count_beside_those_of_workers() -> None:
    assert member_limit(Fleet().it) == 64 + 4 * 4 + 2 * SERVERS_MAX


def test_a_third_server_receives_its_share_with_few_moves() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.serve(C)
    assert fleet.moving() < 2 * BUCKETS / 3 + 50
    fleet.fill()
    assert {*fleet.primaries().values()} <= {341, 342}
    assert {*fleet.backups().values()} <= {341, 342}


def test_the_copies_of_all_buckets_are_those_of_each() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.serve(C)  # some buckets have an incoming copy in the place of the primary, some in that of the backup
    layout = fleet.it.ps.layout if fleet.it.ps is not None else empty_layout(0)
    assert 0 < len(layout.replaces_primary) < fleet.moving()
    assert layout.all_copies() == [layout.copies(bucket) for bucket in range(BUCKETS)]


def test_the_backup_replaces_a_lost_primary_at_once() -> None:
    fleet = Fleet()
    fleet.settle(A, B, C)
    before = fleet.layout
    events = fleet.kill(A)
    changed = next(event for event in events if isinstance(event, p.LayoutChanged))
    assert changed.lost == 0
    for bucket in range(BUCKETS):
        if before.copies(bucket).primary == A:
            assert fleet.layout.copies(bucket).primary == before.copies(bucket).backup
    fleet.fill()
    assert fleet.primaries() == fleet.backups() == {B: 512, C: 512}


def test_a_copy_that_is_not_filled_never_becomes_a_primary() -> None:
    fleet = Fleet()
    fleet.serve(A, B)
    events = fleet.kill(A)
    changed = next(event for event in events if isinstance(event, p.LayoutChanged))
    assert changed.lost == BUCKETS
    assert fleet.primaries() == {B: BUCKETS}
    assert "1024 buckets were lost and continue from the last checkpoint" in describe(changed)


def test_all_servers_lost_and_new_ones_take_over() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.kill(A)
    fleet.kill(B)
    assert fleet.layout.servers == ()
    fleet.settle(C)
    assert fleet.primaries() == {C: BUCKETS}


def test_a_server_that_drains_hands_its_buckets_over_and_then_holds_nothing() -> None:
    fleet = Fleet()
    fleet.settle(A, B, C)
    fleet.tell(m.Drain(A, 30, "maintenance"))
    assert fleet.primaries()[A] == 0
    assert fleet.layout.holds(A)
    fleet.fill()
    assert not fleet.layout.holds(A)
    fleet.tell(m.Leave(A, 0, "drained"))
    assert fleet.primaries() == {B: 512, C: 512}


def test_the_last_but_one_server_may_leave_without_a_replacement() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.tell(m.Drain(B, 30, "maintenance"))
    assert fleet.primaries()[A] == BUCKETS
    fleet.fill()
    assert not fleet.layout.holds(B)
    assert fleet.primaries()[A] == BUCKETS


def test_a_server_that_drains_keeps_its_copies_until_the_other_one_has_reported() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.tell(m.Drain(B, 30, "maintenance"))
    assert fleet.backups()[B] == BUCKETS
    events = fleet.kill(A)  # it was gone before the drain, and the coordinator did not know
    changed = next(event for event in events if isinstance(event, p.LayoutChanged))
    assert changed.lost == 0
    assert fleet.primaries()[B] == BUCKETS
    fleet.settle(C)
    assert fleet.primaries()[C] == BUCKETS
    assert not fleet.layout.holds(B)


def test_a_server_that_comes_meanwhile_receives_the_copies_of_the_one_that_drains() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.tell(m.Drain(B, 30, "maintenance"))
    fleet.serve(C)
    assert fleet.backups()[B] == fleet.moving() == BUCKETS
    fleet.fill()
    assert fleet.primaries()[A] + fleet.primaries()[C] == BUCKETS
    assert not fleet.layout.holds(B)


def test_servers_that_all_drain_keep_their_buckets() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.tell(m.Drain(A, 30, "x"))
    fleet.tell(m.Drain(B, 30, "x"))
    assert fleet.layout.leaving == {A, B}
    assert sum(fleet.primaries().values()) == BUCKETS


def test_a_drain_moves_a_bucket_whose_copies_both_leave() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.tell(m.Drain(A, 30, "x"))
    fleet.tell(m.Drain(B, 30, "x"))
    fleet.settle(C)
    assert not fleet.layout.holds(A)
    assert not fleet.layout.holds(B)


def test_a_receiver_that_is_lost_or_drains_receives_nothing_more() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.serve(C)
    fleet.tell(m.Drain(C, 30, "x"))
    assert fleet.moving() == 0
    fleet.settle(D)
    assert {*fleet.primaries().values()} <= {0, 341, 342}


def test_a_filled_copy_counts_even_if_its_primary_is_lost_then() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.serve(C)
    fleet.tell(p.ReportCopied(A, fleet.layout.number))
    before = fleet.layout
    fleet.kill(A)
    for bucket in range(BUCKETS):
        was, now = before.copies(bucket), fleet.layout.copies(bucket)
        if was.primary == A and was.incoming == C and was.replaces_primary:
            assert (now.primary, now.backup) == (C, B)


def _begin_to_move(*, backup_lost: bool) -> tuple[Fleet, BucketLayout]:
    """Return servers of which A and B have copies of everything, and some buckets move to C."""
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.serve(C)
    if backup_lost:
        fleet.kill(B)
    return fleet, fleet.layout


def test_a_server_keeps_the_copy_that_is_replaced_if_there_is_no_other_second_one() -> None:
    fleet, before = _begin_to_move(backup_lost=True)
    moving = [bucket for bucket in range(BUCKETS) if bucket in before.replaces_primary]
    assert moving
    assert all(before.copies(bucket) == BucketCopies(A, None, C, replaces_primary=True) for bucket in moving)
    fleet.tell(p.ReportCopied(A, before.number))
    for bucket in moving:
        after = fleet.layout.copies(bucket)
        assert {after.primary, after.backup} == {A, C}
    events = fleet.kill(C)  # it was gone before the report, and the coordinator did not know
    assert [event.lost for event in events if isinstance(event, p.LayoutChanged)] == [0]
    assert fleet.primaries() == {A: BUCKETS}


def test_a_server_that_drains_keeps_the_copy_that_is_replaced_until_there_is_another_second_one() -> None:
    fleet, _ = _begin_to_move(backup_lost=True)
    fleet.tell(m.Drain(A, 30, "maintenance"))
    fleet.tell(p.ReportCopied(A, fleet.layout.number))
    assert fleet.primaries()[C] == fleet.backups()[A] == BUCKETS
    fleet.serve(D)
    assert fleet.backups()[A] == BUCKETS
    fleet.fill()
    assert fleet.primaries() == {A: 0, C: 512, D: 512}
    assert not fleet.layout.holds(A)


def test_a_filled_copy_that_is_lost_replaces_nothing() -> None:
    fleet, before = _begin_to_move(backup_lost=False)
    assert before.fillers() == {A, B}
    fleet.tell(p.ReportCopied(A, before.number))
    fleet.kill(C)
    for bucket in range(BUCKETS):
        was, now = before.copies(bucket), fleet.layout.copies(bucket)
        if was.primary == A:
            assert {now.primary, now.backup} == {A, B}


def test_the_backup_stays_if_the_primary_that_filled_its_replacement_is_lost() -> None:
    fleet, before = _begin_to_move(backup_lost=False)
    fleet.tell(p.ReportCopied(A, before.number))
    fleet.kill(A)
    for bucket in range(BUCKETS):
        was, now = before.copies(bucket), fleet.layout.copies(bucket)
        if was.primary == A and was.incoming == C:
            assert {now.primary, now.backup} == {B, C}


def test_a_report_of_a_lost_primary_lets_no_backup_go() -> None:
    fleet = Fleet()
    fleet.settle(A, B, D)
    fleet.tell(m.Drain(B, 30, "maintenance"))
    fleet.tell(m.Drain(D, 30, "maintenance"))
    fleet.serve(C)
    before = fleet.layout
    moving = [bucket for bucket in range(BUCKETS) if before.copies(bucket) == BucketCopies(A, B, C)]
    assert moving
    assert before.fillers() == {A, D}
    fleet.tell(p.ReportCopied(A, before.number))
    fleet.kill(A)  # only C stays, and it may be lost as well
    assert all(fleet.layout.copies(bucket) == BucketCopies(C, B) for bucket in moving)
    fleet.fill()
    assert fleet.primaries() == {B: 0, C: BUCKETS, D: 0}
    assert not fleet.layout.holds(B)


def test_reports_that_are_late_or_repeated_change_nothing() -> None:
    fleet = Fleet()
    fleet.settle(A)
    fleet.serve(B)
    number = fleet.layout.number
    assert fleet.tell(p.ReportCopied(B, number)) == ()
    assert fleet.tell(p.ReportCopied(A, number - 1)) == ()
    fleet.serve(C)
    assert fleet.tell(p.ReportCopied(A, number)) == ()
    assert fleet.tell(p.JoinServers(A, X, "elsewhere:1")) == ()


@pytest.mark.parametrize("address", ["", "a b:1", "x" * 300])
def test_a_server_needs_an_address(address: str) -> None:
    assert Fleet().refused(p.JoinServers(A, X, address)).code is Code.BAD


def test_servers_are_refused_where_they_cannot_be() -> None:
    fleet = Fleet()
    fleet.settle(A)
    assert fleet.refused(p.ReportCopied(B, 1)).code is Code.UNKNOWN
    fleet.kill(A)
    assert fleet.refused(p.JoinServers(A, X, "a:1")).code is Code.GONE
    assert fleet.refused(p.ReportCopied(A, 1)).code is Code.GONE
    auto = Fleet(JobSpec(1, 4, mode=Mode.AUTO))
    assert auto.refused(p.JoinServers(A, X, "a:1")).code is Code.MISMATCH
    queued = Fleet(JobSpec(1, 4, mode=Mode.TASKS, queue="default"))
    assert "is in queue default" in queued.refused(p.JoinServers(A, X, "a:1")).why
    auto.tell(m.Join(MemberId("w"), X, LIVE_TERMS))
    assert "run it with --mode tasks or live" in auto.refused(p.JoinServers(A, X, "a:1")).why
    assert Fleet().refused(p.JoinServers(MemberId("a b"), X, "a:1")).code is Code.BAD


def test_there_is_a_limit_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "SERVERS_MAX", 2)
    fleet = Fleet()
    fleet.serve(A, B)
    assert "at most 2" in fleet.refused(p.JoinServers(C, X, "c:1")).why


def test_a_job_that_stops_takes_no_server_and_ends() -> None:
    fleet = Fleet()
    fleet.settle(A)
    fleet.job = replace(fleet.it, state=JobState.STOPPING, ends_as=JobState.CANCELLED, why="x")
    assert rules.decide_server(fleet.it, p.JoinServers(B, X, "b:1"), 0.0).code is Code.ENDED  # type: ignore[union-attr]
    fleet.kill(A)
    assert fleet.it.state is JobState.CANCELLED


def test_servers_are_not_workers() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.join(MemberId("w"))
    assert fleet.it.state is JobState.RUNNING
    assert list(fleet.it.workers) == ["w"]
    assert member_state(fleet.it, A) is MemberState.ACTIVE
    losses = fleet.it.losses_without_progress
    fleet.kill(A)
    assert fleet.it.losses_without_progress == losses


def test_the_next_attempt_continues_the_tables_without_their_servers() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    number = fleet.layout.number
    fleet.tell(m.Cancel("enough"))
    fleet.tell(m.Create("demo", fleet.it.spec))
    assert fleet.it.ps == ServerTable(1, empty_layout(number))
    fleet.settle(C)
    assert fleet.layout.number > number
    assert view_of(fleet.it, 1, C).table_history == 1
    fleet.tell(m.Cancel("enough"))
    fleet.tell(m.Create("demo", fleet.it.spec, fresh=True))
    assert view_of(fleet.it, 1, C).layout is None
    fleet.settle(D)
    assert view_of(fleet.it, 1, D).table_history == 3


def test_events_are_described() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    told = [describe(event) for event in fleet.events]
    assert f"parameter server {A} joined" in told
    assert f"{A} filled the copies of its buckets that move" in told
    assert any("1024 buckets are being copied, 1024 have no backup" in text for text in told)
    with pytest.raises(ValueError, match="must be ServerJoined"):
        evolve_servers(None, p.CopiesFilled(0.0, A), 1)


def test_the_invariants_find_wrong_layouts() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    good = fleet.layout
    assert layout_violation(good) == ""
    assert good.index(C) == NONE
    assert not good.holds(C)
    for wrong, text in (
        (replace(good, backup=good.primary), "two copies on one server"),
        (replace(good, primary=(NONE, *good.primary[1:])), "has no primary"),
        (replace(good, primary=(7, *good.primary[1:])), "names a server that it does not have"),
        (replace(good, primary=good.primary[1:]), "does not have 1024 buckets"),
    ):
        assert text in layout_violation(wrong)
    fleet.serve(C)
    before = ServerTable(1, fleet.layout)
    bucket = next(at for at, incoming in enumerate(fleet.layout.incoming) if incoming != NONE)
    row = list(fleet.layout.primary)
    row[bucket] = fleet.layout.incoming[bucket]
    stolen = replace(fleet.layout, number=99, primary=tuple(row))
    assert "has no filled copy" in table_change_violation(before, ServerTable(1, stolen))
    row = list(fleet.layout.backup)
    row[bucket] = fleet.layout.incoming[bucket]
    assert "backup of bucket" in table_change_violation(
        before, ServerTable(1, replace(fleet.layout, number=99, backup=tuple(row)))
    )
    assert "follows layout" in table_change_violation(before, ServerTable(1, replace(fleet.layout, number=1)))
    alone = replace(fleet.layout, number=99, backup=(NONE,) * BUCKETS)
    assert "keeps one of 2 copies of bucket 0" in table_change_violation(before, ServerTable(1, alone))
