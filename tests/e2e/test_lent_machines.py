"""Two machines, lent to a pool by `pliant agent --pool`, and the jobs that they run."""

import signal
from pathlib import Path

import pytest

from e2e.launched import Lending, all_gone, family
from e2e.pools import SCRIPTS, SLOTS, alone, digests, watched, with_tests
from e2e.running import Running, start, wait_for
from pliant.client import Client
from pliant.core.allocate import Pool
from pliant.core.messages import Create
from pliant.core.model.job import JobSpec, JobState, Mode
from pliant.errors import NotAllowed
from pliant.wire.api import Scope, TokenRequest
from unit.cli.program import environment, real


def lending(home: Path, at: Running, name: str, slots: int) -> Lending:
    options = ("--coordinator", at.url, "--token-file", str(at.home / "token"), "--slots", str(slots))
    where = ("--scripts", str(SCRIPTS), "--checkpoint-dir", str(home / "checkpoints"))
    env = {"PYTHONPATH": with_tests(), "PLIANT_AGENT": name, "CUDA_VISIBLE_DEVICES": ""}
    return Lending(home / name, *options, *where, job=name, **env)


def create(client: Client, name: str, low: int, high: int, priority: int, *script: str) -> None:
    spec = JobSpec(low, high, mode=Mode.AUTO, queue="default", priority=priority, script=script)
    client.send(name, Create(name, spec))


def audited(at: Running, job: str) -> tuple[bool, int, int]:
    env = environment(at.home, PLIANT_COORDINATOR=at.url)
    found = real(env, "audit", job, "--json", "--token-file", str(at.home / "token")).json
    return found["ok"], found["lost"], found["repeated"]


@pytest.mark.timeout(300)
def test_an_urgent_job_takes_slots_of_lent_machines_and_returns_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, never = tmp_path / "quick", tmp_path / "never"
    with start(home=tmp_path / "coordinator") as at, watched(at.client()) as seen:
        client = at.client()
        client.set_pool(Pool(0, is_lent=True))
        with lending(tmp_path, at, "one", 2) as one, lending(tmp_path, at, "two", 1) as two:
            create(client, "low", 1, SLOTS, 0, "pool_worker.py", "800", "0.2", str(quick))
            wait_for(lambda: seen.count("low") == SLOTS, "all workers of low")
            before = dict(seen.members["low"])
            create(client, "high", 2, 2, 5, "pool_worker.py", "8", "0.2", str(never))
            wait_for(lambda: seen.count("high") == 2, "all workers of high")
            assert seen.count("low") == 1
            wait_for(lambda: client.job("high").job.state is JobState.FINISHED, "the end of high")
            wait_for(lambda: seen.count("low") == SLOTS, "low to grow back")
            after = seen.members["low"]
            survivors = before.keys() & after.keys()
            assert survivors
            assert {name: after[name] for name in survivors} == {name: before[name] for name in survivors}
            quick.touch()
            wait_for(lambda: client.job("low").job.state is JobState.FINISHED, "the end of low")
            machines = {each.name: len(each.slots) for each in client.pool().machines}
            assert machines == {"one": 2, "two": 1}
            for agent in (one, two):
                processes = family(agent.home)
                agent.signal(signal.SIGINT)
                assert agent.ended() == 0
                all_gone(processes, agent.home)
        assert (seen.over, seen.crowded) == ([], [])
        assert seen.looks > 20
        wait_for(lambda: client.pool().pool == Pool(0, is_lent=True), "a pool without machines")
        for job in ("low", "high"):
            assert audited(at, job) == (True, 0, 0)
    lines = [*one.lines, *two.lines]
    assert digests([line for line in lines if line.startswith("[low ")]) == {alone("pool_worker.py", 800, monkeypatch)}
    assert digests([line for line in lines if line.startswith("[high ")]) == {alone("pool_worker.py", 8, monkeypatch)}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_workers_of_a_killed_machine_are_accounted_and_replaced(tmp_path: Path) -> None:
    quick = tmp_path / "quick"
    with start(home=tmp_path / "coordinator", lease_ttl_s=3.0) as at, watched(at.client()) as seen:
        client = at.client()
        client.set_pool(Pool(2))
        with lending(tmp_path, at, "one", 2) as one:
            create(client, "job", 1, 2, 0, "pool_worker.py", "240", "0.2", str(quick))
            wait_for(lambda: seen.count("job") == 2, "two workers")
            processes = family(one.home)
            one.signal(signal.SIGKILL)
            assert one.ended() == -signal.SIGKILL
            all_gone(processes, one.home)
        wait_for(lambda: client.pool().jobs[0].held == 0, "the slots to be free again")
        with lending(tmp_path, at, "one", 2) as one:
            quick.touch()
            wait_for(lambda: client.job("job").job.state is JobState.FINISHED, "the end of the job")
            one.signal(signal.SIGTERM)
            assert one.ended() == 0
        assert (seen.over, seen.crowded) == ([], [])
        assert audited(at, "job")[0]


@pytest.mark.timeout(300)
def test_files_may_be_relative_and_a_replaced_token_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, home = tmp_path / "quick", tmp_path / "coordinator"
    with start(home=home, lease_ttl_s=3.0) as at, watched(at.client()) as seen:
        client = at.client()
        client.set_pool(Pool(0, is_lent=True))
        monkeypatch.chdir(home)
        options = ("--coordinator", at.url, "--token-file", "token", "--slots", "1", "--scripts", str(SCRIPTS))
        env = {"PYTHONPATH": with_tests(), "PLIANT_AGENT": "one", "CUDA_VISIBLE_DEVICES": ""}
        with Lending(tmp_path / "one", *options, job="one", **env) as one:
            create(client, "job", 1, 1, 0, "pool_worker.py", "400", "0.2", str(quick))
            wait_for(lambda: seen.count("job") == 1, "the worker")
            before, step = dict(seen.members["job"]), client.job("job").job.step
            real(environment(home, PLIANT_COORDINATOR=at.url), "token", "rotate", "--overlap-s", "0")
            wait_for(lambda: client.job("job").job.step >= step + 50, "steps for three leases")
            assert seen.members["job"] == before
            quick.touch()
            wait_for(lambda: client.job("job").job.state is JobState.FINISHED, "the end of the job")
            one.signal(signal.SIGTERM)
            assert one.ended() == 0
        assert audited(at, "job") == (True, 0, 0)


@pytest.mark.timeout(300)
def test_a_machine_whose_token_ended_lets_its_workers_leave(tmp_path: Path) -> None:
    with start(home=tmp_path / "coordinator") as at, watched(at.client()) as seen:
        client = at.client()
        client.set_pool(Pool(0, is_lent=True))
        made = client.create_token(TokenRequest(Scope.JOIN))
        (tmp_path / "lab").write_text(made.token)
        (tmp_path / "lab").chmod(0o600)
        options = ("--coordinator", at.url, "--token-file", str(tmp_path / "lab"), "--slots", "1")
        env = {"PYTHONPATH": with_tests(), "PLIANT_AGENT": "one", "CUDA_VISIBLE_DEVICES": ""}
        with Lending(tmp_path / "one", *options, "--scripts", str(SCRIPTS), "--grace-s", "5", job="one", **env) as one:
            create(client, "job", 1, 1, 0, "pool_worker.py", "400", "0.2", str(tmp_path / "never"))
            wait_for(lambda: seen.count("job") == 1, "the worker")
            processes = family(one.home)
            client.expire_token(made.line.id)
            assert one.ended() == NotAllowed.exit_code
            all_gone(processes, one.home)
        assert "the agents leave within 5 s" in one.output
