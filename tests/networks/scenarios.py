"""Scenarios: one fault of a training's network in each, and its checks."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from namespaces.cluster import Cluster
from networks.weather import EVERY_ADDRESS, Weather
from networks.wires import FAIR, Wires
from pliant_local.network import ip
from pliant_local.schedule import number_of

AGENTS = 3
LEASE_S = 3.0
STEPS = 3  # so many more show that it goes on
PATIENCE_S = 150.0
CUT = Weather(mute=(EVERY_ADDRESS,))


@dataclass
class Scene:
    """A training by three agents, and the wires they hang on. `lost` are members that may be gone at the end."""

    cluster: Cluster
    wires: Wires
    chance: random.Random
    folder: Path
    lost: set[str] = field(default_factory=set)
    took_s: dict[str, float] = field(default_factory=dict)

    # ------------------------------------------------------------------------------------------- looking

    def agents(self) -> list[str]:
        return sorted(name for name, state in self.cluster.agents().items() if state == "running")

    def some_agent(self) -> str:
        return self.chance.choice(self.agents())

    def members_on(self, agent: str) -> set[str]:
        return {member for member, where in self.cluster.active().items() if where == agent}

    def others_than(self, agent: str) -> set[str]:
        return set(self.agents()) - {agent}

    def generation(self) -> int:
        found = self.cluster.job_status()
        assert found is not None, "no status of the job"
        return found.job.generation

    def why(self) -> str:
        found = self.cluster.job_status()
        return "" if found is None else found.job.why

    def warning(self) -> str:
        found = self.cluster.job_status()
        return "" if found is None else found.job.warning

    def addresses(self) -> dict[str, str]:
        return {each["agent"]: each["address"] for each in self.cluster.do("list")["agents"]}

    def coordinator(self) -> str:
        return str(self.cluster.do("list")["url"]).split("//")[1].rsplit(":", 1)[0]

    def steps(self) -> dict[str, int]:
        """Return how far each process has come by its own account, by its number."""
        found = {}
        for path in self.folder.glob("*.step"):
            with suppress(ValueError):  # it is being written
                found[path.stem] = int(path.read_text())
        return found

    # ------------------------------------------------------------------------------------------- waiting

    def until(self, true: Callable[[], object], what: str) -> None:
        began = time.monotonic()
        self.cluster.until(true, what, PATIENCE_S)
        self.took_s[what] = round(time.monotonic() - began, 1)
        print(f"    {self.took_s[what]:5.1f} s until {what}", flush=True)

    def goes_on(self, steps: int = STEPS) -> None:
        before = self.cluster.step()
        self.until(lambda: self.cluster.step() >= before + steps, f"{steps} more steps")

    def passes(self, seconds: float) -> None:
        """Time itself is what is waited for here: that nothing happens in it."""
        until = time.monotonic() + seconds
        self.cluster.until(lambda: time.monotonic() >= until, "time to pass", PATIENCE_S)

    def is_whole(self) -> None:
        agents = Counter(self.agents())
        self.until(lambda: Counter(self.cluster.active().values()) == agents, "a world of all members")

    def has_still(self, members: set[str]) -> None:
        now = set(self.cluster.active())
        assert now == members, f"the world is {sorted(now)} and was {sorted(members)}: {self.why()}"

    def goes_on_without(self, agent: str) -> None:
        others = self.others_than(agent)
        self.until(lambda: set(self.cluster.active().values()) == others, "a world without it")
        self.goes_on()


# ------------------------------------------------------------------------------------------------------- cuts


def _cut_off(scene: Scene, up: Weather, down: Weather) -> None:
    agent = scene.some_agent()
    scene.lost |= scene.members_on(agent)
    scene.wires.weather(agent, up, down)
    scene.goes_on_without(agent)
    scene.wires.weather(agent, FAIR)
    scene.is_whole()
    assert not scene.members_on(agent) & scene.lost, "it came back as the same member"


def both_ways(scene: Scene) -> None:
    """An agent cut off: its member is lost, the others go on; afterwards its next worker joins."""
    _cut_off(scene, CUT, CUT)


def one_way_from(scene: Scene) -> None:
    """Nothing gets out of a machine, everything gets in."""
    _cut_off(scene, CUT, FAIR)


def one_way_to(scene: Scene) -> None:
    """Nothing gets into a machine, everything gets out."""
    _cut_off(scene, FAIR, CUT)


def from_its_peers(scene: Scene) -> None:
    """A member that reaches the coordinator, and no other member: a member has to go, and the rest trains."""
    agent = scene.some_agent()
    before = set(scene.cluster.active())
    peers = tuple(address for name, address in scene.addresses().items() if name != agent)
    scene.wires.weather(agent, Weather(mute=peers))
    scene.until(lambda: 0 < len(scene.cluster.active()) < AGENTS, "a smaller world")
    scene.goes_on()
    assert scene.cluster.active(), "no member trains"
    scene.wires.weather(agent, FAIR)
    scene.is_whole()
    scene.lost |= before - set(scene.cluster.active())


def coordinator_from_every_agent(scene: Scene) -> None:
    """For four leases: no member is lost, no generation ends, and training goes on meanwhile."""
    generation, before, there = scene.generation(), scene.steps(), set(scene.cluster.active())
    scene.wires.everywhere(Weather(mute=(scene.coordinator(),)))
    scene.until(
        lambda: "no message arrived for" in scene.warning(), "the coordinator to report that it receives nothing"
    )
    scene.passes(4 * LEASE_S)
    later = scene.steps()
    assert all(later[pid] > step for pid, step in before.items()), f"training stood still: {before}, {later}"
    scene.wires.everywhere(FAIR)
    scene.until(lambda: "no message arrived for" not in scene.warning(), "a message to arrive")
    scene.goes_on()
    scene.passes(LEASE_S)
    scene.has_still(there)
    assert scene.generation() == generation, f"generation {generation} was ended by it: {scene.generation()}"


# ---------------------------------------------------------------------------------------------------- weather


def _nobody_is_lost(scene: Scene, weather: Weather, steps: int) -> None:
    there = set(scene.cluster.active())
    scene.wires.everywhere(weather)
    scene.goes_on(steps)
    scene.passes(2 * LEASE_S)
    scene.goes_on(steps)
    scene.wires.everywhere(FAIR)
    scene.is_whole()
    scene.has_still(there)


def loss(scene: Scene) -> None:
    """Of a hundred frames two are lost, each way: slower, and no member is lost."""
    _nobody_is_lost(scene, Weather(loss=0.02), 5)


def delay(scene: Scene) -> None:
    """50 ms each way, and up to 30 more, so that frames overtake one another."""
    _nobody_is_lost(scene, Weather(delay_s=0.05, jitter_s=0.03), 5)


def twice(scene: Scene) -> None:
    """A tenth of the frames comes twice, and out of order."""
    _nobody_is_lost(scene, Weather(twice=0.1, jitter_s=0.004), 10)


def narrow(scene: Scene) -> None:
    """128 KB a second for each machine."""
    _nobody_is_lost(scene, Weather(rate=128e3), 3)


def connections_reset(scene: Scene) -> None:
    """Every connection of a machine is reset, also to the coordinator: a generation ends, and no member is lost."""
    there = set(scene.cluster.active())
    for _ in range(3):
        agent = scene.some_agent()
        scene.wires.reset(agent, 1.0)
        scene.passes(1.0)
        scene.is_whole()
        scene.goes_on()
    scene.has_still(there)
    assert scene.wires.counts()["reset"] > 0


def half_open(scene: Scene) -> None:
    """A machine's link goes down, its worker is killed, and the link comes back: no member was told that it hung up."""
    for away_s in (0.0, 2 * LEASE_S):
        agent = scene.some_agent()
        members = scene.members_on(agent)
        scene.lost |= members
        scene.wires.weather(agent, CUT)
        _kill_workers(scene, agent)
        scene.passes(away_s)
        scene.wires.weather(agent, FAIR)
        scene.until(lambda members=members: not members & set(scene.cluster.active()), "a world without it")  # type: ignore[misc]
        scene.is_whole()
        scene.goes_on()


def _kill_workers(scene: Scene, agent: str) -> None:
    """The workers' own processes, by the numbers that they wrote down."""
    inside = {int(pid) for pid in ip("netns", "pids", scene.wires.namespace(agent)).split()}
    workers = inside & {int(pid) for pid in scene.steps()}
    assert workers, f"no worker runs on {agent} ({number_of(agent)})"
    for pid in workers:
        os.kill(pid, signal.SIGKILL)


SCENARIOS: dict[str, Callable[[Scene], None]] = {
    "cut both ways": both_ways,
    "cut on the way out": one_way_from,
    "cut on the way in": one_way_to,
    "a member from its peers": from_its_peers,
    "the coordinator from every agent": coordinator_from_every_agent,
    "frames lost": loss,
    "delay and reordering": delay,
    "frames twice": twice,
    "a narrow line": narrow,
    "connections reset": connections_reset,
    "half-open connections": half_open,
}
