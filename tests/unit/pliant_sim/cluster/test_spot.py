"""A job on spot machines: published traces are read, and the work that is kept is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pliant_sim.cluster.spot_replay import Costs, ElasticReplay, RestartReplay
from pliant_sim.cluster.spot_traces import SpotTrace, read_spot_traces

FREE = Costs(change_s=0.0, loss_s=0.0, restart_s=0.0, worker_s=0.0, checkpoint_s=100.0)


def machines(*names: str) -> frozenset[str]:
    return frozenset(names)


def trace(*changes: tuple[float, frozenset[str]], end_s: float) -> SpotTrace:
    return SpotTrace("made", changes, end_s)


STEADY = trace((0.0, machines("a", "b")), end_s=1000.0)
ONE_GOES = trace((0.0, machines("a", "b")), (250.0, machines("a")), end_s=1000.0)
ALL_GO = trace((0.0, machines("a", "b")), (250.0, machines()), (600.0, machines("a", "b")), end_s=1000.0)


@pytest.mark.parametrize("replay", [ElasticReplay, RestartReplay])
def test_undisturbed_machines_keep_all_work(replay: type[ElasticReplay] | type[RestartReplay]) -> None:
    assert STEADY.machine_s == 2000.0
    assert replay(STEADY, FREE).run().work == 2000.0


def test_a_lost_machine_costs_a_pause_and_no_work_while_another_one_has_the_state() -> None:
    kept = ElasticReplay(ONE_GOES, Costs(0.5, 10.0, 0.0, 0.0, 100.0)).run()
    assert (kept.losses, kept.restarts, kept.repeated) == (1, 1, 0.0)
    assert kept.work == ONE_GOES.machine_s - 2 * 0.5 - 10.0


def test_a_restart_after_a_loss_repeats_the_work_since_the_checkpoint() -> None:
    kept = RestartReplay(ONE_GOES, Costs(0.0, 0.0, 30.0, 0.0, 100.0)).run()
    assert (kept.losses, kept.restarts) == (1, 2)
    assert kept.repeated == 2 * 50.0  # since second 200
    assert kept.work == ONE_GOES.machine_s - 2 * 50.0 - 2 * 30.0 - 30.0


def test_a_loss_of_all_machines_sends_both_back_to_the_checkpoint() -> None:
    elastic, restarted = ElasticReplay(ALL_GO, FREE).run(), RestartReplay(ALL_GO, FREE).run()
    assert (elastic.repeated, restarted.repeated) == (100.0, 100.0)
    assert elastic.work == restarted.work == ALL_GO.machine_s - 100.0


def test_a_new_machine_helps_when_its_worker_has_started() -> None:
    grown = trace((0.0, machines("a")), (100.0, machines("a", "b")), end_s=200.0)
    kept = ElasticReplay(grown, Costs(1.0, 0.0, 0.0, 30.0, 1000.0)).run()
    assert (kept.planned, kept.work) == (1, (100 - 30 - 1) + 30 + 2 * (70 - 1))
    waits = RestartReplay(grown, Costs(0.0, 0.0, 10.0, 0.0, 150.0)).run()
    assert waits.work == (150 - 10) + 2 * (50 - 10)  # it grows after the checkpoint of second 150


def test_a_machine_that_goes_before_its_worker_has_started_changes_nothing() -> None:
    short = trace((0.0, machines("a")), (100.0, machines("a", "b")), (110.0, machines("a")), end_s=200.0)
    kept = ElasticReplay(short, Costs(1.0, 5.0, 0.0, 30.0, 1000.0)).run()
    assert (kept.planned, kept.losses, kept.work) == (0, 0, 200 - 30 - 1)


def test_the_published_formats_are_read(tmp_path: Path) -> None:
    bamboo = tmp_path / "bamboo" / "traces"
    bamboo.mkdir(parents=True)
    for kind in ("p3", "g4dn"):
        (bamboo / f"{kind}-trace.csv").write_text("0,add,n1\n0,add,n2\n60000,remove,n1\n120000,add,n3\n")
    parcae = tmp_path / "parcae" / "aws" / "traces" / "resnet152"
    parcae.mkdir(parents=True)
    lines = [
        [0, "add", {"nodes": ["n1", "n2"], "duration": 60000}],
        [60000, "no-op", {"nodes": [], "duration": 60000}],
        [120000, "remove", {"nodes": ["n2"], "duration": 60000}],
    ]
    for name in ("hh_55_65", "hl_15_25", "lh_80_90", "ll_10_11"):
        (parcae / f"trace_{name}.txt").write_text("\n".join(map(json.dumps, lines)))
    for size, counts in (("16-node", [0, 2, 2, 1]), ("4-node", [1, 1])):
        sky = tmp_path / "skypilot" / "availability" / size / "day"
        sky.mkdir(parents=True)
        (sky / "east_v100_1.json").write_text(json.dumps({"metadata": {"gap_seconds": 10}, "data": counts}))
    p3, _, hh, *_, sixteen, four = read_spot_traces(tmp_path)
    assert (p3.name, p3.end_s, p3.machine_s) == ("bamboo p3", 120.0, 2 * 60 + 60)
    assert [len(up) for _, up in p3.changes] == [2, 1, 2]
    assert (hh.name, hh.end_s, hh.machine_s) == ("parcae hh", 180.0, 2 * 120 + 60)
    assert (sixteen.name, sixteen.end_s, sixteen.machine_s) == ("skypilot 16-node east", 40.0, 2 * 20 + 10)
    assert (four.changes, four.end_s) == (((0.0, frozenset({"m0"})),), 20.0)
