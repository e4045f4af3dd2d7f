"""A training over https with client certificates, by commands alone, and no secret in what it leaves behind."""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.launched import Launched
from e2e.running import wait_for
from e2e.test_run_live import SCRIPT
from unit.cli.program import PLIANT, Done, environment, free_port, real

pytest.importorskip("torch")

SHOWS = """
import os, threading, pliant.train.peer.server as server
opened = server.PeerServer._open
def note(self, *args):
    print("peers with TLS" if self._tls is not None else "peers in the clear", flush=True)
    return opened(self, *args)
server.PeerServer._open = note
"""


class Cluster:
    """A coordinator with a home of its own, and the files that another machine would be given."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "coordinator"
        self.ca = self.home / "ca" / "ca.pem"
        self.token = folder / "gpu-1.token"
        self.log = folder / "coordinator.log"
        self.own = {
            "PLIANT_CERT_FILE": str(self.home / "certs" / "gpu-1.pem"),
            "PLIANT_KEY_FILE": str(self.home / "certs" / "gpu-1.key"),
        }
        self.url = ""

    def do(self, *args: str, **env: str) -> Done:
        done = real(environment(self.home, **env), *args)
        assert done.code == 0, done.err
        return done

    def ask(self, *args: str) -> Any:
        return self.do(*args, "--coordinator", self.url, "--ca-file", str(self.ca), "--json", **self.own).json

    @contextmanager
    def coordinator(self) -> Iterator[None]:
        certs = self.home / "certs"
        tls = ("--tls-cert", str(certs / "coordinator.pem"), "--tls-key", str(certs / "coordinator.key"))
        argv = [PLIANT, "coordinator", "--listen", "127.0.0.1:0", "--json", *tls, "--tls-client-ca", str(self.ca)]
        with (
            self.log.open("wb") as log,
            subprocess.Popen(argv, env=environment(self.home), stdout=subprocess.PIPE, stderr=log) as process,
        ):
            assert process.stdout is not None
            try:
                self.url = json.loads(process.stdout.readline())["url"]
                yield
            finally:
                process.terminate()
                process.wait(30)


def private(pem: Path) -> bytes:
    """The middle line of a key in a file, which is of the key alone."""
    return pem.read_bytes().splitlines()[1]


def argv_of_family(home: Path) -> bytes:
    """The command lines of all processes that have this home."""
    found = b""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if str(home).encode() in (entry / "environ").read_bytes():
                    found += (entry / "cmdline").read_bytes()
            except OSError:
                continue
    return found


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_workers_train_to_the_end_over_https_with_client_certificates(tmp_path: Path) -> None:
    cluster, away = Cluster(tmp_path), tmp_path / "away"
    script = tmp_path / "train.py"
    script.write_text(SHOWS + SCRIPT)
    cluster.do("certs", "init")
    cluster.do("certs", "issue", "coordinator", "--ip", "127.0.0.1")
    cluster.do("certs", "issue", "gpu-1")
    with cluster.coordinator():
        cluster.ask("jobs", "create", "demo", "--workers", "1:3", "--target", "2")
        cluster.ask(
            "token", "create", "--scope", "join", "--job", "demo", "--cert", "gpu-1", "--out", str(cluster.token)
        )
        files = {"PLIANT_CA_FILE": str(cluster.ca), **cluster.own}
        flags = ("--coordinator", cluster.url, "--token-file", str(cluster.token), "--nproc-per-node", "3")
        with Launched(away, *flags, str(script), "40", **files) as run:
            run.sees("peers with TLS")
            argv = argv_of_family(away)
            assert run.ended() == 0, run.output
        assert cluster.ask("status", "demo")["state"] == "finished"
        assert cluster.ask("audit", "demo")["ok"] is True
        events = cluster.do(
            "events", "demo", "--json", "--coordinator", cluster.url, "--ca-file", str(cluster.ca), **cluster.own
        ).out
    weights = re.findall(r"weights (\S+)", run.output)
    assert len(weights) >= 2
    assert len(set(weights)) == 1
    assert "peers in the clear" not in run.output
    assert b"--coordinator" in argv
    _no_secret_in(cluster, away, {"argv": argv, "events": events.encode(), "output": run.output.encode()})


def _no_secret_in(cluster: Cluster, away: Path, written: dict[str, bytes]) -> None:
    """Search everything that was written, except the files that are there to hold a secret."""
    tokens = [cluster.token, cluster.home / "token", *away.rglob("*token")]
    keys = [*cluster.home.rglob("*.key")]
    secrets = [path.read_text().strip().split("_", 2)[2].encode() for path in tokens if path.is_file()]
    secrets += [private(path) for path in keys]
    assert len(secrets) >= 5
    for path in [cluster.log, *cluster.home.rglob("*"), *away.rglob("*")]:
        if path.is_file() and path not in tokens and path not in keys:
            written[str(path)] = path.read_bytes()
    assert any(name.endswith("store.db") for name in written)
    assert any("/logs/" in name for name in written)
    assert [name for name, data in written.items() if any(secret in data for secret in secrets)] == []


def test_the_worker_of_an_agent_without_the_ca_says_what_is_wrong(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.do("certs", "init")
    cluster.do("certs", "issue", "coordinator", "--ip", "127.0.0.1")
    cluster.do("certs", "issue", "gpu-1")
    with cluster.coordinator():
        cluster.ask("token", "create", "--scope", "join", "--out", str(cluster.token))
        flags = ("--coordinator", cluster.url, "--token-file", str(cluster.token))
        script = tmp_path / "train.py"
        script.write_text(SCRIPT)
        refused = real(environment(tmp_path / "away"), "run", "--job", "demo", *flags, str(script), "1")
        assert refused.code == 5, refused
        assert "the coordinator's certificate is not accepted: it is not of the CA that is trusted here" in refused.err
        found = real(environment(tmp_path / "away", **cluster.own), "doctor", *flags, "--ca-file", str(cluster.ca))
        assert "the coordinator's is accepted, and valid until" in found.out
        wait_for(lambda: "refused a connection" in cluster.log.read_text(), "the log of the coordinator")


WAITS = """
import os, pathlib, sys, time
print("coordinator", os.environ["PLIANT_COORDINATOR"].partition(":")[0], "CA", os.environ["PLIANT_CA_FILE"] or "none")
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


