"""`pliant run` with torchelastic's URL of etcd, and everything that a run leaves looked through for secrets."""

import json
import signal
from pathlib import Path

import pytest

from contract.etcd_cluster import etcd_cluster
from e2e.launched import TRAINER, Launched, all_gone, family, kill
from e2e.running import wait_for
from e2e.secret_scan import commands_and_environments, leaks
from pliant.client import Client
from pliant.credentials import read_token
from pliant.errors import PliantError


def leads(run: Launched) -> bool:
    said = run.endpoint
    try:
        with Client([said["url"]], read_token(Path(said["token_file"])), patience_s=0.0) as client:
            return client.about().leads
    except PliantError:
        return False


def committed(run: Launched) -> int:
    with run.client() as client:
        return client.job(run.job).job.step


def seen(*runs: Launched) -> dict[str, bytes]:
    """All that is to be seen of these runs now."""
    pids = [pid for run in runs for pid in family(run.home)]
    texts = commands_and_environments(pids)
    for number, run in enumerate(runs):
        texts[f"the output of run {number}"] = run.output.encode()
        with run.client() as client:
            events = [repr(event) for _, event in client.events(run.job, 0, 1000)]
            texts[f"the events at run {number}"] = "\n".join([*events, repr(client.job(run.job))]).encode()
    return texts


@pytest.mark.timeout(400)
def test_when_the_machine_that_leads_is_lost_the_other_one_leads_and_trains_on(tmp_path: Path) -> None:
    homes = tmp_path / "one", tmp_path / "two"
    with etcd_cluster(tmp_path) as cluster:
        url = f"etcd://{cluster.endpoints[0]}/demo?min_workers=1&max_workers=2"
        args = ("--rdzv-endpoint", url, str(TRAINER), "0.2", "1000")
        with Launched(homes[0], *args, PLIANT_AGENT="one") as first:
            first.has_members(1)
            assert leads(first)
            with Launched(homes[1], *args, PLIANT_AGENT="two") as second:
                second.has_members(2)
                assert not leads(second)
                assert first.members().keys() == second.members().keys()  # either one answers, for both
                texts = seen(first, second)
                assert leaks(homes, texts) == []
                lost = family(homes[0])
                first.process.kill()
                all_gone(lost, homes[0])
                wait_for(lambda: leads(second), "the other coordinator to lead", 60.0)
                step = committed(second)
                wait_for(lambda: committed(second) > step + 5, "the job to go on", 60.0)
                second.signal(signal.SIGINT)
                second.ended()
    assert leaks(homes, {"the output": second.output.encode()}) == []


@pytest.mark.long
def test_a_job_in_etcd_goes_on_after_its_coordinator_and_after_its_agent_are_killed(tmp_path: Path) -> None:
    home = tmp_path / "one"
    with etcd_cluster(tmp_path) as cluster:
        url = f"etcd://{cluster.endpoints[0]}/demo?min_workers=1&max_workers=2"
        args = ("--rdzv-endpoint", url, str(TRAINER), "0.1", "60")
        with Launched(home, *args, PLIANT_AGENT="one") as first:
            first.has_members(1)
            assert leads(first)
            assert leaks([home], seen(first)) == []
            assert not (home / "jobs" / "demo" / "store.db").exists()
            kill(first.endpoint["pid"])
            first.sees("the coordinator answers again")
            wait_for(lambda: leads(first), "the coordinator to lead again", 60.0)
            lost = family(home)
            first.process.kill()
            all_gone(lost, home)
        with Launched(home, *args, PLIANT_AGENT="one") as second:
            assert second.ended() == 0, second.output
            assert "all 300 steps are committed" in second.output
    assert leaks([home], {"the output": (first.output + second.output).encode()}) == []


def test_a_secret_in_a_log_an_argument_or_a_file_that_others_can_read_is_found(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    secret = "x" * 43
    token = home / "token"
    token.write_text(f"pliant_{'a' * 12}_{secret}\n")
    token.chmod(0o600)
    assert leaks([home], {"argv": b"pliant run"}) == []
    assert leaks([home], {"argv": f"--token={secret}".encode()}) == [f"the secret of {token} is in argv"]
    (home / "run.log").write_text(json.dumps({"authorization": secret}))
    assert leaks([home], {}) == [f"the secret of {token} is in {home / 'run.log'}"]
    token.chmod(0o644)
    home.chmod(0o777)
    assert len(leaks([home], {})) == 3
