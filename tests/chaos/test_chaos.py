"""The chaos programs on a small scale, and whether what they conclude with would notice anything."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chaos import everything, extra_faults, seeds
from chaos.campaign import plan
from chaos.checks import idle_ranks, spread
from chaos.chronicle import Scene
from chaos.everything import OWN_SHARES, SHARES, planned_for
from chaos.faults import KINDS
from chaos.probe import STRUCK, Place, Probe, Whereabouts, Wish
from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.plan import Cut
from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind

TESTS = Path(__file__).parents[1]


def chaos(*args: str) -> dict[str, Any]:
    """The object on the last line. What the program printed is shown if it did not go well."""
    done = subprocess.run(
        [sys.executable, "-m", "chaos", *args], cwd=TESTS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_training_job_keeps_its_promises_through_some_faults() -> None:
    found = chaos("train", "--faults", "5", "--deterministic", "0", "--alone")
    assert found["ok"]
    assert found["faults"] >= 5
    assert found["audit"]["lost"] == found["audit"]["repeated"] == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_jobs_keep_all_promises_through_some_faults_of_every_kind() -> None:
    found = chaos("all", "--faults", "12", "--no-rerun")
    assert found["ok"]
    for job in found["jobs"].values():
        assert job["same_bits"]
        assert job["audit"]["lost"] == job["audit"]["repeated"] == 0
        assert len(job["left"]["checkpoints"]) <= 2


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_of_everything_has_every_kind_and_every_cut(seed: int) -> None:
    faults = planned_for(210, random.Random(seed), SHARES, 3.0)
    assert set(Counter(fault.kind for fault in faults)) == set(extra_faults.KINDS)
    cuts = Counter((fault.cut, fault.lasts_s > 3.0) for fault in faults if fault.kind is FaultKind.PARTITION)
    assert min(cuts[cut, long] for cut in Cut for long in (True, False)) >= 1
    own = planned_for(90, random.Random(seed), {kind: share for kind, share in OWN_SHARES.items() if share}, None)
    assert not any(fault.lasts_s > extra_faults.OWN_TTL_S / 2 for fault in own)


def test_jobs_of_jax_and_keras_share_the_faults_if_their_environment_is_there() -> None:
    assert everything.Wish(300, 0).parts == {"apart": 210, "own": 90, "jax": 0, "keras": 0}
    shared = everything.Wish(300, 0, programs=TESTS).parts
    assert sum(shared.values()) == 300
    assert shared["jax"] == shared["keras"] > 0
    assert everything.Wish(60, 0, arrays=1.0, programs=TESTS).parts == {"apart": 0, "own": 0, "jax": 30, "keras": 30}


def test_seeds_are_kept_once_and_read_without_what_is_said_about_them(tmp_path: Path) -> None:
    file = tmp_path / "seeds.txt"
    file.write_text("# for people\n3 60  # a lost part\n")
    seeds.keep(4, 300, file)
    seeds.keep(3, 60, file)
    assert seeds.read(file) == [seeds.Seed(3, 60), seeds.Seed(4, 300)]
    seeds.read()  # the real file can be


@pytest.mark.parametrize("seed", range(5))
def test_a_plan_has_every_kind_and_every_place(seed: int) -> None:
    faults = plan(200, random.Random(seed))
    kinds = Counter(fault.kind for fault in faults)
    places = Counter(fault.aim for fault in faults if fault.kind is FaultKind.KILL)
    assert len(faults) == 200
    assert min(kinds[kind] for kind in KINDS) >= 20
    assert min(places[place] for place in STRUCK) >= 5
    assert sum(fault.during or fault.aim in (Place.WIRING, Place.TRANSFER) for fault in faults) >= 40


def test_the_same_seed_plans_the_same_faults() -> None:
    def told(seed: int) -> list[str]:
        return [f"{fault} aimed at {fault.aim}, {fault.during}" for fault in plan(50, random.Random(seed))]

    assert told(3) == told(3) != told(4)


def test_a_worker_s_whereabouts_are_read_by_another(tmp_path: Path) -> None:
    probe, seen = Probe(tmp_path), Whereabouts(tmp_path, os.getpid())
    with probe.inside(Place.APPLY):
        assert seen.place is Place.APPLY
        with probe.beside(Place.WIRING):
            assert (seen.place, seen.changing) == (Place.WIRING, True)
    assert (seen.place, seen.changing, seen.held) == (Place.BETWEEN, False, None)
    probe.begin_step(70_000)
    assert seen.step == 70_000


def test_a_wish_reaches_everybody(tmp_path: Path) -> None:
    ours, theirs = Wish(tmp_path), Wish(tmp_path)
    ours.pace_s, ours.armed = 0.25, Place.TRANSFER
    assert (theirs.pace_s, theirs.armed) == (0.25, Place.TRANSFER)


def test_the_spread_of_four_runs_holds_one_more_of_the_same_kind_almost_always() -> None:
    chance = random.Random(1)
    inside = 0
    for _ in range(2000):
        *four, one = (chance.gauss(0.5, 0.01) for _ in range(5))
        low, high = spread(four)
        inside += low <= one <= high
    assert inside >= 1990


@pytest.mark.parametrize(("size", "idle"), [(1, 0), (2, 1), (3, 2), (4, 3)])
def test_in_the_short_step_of_an_epoch_most_ranks_have_nothing_to_do(size: int, idle: int) -> None:
    grid = Grid(2000, 64, 32, 3)
    assert [idle_ranks(grid, step, size) for step in (1, 31, 32, 33, 64)] == [0, 0, idle, 0, idle]


def world(number: int, *members: str) -> m.WorldFormed:
    names = tuple(map(MemberId, members))
    return m.WorldFormed(0.0, World(number, WorldKind.PLANNED, names, (1,) * len(names), GENESIS))


def test_a_scene_tells_whether_a_change_is_under_way() -> None:
    scene = Scene(live={MemberId("a"), MemberId("b")})
    scene.add(world(1, "a"))
    assert scene.change == "generation 1 formed, not entered"
    scene.add(m.WorldEntered(0.0, 1))
    assert scene.change == "a member receives the state"
    scene.add(m.HoldersChanged(0.0, 1, frozenset({MemberId("a")})))
    assert (scene.change, scene.ranked, scene.able) == ("", ["a"], ["a"])
    scene.add(world(2, "a", "b"))
    scene.add(m.WorldEntered(0.0, 2))
    assert (scene.change, scene.ranked, scene.able) == ("a member receives the state", ["a", "b"], ["a"])
    scene.add(m.WorldBroken(0.0, 2, True, "a test"))
    assert scene.change == "generation 2 broken"


def test_every_place_that_is_observed_exists() -> None:
    """In a process of its own: the functions stay replaced."""
    body = """
from chaos.probe import Probe, install
from pliant.torch.reduce import deterministic, floating
from pliant.train.live.arrays import reducer, tree_reducer
install(
    Probe.__new__(Probe),
    *(floating.FloatingReducer, deterministic.DeterministicReducer),
    *(reducer.FloatingArrayReducer, tree_reducer.TreeArrayReducer),
)
"""
    done = subprocess.run([sys.executable, "-c", body], cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
