"""The bits program on a small scale, and whether its table would notice anything."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bits.__main__ import choose
from bits.pieces import FAULTS, RESIZED, Piece, Row, in_order, pieces, scheduled
from bits.shapes import EVEN, LESSONS, NOTHING, ODD, PRIME, SHAPES, plain
from bits.table import Table
from chaos.faults import KINDS, Fault
from chaos.pace import PACE_LAST_S, PACE_S, pace_s
from chaos.probe import STRUCK
from pliant.chaos.fault_kinds import FaultKind

TESTS = Path(__file__).parents[1]
FINAL = {"weights": "11", "buffers": "22", "optimizer": "33", "metrics": "44"}


def bits(*args: str) -> dict[str, Any]:
    """The object on the last line. What the program printed is shown if it did not go well."""
    done = subprocess.run([sys.executable, "-m", "bits", *args], cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_workers_and_a_schedule_of_faults_come_to_the_bits_of_one_alone() -> None:
    found = bits("--schedules", "2", "--row", "cnn, even, 2 workers", "--row", "cnn, even, schedule 1")
    assert found["ok"]
    assert (found["same_bits"], found["of"], found["schedules"]) == (3, 3, 1)
    assert found["faults"] >= 1
    assert found["different_without"] == {"cnn": 2}


def row(who: str = "alone", *, shape: str = "even", faults: tuple[Fault, ...] = (), **other: Any) -> Row:
    task = EVEN.task("cnn")
    kind = next((kind for kind in ("alone", "schedule") if who.startswith(kind)), "sized")
    piece = Piece("cnn", shape, who, plain(task) if "plain" in who else task, kind, faults=faults)
    return Row(piece, **{"hashes": FINAL, "faults": list(faults), **other})


def judged(*rows: Row) -> dict[str, Any]:
    table = Table()
    for each in rows:
        table.add(each)
    return table.judged()


def test_a_table_of_the_same_bits_is_in_order() -> None:
    found = judged(row(), row("2 workers"), row("schedule 0", faults=(Fault(FaultKind.KILL, effect="lost"),)))
    assert (found["ok"], found["same_bits"], found["of"], found["schedules"]) == (True, 3, 3, 1)
    assert found["kinds"] == {"kill": 1}


@pytest.mark.parametrize("name", FINAL)
def test_one_bit_of_anything_is_noticed(name: str) -> None:
    found = judged(row(), row("2 workers", hashes={**FINAL, name: "10"}))
    assert not found["ok"]
    assert found["broken"] == [f"cnn, even, 2 workers: other bits than alone: {name}"]


def test_a_row_without_hashes_or_without_a_lone_worker_is_broken() -> None:
    assert not judged(row(), row("2 workers", hashes={}))["ok"]
    assert not judged(row(), row("2 workers", shape="odd slots"))["ok"]


def test_what_a_training_found_broken_is_reported() -> None:
    assert judged(row(), row("2 workers", broken=["it hung"]))["broken"] == ["cnn, even, 2 workers: it hung"]


def test_plain_training_must_differ() -> None:
    same = judged(row(), row("alone, plain"), row("2 workers, plain"))
    assert len(same["broken"]) == 1
    assert "deterministic=False" in same["broken"][0]
    other = judged(row(), row("alone, plain"), row("2 workers, plain", hashes={**FINAL, "weights": "10"}))
    assert (other["ok"], other["different_without"]) == (True, {"cnn": 2})


def test_fifty_schedules_have_faults_of_every_kind_in_every_place_for_every_model() -> None:
    found = scheduled(0, 50)
    faults = [fault for piece in found for fault in piece.faults]
    kinds = Counter(fault.kind for fault in faults)
    assert len(faults) == 50 * FAULTS
    assert min(kinds[kind] for kind in KINDS) >= 10
    assert {fault.aim for fault in faults} >= set(STRUCK)
    assert {(piece.lesson, piece.shape) for piece in found} == {(a, b.name) for a in LESSONS for b in SHAPES}
    assert len({piece.seed for piece in found}) == 50


def test_the_same_seed_makes_the_same_schedules() -> None:
    def told(seed: int) -> list[object]:
        return [
            (each.who, each.seed, [(fault.kind, fault.aim, fault.during) for fault in each.faults])
            for each in scheduled(seed, 20)
        ]

    assert told(3) == told(3) != told(4)


def test_every_row_has_a_lone_worker_to_be_compared_with() -> None:
    everything = pieces(0, 50)
    lone = {(each.task.lesson, each.task) for each in everything if each.kind == "alone"}
    assert {(each.task.lesson, each.task) for each in everything} == lone
    assert len({str(each) for each in everything}) == len(everything)


def test_the_cuts_are_as_their_names_say() -> None:
    def is_prime(number: int) -> bool:
        return number > 1 and all(number % factor for factor in range(2, number))

    assert ODD.slots % 2 == 1
    assert is_prime(PRIME.samples)
    assert NOTHING.samples % NOTHING.batch != 0 != NOTHING.batch % NOTHING.slots
    assert replace(ODD.task("mlp"), slots=8, samples=256) == EVEN.task("mlp")


def test_rows_are_chosen_with_those_they_are_compared_with() -> None:
    chosen = choose(pieces(0, 5), ["mlp, odd slots, 2 workers"])
    assert [str(each) for each in chosen] == ["mlp, odd slots, alone", "mlp, odd slots, 2 workers"]


def test_sizes_must_have_come_in_order() -> None:
    assert in_order(RESIZED, [1, 2, 3, 2, 3, 4])
    assert not in_order(RESIZED, [1, 2, 4, 2, 3])


def test_a_job_waits_for_its_story_and_longest_at_its_end() -> None:
    assert pace_s(step=10, steps=96, told=0.5) == PACE_S
    assert pace_s(step=40, steps=96, told=0.1) > PACE_S
    assert pace_s(step=70, steps=96, told=0.1) < pace_s(step=94, steps=96, told=0.1) == PACE_LAST_S
