"""The scenario of three agents in three namespaces and its checks, the same in either mode."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from e2e.running import wait_for
from namespaces.cluster import Cluster

AGENTS = 3
STEPS = 5  # so many more show that it goes on
PATIENCE_S = 120.0


@dataclass
class Scenario:
    """`progress` says how many steps are done."""

    cluster: Cluster
    chance: random.Random
    progress: Callable[[], int]
    counts: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)  # members that were cut off
    let_go: set[str] = field(default_factory=set)  # agents that were told to leave

    def run(self) -> None:
        """Everything, one after the other."""
        self.cluster.up()
        self._until(lambda: len(self.cluster.active()) == AGENTS, "the first world")
        self._goes_on()
        for size in (5, 2, AGENTS):
            self.resize(size)
        agents = self._agents()
        self.place(dict(zip(self._shuffled(agents), (2, 0, 1), strict=True)))
        self.place(dict.fromkeys(agents, 1))
        self.cut_off(self.chance.choice(agents))
        self.resize(AGENTS)
        self.replace_all(self._shuffled(agents))

    # ------------------------------------------------------------------------------------------- what is done

    def resize(self, size: int) -> None:
        """A world of another size."""
        began = time.monotonic()
        self._pliant("resize", self.cluster.job, str(size))
        self._until(lambda: len(self.cluster.active()) == size, f"a world of {size}")
        self._note("resize", began)
        self._goes_on()

    def place(self, places: Mapping[str, int]) -> None:
        """So many on each agent, exactly."""
        began = time.monotonic()
        options = [word for agent, count in places.items() for word in ("--place", f"{agent}={count}")]
        self._pliant("resize", self.cluster.job, *options)
        wanted = {agent: count for agent, count in places.items() if count}
        self._until(lambda: Counter(self.cluster.active().values()) == wanted, f"a world of {dict(places)}")
        self._note("place", began)
        self._goes_on()

    def cut_off(self, agent: str) -> None:
        """The others go on without it; when it is back, its workers are other members."""
        before = {member for member, where in self.cluster.active().items() if where == agent}
        assert before, f"no member is on {agent}"
        others = set(self._agents()) - {agent}
        began = time.monotonic()
        self.cluster.do("cut", agent)
        self._until(lambda: set(self.cluster.active().values()) == others, f"a world without {agent}")
        self._note("cut", began)
        self.lost |= before
        self._goes_on()
        assert self.cluster.agents()[agent] == "cut off"
        began = time.monotonic()
        self.cluster.do("heal", agent)
        self._until(lambda: agent in self.cluster.active().values(), f"{agent} in the world again")
        self._note("heal", began)
        back = {member for member, where in self.cluster.active().items() if where == agent}
        assert not back & before, f"{sorted(back & before)} came back as the same members"
        self._goes_on()

    def replace_all(self, old: list[str]) -> None:
        """One agent more, one of the old ones less, until none of them is left."""
        for agent in old:
            began = time.monotonic()
            new = self.cluster.do("add")["agent"]
            self._until(lambda new=new: new in self._known(), f"{new} in the job")  # type: ignore[misc]
            self.cluster.do("remove", agent)
            self.let_go.add(agent)
            self._until(lambda agent=agent: self.cluster.agents()[agent] == "ended", f"the end of {agent}")  # type: ignore[misc]
            self._until(lambda: len(self.cluster.active()) == AGENTS, "a whole world")
            assert agent not in self.cluster.active().values()
            self._note("replace", began)
            self._goes_on()
        assert not set(self.cluster.active().values()) & set(old)

    # ------------------------------------------------------------------------------------------------ looking

    def _agents(self) -> list[str]:
        """Those that run."""
        return sorted(name for name, state in self.cluster.agents().items() if state == "running")

    def _known(self) -> set[str]:
        found = self.cluster.job_status()
        return set() if found is None else {line.id for line in found.agents}

    def _shuffled(self, names: list[str]) -> list[str]:
        return self.chance.sample(names, len(names))

    def _pliant(self, *args: str) -> None:
        done = self.cluster.pliant(*args)
        assert done.code == 0, f"pliant {' '.join(args)}: {done.err}"

    def _until(self, true: Callable[[], object], what: str) -> None:
        self.cluster.until(true, what, PATIENCE_S)

    def _goes_on(self) -> None:
        """Wait for more steps."""
        before = self.progress()
        self._until(lambda: self.progress() >= before + STEPS, f"{STEPS} steps after step {before}")

    def _note(self, what: str, began: float) -> None:
        took = time.monotonic() - began
        self.counts[what] += 1
        self.seconds[what] = max(self.seconds.get(what, 0.0), took)
        world = dict(sorted(Counter(self.cluster.active().values()).items()))
        print(f"  {what:8} {took:5.1f} s  step {self.progress():5}  {world}", flush=True)

    def summary(self) -> dict[str, Any]:
        longest = {what: round(took, 1) for what, took in self.seconds.items()}
        return {**self.counts, "steps": self.progress(), "longest_s": longest}


def finish(scenario: Scenario, hurry: Callable[[], None]) -> int:
    """Let it come to its end; the exit status."""
    hurry()
    status = scenario.cluster.ended(PATIENCE_S)
    wait_for(lambda: not scenario.cluster.leftovers(), "everything's end", PATIENCE_S)
    return status