@pytest.mark.parametrize("meets", ["at an endpoint", "alone"])
def test_with_a_ca_only_a_coordinator_that_others_can_join_has_tls(tmp_path: Path, meets: str) -> None:
    cluster, script, go = Cluster(tmp_path), tmp_path / "waits.py", tmp_path / "go"
    script.write_text(WAITS)
    cluster.do("certs", "init")
    cluster.do("certs", "issue", "gpu-1", "--ip", "127.0.0.1")
    files = {"PLIANT_CA_FILE": str(cluster.ca), **cluster.own}
    endpoint = f"127.0.0.1:{free_port()}"
    where = ("--rdzv-endpoint", endpoint, "--nnodes", "1") if meets == "at an endpoint" else ()
    with Launched(tmp_path / "away", *where, "--workers", "1", str(script), str(go), **files) as run:
        said = ("https", str(cluster.ca)) if where else ("http", "none")
        run.sees(f"coordinator {said[0]} CA {said[1]}")
        assert run.endpoint["url"].startswith(f"{said[0]}://127.0.0.1:")
        status = real(environment(tmp_path / "away", **files), "status", "demo", "--json")
        assert (status.code, status.json["state"]) == (0, "running"), status.err
        if where:
            token = str(tmp_path / "away" / "jobs" / "demo" / "token")
            other = ("--coordinator", f"http://{endpoint}", "--token-file", token)
            refused = real(environment(tmp_path / "away", **files), "status", "demo", *other)
            assert (refused.code, "so only https is accepted" in refused.err) == (2, True)
        go.touch()
        assert run.ended() == 0, run.output
