"""`pliant local`: agents that come and go by schedule and by command, and nothing left however it ends."""

import json
import os
import signal
from pathlib import Path

import pytest

from e2e.launched import TRAINER
from e2e.running import wait_for
from namespaces.cluster import Cluster
from pliant_local import network
from pliant_local.trainer import read_step
from unit.cli.program import environment, real

WORKERS = ("--workers", "1:6", "--target", "2", "--nproc-per-node", "1")  # so that each agent is needed
PACED = (*WORKERS, str(TRAINER), "0.02")
LONG = (*WORKERS, str(TRAINER), "0.05", "1000")  # the test does not wait for its end
LOOPBACK = ("--network", "loopback")

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]  # a dozen processes each, on machines that are shared
needs_namespaces = pytest.mark.skipif(bool(network.namespaces_unavailable()), reason=network.namespaces_unavailable())


def test_a_cluster_trains_a_job_to_its_end(tmp_path: Path) -> None:
    both = ("--workers", "2", "--nproc-per-node", "1")  # neither begins before the other has come
    with Cluster(tmp_path, *LOOPBACK, "--agents", "2", *both, str(TRAINER), "0.02") as cluster:
        assert cluster.ended() == 0
    assert "[pliant] 0 s: 2 agents" in cluster.lines
    assert cluster.lines.count("[pliant] the job is finished: all 20 steps are committed") == 1, (
        "once, not by every agent"
    )
    for name in ("agent-1", "agent-2"):
        assert f"[pliant] {name} ended with exit code 0" in cluster.lines
        assert any(line.startswith(f"[{name}-") and "joined as" in line for line in cluster.lines)
        assert (tmp_path / "local" / "local" / "agents" / name / "jobs" / "demo").is_dir()
    assert cluster.leftovers() == []
    written = cluster.pliant("logs", "demo").out
    assert written.count("joined as agent-") == 2, "what workers wrote is in one place, whosever they are"
    assert cluster.pliant("audit", "demo").code == 0, "the store stays, and answers as that of any job"


def test_agents_come_and_go_by_schedule(tmp_path: Path) -> None:
    with Cluster(tmp_path, *LOOPBACK, "--agent-schedule", "0:2,2:3,4:1", "--for", "60", *LONG) as cluster:
        cluster.sees("[pliant] 2 s: 3 agents")
        cluster.sees("[pliant] 4 s: 1 agent")
        cluster.sees("[pliant] agent-3 ended")
        cluster.sees("[pliant] agent-2 ended")
        assert cluster.agents() == {"agent-1": "running", "agent-2": "ended", "agent-3": "ended"}
        assert cluster.pliant("cancel", "demo").code == 0
        assert cluster.ended() == 1
    assert "pliant: Job demo is cancelled: requested with pliant cancel" in cluster.lines
    cluster.left_nothing()


def test_agents_come_and_go_by_command(tmp_path: Path) -> None:
    with Cluster(tmp_path, *LOOPBACK, "--agents", "1", "--lease-ttl-s", "1", *LONG) as cluster:
        cluster.up()
        assert cluster.do("add") == {"agent": "agent-2", "address": "127.0.0.1"}
        cluster.until(lambda: set(cluster.active().values()) == {"agent-1", "agent-2"}, "workers on both")
        assert cluster.do("remove", "agent-1") == {"agent": "agent-1"}
        cluster.sees("agent-1 ended with exit code 143")
        cluster.until(lambda: set(cluster.active().values()) == {"agent-2"}, "workers on the new one alone")
        assert cluster.do("add")["agent"] == "agent-3"
        cluster.until(lambda: any(each.startswith("agent-3") for each in _members(cluster)), "a worker on the third")
        assert cluster.do("kill", "agent-2") == {"agent": "agent-2"}
        cluster.sees("agent-2 ended with signal 9")
        cluster.until(lambda: set(cluster.active().values()) == {"agent-3"}, "workers on the last one alone")
        assert cluster.do("remove") == {"agent": "agent-3"}
        cluster.sees("agent-3 ended with exit code 143")
        assert cluster.runs, "who removes the last one may add another"
        refusals = {
            ("remove",): "No agent is left.",
            ("kill", "agent-9"): "There is no agent agent-9. Running agents: none.",
        }
        for command, why in refusals.items():
            refused = cluster.pliant("local", *command)
            assert (refused.code, refused.err) == (3, f"pliant: {why}\n")
        table = cluster.pliant("local", "list").out.splitlines()
        assert table[0].split() == ["AGENT", "STATE", "ADDRESS", "AGE"]
        assert [row.split()[:3] for row in table[1:]] == [
            ["agent-1", "ended", "(143)"],
            ["agent-2", "ended", "(-9)"],
            ["agent-3", "ended", "(143)"],
        ]
        cluster.signal(signal.SIGINT)
        assert cluster.ended() == 130
    cluster.left_nothing()


