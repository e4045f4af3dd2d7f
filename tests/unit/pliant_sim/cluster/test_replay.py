"""Replays of small workloads, with results that can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pliant_sim.cluster.policies import POLICIES
from pliant_sim.cluster.profiles import EPOCHS, Profile
from pliant_sim.cluster.replay import Nodes, WorkloadReplay
from pliant_sim.cluster.workloads import JobSpecimen, authors_results, percentile, read_workloads


def job(name: str, at: float, size: int, steps: float, priority: int = 0) -> JobSpecimen:
    """Return a job whose speed is its number of workers."""
    speeds = tuple((n, float(n)) for n in range(1, 65))
    return JobSpecimen(name, at, size, 64, steps, lambda _, workers: float(workers), speeds, priority)


def test_a_single_job_takes_its_steps_and_one_start() -> None:
    outcome = WorkloadReplay([job("a", 0.0, 4, 400.0)], POLICIES["first-come"], cost_s=5.0).run()
    assert outcome.jct == {"a": pytest.approx(105.0)}
    assert outcome.changes == 1
    assert outcome.makespan == pytest.approx(105.0)
    outcome = WorkloadReplay([job("a", 0.0, 4, 6400.0)], POLICIES["ours"], cost_s=5.0).run()
    assert outcome.jct == {"a": pytest.approx(105.0)}


def test_first_come_waits_in_order_and_static_overtakes() -> None:
    jobs = [job("a", 0.0, 40, 4000.0), job("b", 1.0, 40, 400.0), job("c", 2.0, 10, 100.0)]
    strict = WorkloadReplay(jobs, POLICIES["first-come"], cost_s=0.0).run()
    assert strict.jct == {"a": pytest.approx(100.0), "b": pytest.approx(109.0), "c": pytest.approx(108.0)}
    loose = WorkloadReplay(jobs, POLICIES["static"], cost_s=0.0).run()
    assert loose.jct["c"] == pytest.approx(10.0)


def test_tiresias_preempts_a_job_that_had_much_service() -> None:
    jobs = [job("long", 0.0, 64, 64 * 4000.0), job("short", 3000.0, 64, 64 * 10.0)]
    outcome = WorkloadReplay(jobs, POLICIES["tiresias"], cost_s=0.0).run()
    assert outcome.jct["short"] == pytest.approx(10.0)
    assert outcome.jct["long"] == pytest.approx(4010.0)


def test_equal_share_divides_the_slots() -> None:
    jobs = [job("a", 0.0, 1, 3200.0), job("b", 0.0, 1, 3200.0)]
    outcome = WorkloadReplay(jobs, POLICIES["equal share"], cost_s=0.0).run()
    assert outcome.jct == {"a": pytest.approx(100.0), "b": pytest.approx(100.0)}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_urgent_jobs_that_wait_are_counted_as_inversion(policy: str) -> None:
    jobs = [job("low", 0.0, 64, 64 * 100.0), job("high", 50.0, 64, 64 * 10.0, priority=5)]
    outcome = WorkloadReplay(jobs, POLICIES[policy], cost_s=0.0).run()
    waits = policy in ("first-come", "static", "tiresias")
    assert outcome.inversion_s == (pytest.approx(50 * 64.0) if waits else 0.0)


def test_jobs_are_packed_on_few_machines() -> None:
    nodes = Nodes(3)
    nodes.place("a", 6)
    nodes.place("b", 2)
    assert (nodes.machines("a"), nodes.machines("b")) == (2, 1)
    nodes.place("c", 4)
    assert nodes.machines("c") == 1
    nodes.place("c", 0)
    nodes.place("b", 6)
    assert nodes.machines("b") == 2


def test_the_percentile_is_a_value_that_occurred() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([float(x) for x in range(1, 201)], 0.99) == 198.0


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Write measurements in the form of the published files: each worker computes 100 samples a second."""
    for name, epochs in EPOCHS.items():
        folder = tmp_path / "pollux-osdi21" / "traces" / name
        folder.mkdir(parents=True)
        places = ["placement,local_bsz,step_time,sync_time"]
        for placement in ("1", "2", "3", "4", "44"):
            workers = sum(map(int, placement))
            places += [f"{placement},{local},{local / 100 + workers / 100},{workers / 100}" for local in (10, 20)]
        (folder / "placements.csv").write_text("\n".join(places))
        scale = ["num_nodes,num_replicas,local_bsz,step_time,sync_time", "4,16,10,0.26,0.16", "4,16,20,0.36,0.16"]
        (folder / "scalability.csv").write_text("\n".join(scale))
        rows = ["progress,iteration,metric,grad_sqr,grad_var", *(f"1,{10 * (n + 1)},0,0,0" for n in range(epochs))]
        (folder / "validation-160.csv").write_text("\n".join(rows))
    loads = tmp_path / "pollux-osdi21" / "workloads"
    loads.mkdir()
    (loads / "workload-1.csv").write_text(
        "name,time,application,num_replicas,batch_size\nbert-0,5,bert,8,160\nncf-1,9,ncf,1,160\n"
    )
    for policy in ("tiresias", "optimus", "pollux"):
        folder = tmp_path / "pollux-osdi21" / "results-jobload" / f"{policy}-1.0"
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({"jcts": {"workload-1": {"a": 1, "b": 3}}, "mean": 2.0}))
    return tmp_path


def test_speeds_come_from_the_measured_shapes_and_between_them(traces: Path) -> None:
    profile = Profile(traces / "pollux-osdi21" / "traces" / "bert")
    assert profile.steps(160) == 20
    assert profile.size_max(160) == 16
    assert 1 / profile.steps_a_second(160, 2, 8) == pytest.approx(0.20 + 0.08)
    assert 1 / profile.steps_a_second(160, 1, 1) == pytest.approx(8 * 0.20 + 0.01)  # eight passes of 20 samples
    assert 1 / profile.steps_a_second(160, 3, 12) == pytest.approx(0.14 + 0.12)  # between 8 on 2 and 16 on 4
    assert 1 / profile.steps_a_second(160, 2, 7) == pytest.approx(2 * 0.12 + 0.08)  # the nearest with 2 machines
    assert 1 / profile.steps_a_second(160, 9, 16) == pytest.approx(0.10 + 0.16)  # no more than 4 were measured


def test_a_workload_is_read_with_its_models(traces: Path) -> None:
    bert, ncf = read_workloads(traces, 1.0, urgent_every=2)["workload-1"]
    assert (bert.size, bert.size_max, bert.steps, bert.priority) == (8, 16, 20.0, 10)
    assert (ncf.size_max, ncf.steps, ncf.priority, ncf.at) == (1, 100.0, 0, 9.0)
    assert bert.speed(2, 8) == dict(bert.speeds)[8]
    assert authors_results(traces, 1.0)["pollux"] == (2.0, 3.0)
