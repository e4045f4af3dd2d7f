"""The laws of goodput, over logs that the simulator wrote: real decisions, random faults."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.cli.audit.command import LedgerHistory
from pliant.core.accounting.goodput import Goodput
from pliant.core.data.audit import audit
from pliant.core.messages import Event
from pliant.stores.base import Store
from pliant.wire.api import EVENTS
from pliant_sim.faults.schedule import heal, launch_schedule, live_schedule, strike_launch, strike_live
from pliant_sim.launch import world as launch_world
from pliant_sim.launch.world import LaunchSimulation
from pliant_sim.live.world import LiveSimulation, setting_for
from pliant_sim.run import FAULTS_UNTIL_S

PATIENCE_S = 120.0
SEEDS = st.integers(min_value=0, max_value=100_000)


def _log(store: Store) -> list[Event]:
    found: list[Event] = []
    while page := store.events("sim", len(found), 1000):
        found += [EVENTS.decode(entry.data) for entry in page]
    return found


def _live(seed: int) -> LiveSimulation:
    sim = LiveSimulation(setting_for(seed))
    for fault in live_schedule(seed, FAULTS_UNTIL_S):
        sim.after(fault.at_s, strike_live, sim, fault)
    sim.run(FAULTS_UNTIL_S, sim.ended)
    heal(sim)
    sim.run(FAULTS_UNTIL_S + PATIENCE_S, sim.ended)
    return sim


def _launched(seed: int) -> LaunchSimulation:
    sim = LaunchSimulation(launch_world.setting_for(seed))
    for fault in launch_schedule(seed, FAULTS_UNTIL_S):
        sim.after(fault.at_s, strike_launch, sim, fault)
    sim.run(FAULTS_UNTIL_S, lambda: bool(sim.checks.complaints))
    heal(sim)
    sim.run(FAULTS_UNTIL_S + PATIENCE_S, sim.ended)
    return sim


def _holds(found: Goodput, until: float) -> None:
    for worker in found.workers(until):
        assert min(worker.seconds.values()) >= 0.0
        assert sum(worker.seconds.values()) == pytest.approx(worker.counted_until - worker.started_at, abs=1e-6)
        assert found.created_at <= worker.started_at <= worker.counted_until <= until


def _folded(events: list[Event]) -> Goodput:
    """The fold over all of it; the law is looked at on the way, too."""
    found = Goodput()
    for turn, event in enumerate(events):
        found.add(event)
        if turn % 7 == 0:
            _holds(found, found.now + 1.0)
    _holds(found, found.now)
    assert (
        -1e-6 <= found.training_s() <= found.now - found.created_at + 1e-6
    )  # what a break takes back was given before
    assert all(
        0.0 <= change.pause_s <= change.at - found.created_at for change in found.progress.changes if change.pause_s
    )
    return found


@settings(max_examples=10, deadline=None)
@given(seed=SEEDS)
def test_the_seconds_of_live_workers_add_up_and_recomputed_samples_are_the_ledgers(seed: int) -> None:
    sim = _live(seed)
    events = _log(sim.store)
    done = _folded(events).progress
    history = LedgerHistory()
    for event in events:
        history.add(event)
    head = history.head.step if history.head is not None else 0
    shown = audit(sim.terms.grid, sim.order, history.lines, head=history.head)
    assert (done.steps, done.samples) == (head, shown.samples)
    # What was rolled back was computed again, but for what is still ahead.
    assert done.recomputed_steps == shown.rolled_back - (done.highest_step - head)
    committed = {line.lineage for line in history.committed().values()}
    off = [line for line in history.lines if line.lineage not in committed and line.lineage.step <= head]
    ahead = {line.lineage.step for line in history.lines if line.lineage.step > head}
    beyond = [line for line in history.lines if line.lineage.step in ahead]
    grid = sim.terms.grid
    assert done.recomputed_samples == sum(line.samples for line in (*off, *beyond)) - sum(map(grid.size, ahead))


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_the_seconds_of_launched_workers_add_up(seed: int) -> None:
    _folded(_log(_launched(seed).store))
