"""The choice of an address range, and the removal of leftovers. tests/e2e runs `ip` itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pliant.errors import PliantError
from pliant_local import network
from pliant_local.network import Network, Owner


class Ip:
    """Stands for `ip`: answers what a machine would, and remembers what it was told."""

    def __init__(self, answers: dict[str, list[dict[str, Any]]]) -> None:
        self.answers = answers
        self.told: list[str] = []

    def __call__(self, *args: str) -> str:
        text = " ".join(args)
        self.told.append(text)
        return json.dumps(self.answers.get(text, [])) if "-j" in args else ""


def machine(monkeypatch: pytest.MonkeyPatch, **answers: list[dict[str, Any]]) -> Ip:
    asked = {"addr": "-j -4 addr show", "route": "-j -4 route show table all", "link": "-j link show"}
    made = Ip({asked[key]: answer for key, answer in answers.items()})
    monkeypatch.setattr(network, "ip", made)
    monkeypatch.setattr(network, "_NAMES", Path("/nowhere"))
    monkeypatch.setattr(network, "_join_bridge", lambda bridge, link: made.told.append(f"{link} to {bridge}"))
    return made


def opened() -> Network:
    made = Network(Owner(77, 5))
    made.open()
    return made


def test_the_first_range_that_nobody_uses_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert opened().address == "10.77.0.1"
    machine(monkeypatch, addr=[{"addr_info": [{"local": "10.77.0.9", "prefixlen": 24}]}, {"ifname": "lo"}])
    assert opened().address == "10.77.1.1"
    routes = [{"dst": "default"}, {"dst": "0.0.0.0/0"}, {"dst": "10.77.0.0/23"}, {"dst": "10.77.2.5"}, {}]
    machine(monkeypatch, route=routes)
    assert opened().address == "10.77.3.1"
    machine(monkeypatch, route=[{"dst": "10.0.0.0/8"}])
    with pytest.raises(PliantError, match="is in use on this machine"):
        opened()


def test_where_something_is_refused_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine(monkeypatch, link=[{"ifname": "plb77", "ifalias": Owner(77, 5).alias}])

    def refuse(*args: str) -> str:
        if args[:2] == ("netns", "add"):
            raise PliantError("not allowed")
        return made(*args)

    monkeypatch.setattr(network, "ip", refuse)
    with pytest.raises(PliantError, match="not allowed"):
        opened()
    assert made.told[-1] == "link del plb77"


def test_names_of_links_are_short_enough_and_say_whose_they_are() -> None:
    owner = Owner(4194304, 123456789012)  # the largest number that a process can have
    assert len(owner.bridge) <= 15
    assert len(owner.link(9999)) <= 15
    assert network._NAMESPACE.fullmatch(owner.namespace(12))
    assert network._NAMESPACE.fullmatch(owner.namespace(0))
    assert network._LINK.fullmatch(owner.bridge)
    assert network._LINK.fullmatch(owner.link(12))
    assert network._ALIAS.fullmatch(owner.alias)
    assert owner.card == "02:77:00:40:00:00"


def test_each_agent_has_an_address_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told = machine(monkeypatch)
    made = opened()
    addresses = [made.add(number) for number in range(1, 254)]
    assert addresses[0] == "10.77.0.2"
    assert len(set(addresses)) == len(addresses)
    assert "10.77.0.255" not in addresses
    assert made.add(254) == "10.77.0.2", "the first one is long gone by then"
    assert "plv77-3 to plb77" in told.told
    assert made.inside(3) == ("ip", "netns", "exec", "pliant-77-5-agent-3")


def test_only_what_the_dead_left_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    alive, dead = network.this_process(), Owner(process.pid, 1)
    reused = Owner(os.getpid(), alive.began + 1)  # of our number, and another process
    links = [
        *({"ifname": owner.bridge, "ifalias": owner.alias} for owner in (alive, dead)),
        {"ifname": reused.link(1), "ifalias": reused.alias},
        {"ifname": f"plb{process.pid}1"},
        {"ifname": "eth0"},
        {"ifname": "plb"},
    ]
    made = machine(monkeypatch, link=links)
    for owner in (alive, dead):
        (tmp_path / owner.namespace(1)).touch()
    (tmp_path / "other-users").touch()
    monkeypatch.setattr(network, "_NAMES", tmp_path)
    monkeypatch.setattr(network, "_empty", lambda _: None)
    removed = network.remove_leftovers()
    assert {dead, reused} <= set(removed)
    assert alive not in removed
    gone = {line for line in made.told if " del " in line}
    assert f"netns del {dead.namespace(1)}" in gone
    assert {f"link del {dead.bridge}", f"link del {reused.link(1)}"} <= gone
    assert not any(alive.namespace(1) in line or line == f"link del {alive.bridge}" for line in gone)
    assert not any("eth0" in line or "other-users" in line for line in gone)


def test_a_process_is_told_from_a_later_one_of_its_number() -> None:
    mine = network.this_process()
    assert mine.alive
    assert Owner(mine.pid, 0).alive, "not known when it began: better not"
    assert not Owner(mine.pid, mine.began + 1).alive
    with subprocess.Popen(["true"]) as process:
        while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "Z":
            os.sched_yield()
        assert not Owner(process.pid, 0).alive, "one that is only not buried yet is dead"


def test_what_ip_refuses_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "ip"
    program.write_text("#!/bin/sh\necho no such thing >&2\nexit 2\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    with pytest.raises(PliantError, match="`ip link show` failed: no such thing"):
        network.ip("link", "show")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(PliantError, match="Cannot run"):
        network.ip("link", "show")
    with pytest.raises(PliantError, match="Cannot add plv1-1 to plb1: "):
        network._join_bridge("plb1", "plv1-1")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "iproute2" in network.namespaces_unavailable()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert network.namespaces_unavailable() == "only root may make network namespaces"
