"""Runs docs/operating/three-coordinators.md: three coordinators on etcd with TLS, one lost, and tokens replaced.

The machines are three addresses of the loopback interface, each with a folder and a `PLIANT_HOME` of its own.
"""

import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from contract.etcd_cluster import EtcdCluster, etcd_cluster
from e2e.running import wait_for
from pliant.client import Client
from pliant.credentials import TlsFiles, Token, read_token
from pliant.errors import NotAllowed
from tidy.files import ROOT
from unit.cli.program import PLIANT, environment, free_port

PAGE = ROOT / "docs/operating/three-coordinators.md"
BLOCK = re.compile(r"^```sh (\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MACHINES = ("first", "second", "third")
PATIENCE_S = 120.0
OLD_ID = "3f2a9c1b7d40"  # that the page shows


class Machine:
    """One of the three: its address, its files, and its coordinator while that runs."""

    def __init__(self, number: int, folder: Path, port: int, cluster: EtcdCluster) -> None:
        self._number = number
        self._folder = folder / str(number)
        self._archive = folder / "archive"
        self._port = port
        self._cluster = cluster
        self.home = self._folder / "home"
        self.etc = self._folder / "etc"
        for made in (self.home, self.etc):
            made.mkdir(parents=True, mode=0o700)
        self.env = environment(self.home)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.{self._number}:{self._port}"

    @property
    def tls(self) -> TlsFiles:
        return TlsFiles(self.etc / "ca.pem")

    def words(self, line: str) -> list[str]:
        """Return a command of the page with the places of this test."""
        line = re.sub(r"etcd:[^/]+/", f"etcd:{','.join(self._cluster.endpoints)}/", line)
        line = line.replace("--listen 10.0.0.1:", f"--listen 10.0.0.{self._number}:").replace("10.0.0.", "127.0.0.")
        line = line.replace(":7711", f":{self._port}").replace("/etc/pliant", str(self.etc))
        return shlex.split(line.replace("s3://bucket/pliant", str(self._archive)))

    def run(self, line: str) -> str:
        """Run a command of the page to its end, and return what it prints."""
        program, *args = self.words(line)
        assert program == "pliant"
        done = subprocess.run(
            [PLIANT, *args],
            env=self.env,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    def export(self, line: str) -> None:
        word, setting = self.words(line)
        assert word == "export"
        name, _, value = setting.partition("=")
        self.env[name] = value

    def start(self, line: str) -> None:
        program, *args = self.words(line)
        assert program == "pliant"
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen([PLIANT, *args], env=self.env, stdout=log, stderr=log, cwd=self._folder)

    def stop(self, how: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(60)
        self.process = None

    def read_token(self) -> Token:
        return read_token(self.home / "token")

    def leads(self) -> bool:
        with Client([self.url], self.read_token(), patience_s=0.0, tls=self.tls) as client:
            return client.is_healthy()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    with etcd_cluster(tmp_path, 3) as cluster:
        port = free_port()
        made = {name: Machine(number, tmp_path, port, cluster) for number, name in enumerate(MACHINES, 1)}
        yield made
        for machine in made.values():
            if machine.process is not None:
                machine.stop(signal.SIGKILL)


def until(condition: Callable[[], object], what: str) -> None:
    wait_for(condition, what, PATIENCE_S)


def copy_certificates(machines: dict[str, Machine]) -> None:
    """Copy the files as the page describes in words."""
    first = machines["first"]
    for number, machine in enumerate(machines.values(), 1):
        shutil.copy(first.home / "ca/ca.pem", machine.etc / "ca.pem")
        for kind in ("pem", "key"):
            copied = machine.etc / f"coordinator.{kind}"
            shutil.copy(first.home / f"certs/coordinator-{number}.{kind}", copied)
            copied.chmod(0o600)


def is_accepted(machine: Machine, token: Token) -> bool:
    with Client([machine.url], token, patience_s=PATIENCE_S, tls=machine.tls) as client:
        try:
            client.about()
        except NotAllowed:
            return False
    return True


@pytest.mark.long
def test_every_command_of_the_page_does_what_the_page_says(machines: dict[str, Machine]) -> None:
    blocks = [(where, text.splitlines()) for where, text in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]
    names = ["first", "coordinators", "clients", "first", "second", "each", "first"]
    assert [where for where, _ in blocks] == names
    certificates, starting, settings, creating, losing, rotating, replacing = (lines for _, lines in blocks)
    first, second, third = machines.values()

    for line in certificates:
        first.run(line)
    copy_certificates(machines)
    for machine in machines.values():
        machine.start(starting[0])
        until((machine.home / "token").exists, "a token")
        for line in settings:
            machine.export(line)
    until(first.leads, "the first one to lead")
    tokens = [machine.read_token() for machine in machines.values()]
    until(lambda: all(is_accepted(*pair) for pair in product(machines.values(), tokens)), "each token to be known")
    for line in creating:
        first.run(line)

    first.stop(signal.SIGKILL)
    until(lambda: second.leads() or third.leads(), "another one to lead")
    jobs, resize = losing
    assert "demo" in second.run(jobs)
    assert second.run(resize) == "demo: target set to 2 workers.\n"
    first.start(starting[0])
    until(lambda: is_accepted(first, tokens[0]), "the first one to answer again")

    for machine in machines.values():
        machine.run(rotating[0])
    assert [machine.read_token() for machine in machines.values()] != tokens
    assert all(is_accepted(*pair) for pair in product(machines.values(), tokens))  # for an hour
    leaked = replace(first.read_token(), file=None)  # a thief has no file that is rotated
    first.run(f"{rotating[0]} --overlap-s 0")
    until(lambda: not any(is_accepted(machine, leaked) for machine in machines.values()), "the old token to end")
    assert is_accepted(second, first.read_token())

    create, listing, revoke = replacing
    before = read_token(first.home.parent / "gpu-1.token")
    first.run(create)
    assert before.id in first.run(listing)
    first.run(revoke.replace(OLD_ID, before.id))
    until(lambda: not any(is_accepted(machine, before) for machine in machines.values()), "the revoked token to end")
    assert is_accepted(third, read_token(first.home.parent / "gpu-1-new.token"))