def test_a_script_that_knows_nothing_of_us_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Agents come, leave and are killed; every time the others are relaunched, and the last step is reached."""
    folder = tmp_path / "checkpoint"
    trainer = ("-m", "pliant_local.trainer", "--steps", "500", "--step-s", "0.2", "--checkpoint", str(folder))
    workers = (
        "--mode",
        "relaunch",
        "--workers",
        "1:4",
        "--target",
        "2",
        "--nproc-per-node",
        "1",
        "--max-restarts",
        "0",
    )
    with Cluster(
        tmp_path, *LOOPBACK, "--agents", "2", "--lease-ttl-s", "1", *workers, *trainer, "--hurry", str(folder / "hurry")
    ) as cluster:
        cluster.sees(" world 2")
        for number, change in enumerate((("add",), ("remove", "agent-1"), ("add",), ("kill", "agent-2")), 1):
            worlds, step = cluster.output.count(" launched: "), read_step(folder)
            cluster.do(*change)
            if number % 2 == 0:
                cluster.until(lambda worlds=worlds: cluster.output.count(" launched: ") > worlds, "a launch")  # type: ignore[misc]
            cluster.until(lambda step=step: read_step(folder) > step, "more steps")  # type: ignore[misc]
        cluster.until(lambda: set(cluster.active().values()) == {"agent-3", "agent-4"}, "the new ones alone")
        (folder / "hurry").touch()
        assert cluster.ended() == 0
    assert read_step(folder) == 500
    assert "[pliant] the job is finished" in cluster.output
    cluster.left_nothing()


def test_time_is_up_before_the_job_has_ended(tmp_path: Path) -> None:
    with Cluster(tmp_path, *LOOPBACK, "--agents", "1", "--for", "3", *LONG) as cluster:
        assert cluster.ended() == 124
    assert "[pliant] 3 s are over: the agents leave" in cluster.lines
    cluster.left_nothing()


def test_a_second_signal_ends_everybody_now(tmp_path: Path) -> None:
    with Cluster(tmp_path, *LOOPBACK, "--agents", "1", *LONG) as cluster:
        cluster.until(lambda: cluster.step() > 0, "a step")
        cluster.signal(signal.SIGHUP)
        cluster.sees("[pliant] SIGHUP: the agents leave within 30 s; send it again to end now")
        cluster.signal(signal.SIGHUP)
        assert cluster.ended() == 129
    cluster.left_nothing()


def test_a_killed_cluster_takes_everything_with_it(tmp_path: Path) -> None:
    with Cluster(tmp_path, *LOOPBACK, "--agents", "2", *LONG) as cluster:
        cluster.until(lambda: len(cluster.active()) == 2, "two workers")
        cluster.signal(signal.SIGKILL)
        cluster.ended()
        cluster.left_nothing()
    with Cluster(tmp_path, *LOOPBACK, "--agents", "2", "--for", "60", *LONG) as again:
        again.until(lambda: again.step() > 0, "the same job to go on")


def test_a_killed_spawner_takes_everything_with_it_and_that_is_said(tmp_path: Path) -> None:
    with Cluster(tmp_path, *LOOPBACK, "--agents", "1", *LONG) as cluster:
        cluster.until(lambda: cluster.step() > 0, "a step")
        (spawner,) = [pid for pid in _children(cluster.process.pid) if "pliant.agent.process.spawner" in _command(pid)]
        os.kill(spawner, signal.SIGKILL)
        assert cluster.ended() == 1
    assert "The process that keeps the agents was killed" in cluster.output
    cluster.left_nothing()


def test_a_killed_coordinator_is_started_again(tmp_path: Path) -> None:
    with Cluster(tmp_path, *LOOPBACK, "--agents", "1", *LONG) as cluster:
        cluster.until(lambda: cluster.step() > 0, "a step")
        endpoint = json.loads((tmp_path / "jobs" / "demo" / "endpoint.json").read_text())
        os.kill(endpoint["pid"], signal.SIGKILL)
        cluster.sees("the coordinator ended with signal 9; training goes on, and it is started again now")
        cluster.sees("the coordinator answers again")
        step = cluster.step()
        cluster.until(lambda: cluster.step() > step, "more steps")
        assert real(environment(tmp_path), "status", "demo").code == 0
        cluster.signal(signal.SIGTERM)
        assert cluster.ended() == 143
    cluster.left_nothing()


def test_two_clusters_have_two_names(tmp_path: Path) -> None:
    with Cluster(tmp_path, *LOOPBACK, "--agents", "1", *LONG) as one:
        one.up()
        assert (tmp_path / "local" / "local" / "control").stat().st_mode & 0o777 == 0o600
        second = real(environment(tmp_path), "local", *LOOPBACK, "--job", "other", *LONG)
        assert second.code == 3
        assert "A sandbox named 'local' is already running" in second.err
        with Cluster(tmp_path, *LOOPBACK, "--agents", "1", *LONG, name="other", job="other") as other:
            other.up()
            assert other.do("add")["agent"] == "agent-2"
            assert list(one.agents()) == ["agent-1"]
            same = real(environment(tmp_path), "local", "--name", "third", "--job", "demo", *LONG)
            assert same.code == 3
            assert "demo runs on this machine already" in same.err


def test_an_agent_that_cannot_work_ends_the_cluster_with_its_status(tmp_path: Path) -> None:
    with Cluster(tmp_path, *LOOPBACK, "--agents", "1", *WORKERS, str(tmp_path / "missing.py")) as cluster:
        assert cluster.ended() == 2
    assert "There is no script" in cluster.output
    cluster.left_nothing()


def test_every_line_is_an_object_for_programs(tmp_path: Path) -> None:
    with Cluster(tmp_path, *LOOPBACK, "--agents", "1", "--json", *PACED) as cluster:
        assert cluster.ended() == 0
    said = [json.loads(line) for line in cluster.lines]
    revisions = [each["revision"] for each in said if "event" in each]
    assert revisions == list(range(1, len(revisions) + 1))
    assert any(each.get("agent") == "agent-1" and "joined as" in each.get("line", "") for each in said)
    assert {"message": "agent-1 ended with exit code 0"} in said


# ------------------------------------------------------------------------------------------------- namespaces


@needs_namespaces
def test_as_root_each_agent_has_an_address_of_its_own_and_can_be_cut_off(tmp_path: Path) -> None:
    trainer = ("-m", "pliant_local.trainer", "--steps", "100000", "--checkpoint", str(tmp_path / "checkpoint"))
    with Cluster(tmp_path, "--agents", "2", "--lease-ttl-s", "1", "--mode", "relaunch", *WORKERS, *trainer) as cluster:
        cluster.sees(" world 2")
        places = {each["agent"]: each["address"] for each in cluster.do("list")["agents"]}
        assert len(set(places.values())) == 2
        assert all(address.startswith("10.77.") for address in places.values())
        before = set(cluster.active())
        cluster.do("cut", "agent-2")
        assert cluster.agents()["agent-2"] == "cut off"
        cluster.until(lambda: set(cluster.active().values()) == {"agent-1"}, "the world without it")
        cluster.until(lambda: " world 1" in cluster.output, "a step without it")
        cluster.do("heal", "agent-2")
        cluster.until(lambda: "agent-2" in cluster.active().values(), "it is back")
        assert not before & set(cluster.active()), "as another member"
        cluster.signal(signal.SIGTERM)
        assert cluster.ended() == 143
    cluster.left_nothing()


@needs_namespaces
def test_the_bridge_stays_the_same_as_agents_come_and_go() -> None:
    """Its hardware address must not change: agents would ask for it again only after seconds, and lose their leases."""
    owner = network.this_process()
    made = network.Network(owner)
    try:
        made.open()
        seen = set()
        for number in range(1, 9):
            made.add(number)
            seen.add(network.ip("-o", "link", "show", owner.bridge).split("link/ether ")[1].split()[0])
        assert seen == {owner.card}
        for number in range(1, 9):
            made.remove(number)
        assert owner.card in network.ip("-o", "link", "show", owner.bridge)
    finally:
        network.remove_all(owner)
    assert [name for name, whose in network.namespaces_and_links() if whose == owner] == []


@needs_namespaces
def test_a_killed_cluster_leaves_no_namespace(tmp_path: Path) -> None:
    with Cluster(tmp_path, "--agents", "2", *LONG) as cluster:
        cluster.until(lambda: len(cluster.active()) == 2, "two workers")
        assert len(network.namespaces_and_links()) >= 5
        cluster.signal(signal.SIGKILL)
        cluster.ended()
        cluster.left_nothing()


@needs_namespaces
def test_what_nobody_could_remove_the_next_cluster_does(tmp_path: Path) -> None:
    with Cluster(tmp_path / "one", "--agents", "1", *LONG) as cluster:
        cluster.up()
        (sweeper,) = [pid for pid in _children(cluster.process.pid) if "pliant_local.sweeper" in _command(pid)]
        os.kill(sweeper, signal.SIGKILL)
        cluster.signal(signal.SIGKILL)
        cluster.ended()
    with Cluster(tmp_path / "two", "--agents", "1", *PACED) as second:
        assert second.ended() == 0
    assert [name for name, whose in network.namespaces_and_links() if whose.pid == cluster.process.pid] == []


def test_without_namespaces_one_cannot_be_cut_off_and_it_says_so(tmp_path: Path) -> None:
    with Cluster(tmp_path, *LOOPBACK, "--agents", "1", *LONG) as cluster:
        cluster.up()
        refused = cluster.pliant("local", "cut", "agent-1")
        assert refused.code == 3
        assert "Agents on 127.0.0.1 cannot be cut off" in refused.err


def _members(cluster: Cluster) -> set[str]:
    found = cluster.job_status()
    return set() if found is None else {line.id for line in found.members}


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    wait_for(path.exists, "the process")
    return [int(each) for each in path.read_text().split()]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
