"""Schedules of parameter servers over the real decisions and copies: no acknowledged push lost, none applied twice."""

from dataclasses import replace

import numpy as np
import pytest

from pliant.chaos.fault_kinds import FaultKind
from pliant.core.model.names import MemberId
from pliant.core.ps.model import BUCKETS, NONE, ServerAddress
from pliant.ps.copies import BucketRoles
from pliant.ps.tables.hashing import Buckets
from pliant.ps.tables.table_copy import Update
from pliant_sim.run import Result, ScheduleKind, run_batch, run_servers, schedule_of
from pliant_sim.servers.faults import SERVERS
from pliant_sim.servers.server import SimulatedServer
from pliant_sim.servers.world import ServerSetting, ServerSimulation, setting_for

FRESH = (1_000, 1_001, 1_003)
KEPT = {
    77: "a server drains while the only other one was killed a moment ago",
    331: "the only copy of a bucket drains, and the server that received another one was killed",
    538: "a bucket moves, its backup is lost, and the server that received it was killed",
    590: "the server that received the copy of one that drains was killed, and its lease runs",
    638: "buckets without a backup move to a server that is killed between two reports",
    1043: "buckets without a backup move to a server that is killed before both reports",
    1187: "the server that received a bucket is lost, and the backup was killed as well",
    1262: "the server that received the copy of one that drains was killed, and another one joins",
    1682: "a server is killed long after it received buckets, while another primary has yet to report",
}


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [run_servers(seed) for seed in FRESH]


def test_no_schedule_breaks_a_promise(results: list[Result]) -> None:
    assert [(result.seed, result.complaints[0]) for result in results if result.complaints] == []


@pytest.mark.parametrize("seed", KEPT, ids=lambda seed: f"{seed}: {KEPT[seed]}")
def test_a_schedule_that_failed_once_does_not_fail_again(seed: int) -> None:
    assert run_servers(seed).complaints == ()


def test_pulls_of_a_step_see_the_pushes_of_all_steps_before_and_no_other(results: list[Result]) -> None:
    assert [setting_for(seed).by_step for seed in (1_006, 1_016)] == [True, True]
    assert [run_servers(seed).complaints for seed in (1_006, 1_016)] == [(), ()]


def test_schedules_are_eventful(results: list[Result]) -> None:
    assert sorted(result.events for result in results)[len(results) // 2] >= 2000
    assert sorted(result.generations for result in results)[len(results) // 2] >= 10
    assert len({kind for result in results for kind in result.fired}) >= 8


def test_the_same_seed_gives_the_same_trace(results: list[Result]) -> None:
    assert run_batch(FRESH[0], 1, ScheduleKind.SERVERS).results == (results[0],)
    assert results[0].trace != results[1].trace


def test_schedules_differ_in_what_they_are_about() -> None:
    settings = [setting_for(seed) for seed in range(12)]
    assert {setting.servers for setting in settings} == {2, 3, 4}
    assert {setting.workers for setting in settings} == {1, 3}
    assert {setting.single for setting in settings} == {True, False}
    scheduled = {fault.kind for seed in range(60) for fault in schedule_of(ScheduleKind.SERVERS, seed)}
    assert scheduled == {*SERVERS}


# ------------------------------------------------------------------------------- the checks see what is wrong


@pytest.fixture
def calm() -> ServerSimulation:
    """Return a schedule without faults, some seconds after its start."""
    sim = ServerSimulation(ServerSetting(seed=1, servers=2, workers=1))
    sim.run(20.0, lambda: False)
    assert sim.checks.complaints == []
    assert sim.workers[0].done > 5
    return sim


def server_with(sim: ServerSimulation, bucket: int) -> SimulatedServer:
    name = sim.layout.copies(bucket).primary
    assert name is not None
    return sim.servers[name]


def add_to_rows(server: SimulatedServer, buckets: Buckets, value: float) -> None:
    rows = server.copies.rows("t")
    ids, block = rows.extract(buckets)
    rows.update(ids, np.full_like(block, -value), np.ones((len(ids), 1), np.float32))


def complaint(sim: ServerSimulation) -> str:
    sim.heal()
    sim.run(200.0, sim.ended)
    if not sim.checks.complaints:
        sim.checks.finally_()
    return sim.checks.complaints[0] if sim.checks.complaints else ""


def test_a_calm_schedule_ends_without_a_complaint(calm: ServerSimulation) -> None:
    assert complaint(calm) == ""
    assert calm.checks.lost == 0


def test_a_push_that_is_applied_twice_is_found(calm: ServerSimulation) -> None:
    for server in calm.servers.values():
        add_to_rows(server, np.arange(BUCKETS), 1.0)
    assert "applied" in complaint(calm)


def test_a_push_that_one_copy_lost_is_found(calm: ServerSimulation) -> None:
    for server in calm.servers.values():
        assert server.roles is not None
        add_to_rows(server, np.flatnonzero(server.roles.backup), -1.0)
    assert "acknowledged pushes" in complaint(calm)


def test_an_acknowledgement_without_the_newest_primary_is_found(calm: ServerSimulation) -> None:
    bucket = 5
    backup = calm.layout.copies(bucket).backup
    assert backup is not None
    update = Update("w0", 10**6, np.asarray([bucket]), np.asarray([-1]), ())
    calm.checks.acknowledged(calm.servers[backup], calm.layout.number, update)
    assert "does not have it" in calm.checks.complaints[0]


def test_a_layout_that_drops_the_copies_of_a_bucket_is_found(calm: ServerSimulation) -> None:
    assert calm.job is not None
    assert calm.job.ps is not None
    before = calm.job.ps
    used = np.flatnonzero(calm.checks._acknowledged["w0"])[0]
    server_with(calm, int(used)).copies.drop(np.asarray([used]))
    layout = before.layout
    calm.checks.layout_changed(before, layout)
    assert calm.checks.complaints != []


def test_a_job_that_does_not_come_to_rest_is_found(calm: ServerSimulation) -> None:
    calm.checks.finally_()
    assert "pushes left" in calm.checks.complaints[0]


def test_a_server_that_was_cut_off_past_its_lease_acknowledges_nothing_alone() -> None:
    story: list[str] = []
    cut = [fault for fault in schedule_of(ScheduleKind.SERVERS, 0) if fault.kind is FaultKind.PARTITION]
    assert run_servers(0, tuple(cut), story).complaints == ()


# --------------------------------------------------------------------------------------- which buckets are open


def test_a_bucket_is_open_while_its_backup_and_its_reported_copy_keep_up(calm: ServerSimulation) -> None:
    layout = calm.layout
    incoming = tuple(2 if at == 0 else NONE for at in layout.primary)
    filled = replace(layout, servers=(*layout.servers, ServerAddress(MemberId("ps-9"), "x:1")), incoming=incoming)
    roles = BucketRoles(filled, MemberId(layout.ids[0]))
    everything = np.ones(BUCKETS, np.bool_)
    half = np.arange(BUCKETS) % 2 == 0
    assert not roles.open_buckets({2: everything}, reported=False).any(), "the backup is not connected"
    assert (roles.open_buckets({1: everything}, reported=False) == roles.primary).all()
    assert not roles.open_buckets({1: everything}, reported=True).any(), "the filled copy is not connected"
    assert (roles.open_buckets({1: everything, 2: half}, reported=True) == roles.primary & half).all()
    assert roles.are_filled({2: everything})
    assert not roles.are_filled({2: half})
    assert not roles.are_filled({1: everything})
