"""The agents of a cluster on this machine: started, let go, killed, cut off and connected again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pliant import settings
from pliant.core.job.launches import describe_exit
from pliant.errors import PliantError
from pliant_local.coordinator import LOOPBACK, Keeps
from pliant_local.network import CARD, Network
from pliant_local.schedule import AGENTS_MAX, change, number_of

CARDS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Where libraries look for the link to use. A host's name is the whole machine's, whose address no agent has."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What every agent is told: `program` starts `pliant` itself, `run` is what stands behind `pliant run`."""

    job: str
    program: tuple[str, ...]
    run: tuple[str, ...]
    home: Path  # below it each agent has its own
    token_file: Path


@dataclass(slots=True)
class Hosted:
    """One agent."""

    name: str
    address: str
    began: float
    wanted: bool = True  # False: it was told to leave, or killed by command
    cut: bool = False
    code: int | None = None

    @property
    def runs(self) -> bool:
        return self.code is None

    @property
    def state(self) -> str:
        if self.code is not None:
            return "ended"
        return "cut off" if self.cut else "running" if self.wanted else "leaving"


class Agents:
    """All there are, and were. `line` is called with what each writes, `say` with what is for people."""

    def __init__(
        self,
        wish: Wish,
        keeps: Keeps,
        network: Network | None,
        line: Callable[[str, bytes], None],
        say: Callable[[str], None],
    ) -> None:
        self._wish = wish
        self._keeps = keeps
        self._network = network
        self._line = line
        self._say = say
        self._all: dict[str, Hosted] = {}

    @property
    def running(self) -> list[Hosted]:
        return [agent for agent in self._all.values() if agent.runs]

    @property
    def present(self) -> list[str]:
        """Those that are to stay, oldest first."""
        return [agent.name for agent in self.running if agent.wanted]

    def bring_to(self, wanted: int, url: str) -> bool:
        """Have so many; False if there were so many already."""
        changed = change(wanted, self.present, self._all)
        for name in changed.add:
            self._start(name, url)
        for name in changed.remove:
            self.remove(self._all[name])
        return bool(changed.add or changed.remove)

    def add(self, url: str) -> Hosted:
        """One more. PliantError if there are too many."""
        if len(self.present) >= AGENTS_MAX:
            raise PliantError(f"There are {AGENTS_MAX} agents already, and no more are allowed.")
        (name,) = change(len(self.present) + 1, self.present, self._all).add
        return self._start(name, url)

    def named(self, name: str | None) -> Hosted:
        """The agent that is meant: without a name the newest that is to stay. PliantError says who there is."""
        if name is None:
            if not self.present:
                raise PliantError("There is no agent left.")
            name = self.present[-1]
        agent = self._all.get(name)
        if agent is None or not agent.runs:
            there = ", ".join(each.name for each in self.running) or "none"
            raise PliantError(f"There is no agent {name}. Those that run: {there}.")
        return agent

    def remove(self, agent: Hosted) -> None:
        """Let it leave, with its workers."""
        agent.wanted = False
        self._keeps.terminate(agent.name)

    def kill(self, agent: Hosted) -> None:
        agent.wanted = False
        self._keeps.kill(agent.name)

    def connect(self, agent: Hosted, *, is_cut: bool) -> None:
        """Cut an agent off, or connect it again."""
        if self._network is None:
            raise PliantError("All agents are on one address here: one cannot be cut off. That needs namespaces.")
        (self._network.cut if is_cut else self._network.heal)(number_of(agent.name))
        agent.cut = is_cut
        self._say(f"{agent.name} is {'cut off' if is_cut else 'connected again'}")

    def ended(self, name: str, code: int) -> Hosted:
        """Call when the process of that name has ended."""
        agent = self._all[name]
        agent.code = code
        self._say(f"{agent.name} ended with {describe_exit(code)}")
        if self._network is not None:
            threading.Thread(target=self._forget, args=(self._network, agent), name="forget", daemon=True).start()
        return agent

    def rows(self) -> Iterator[dict[str, Any]]:
        """What there is to say about each."""
        now = time.monotonic()
        for each in self._all.values():
            yield {
                "agent": each.name,
                "state": each.state,
                "address": each.address,
                "age_s": round(now - each.began, 1),
                "code": each.code,
            }

    def _start(self, name: str, url: str) -> Hosted:
        network, wish = self._network, self._wish
        address = LOOPBACK if network is None else network.add(number_of(name))
        inside = () if network is None else network.inside(number_of(name))
        cards = () if network is None else (card for card in CARDS if not settings.is_set(card))
        where = ("--coordinator", url, "--token-file", str(wish.token_file))
        argv = [*inside, *wish.program, "run", "--job", wish.job, *where, "--json", *wish.run]
        env = {"PLIANT_HOME": str(wish.home / name), "PLIANT_AGENT": name, **dict.fromkeys(cards, CARD)}
        agent = self._all[name] = Hosted(name, address, time.monotonic())
        self._keeps.start(name, argv, env, lambda line: self._line(name, line))
        return agent

    def _forget(self, network: Network, agent: Hosted) -> None:
        """Whatever the agent left in its namespace has to end first, so this may take a while."""
        try:
            network.remove(number_of(agent.name))
        except PliantError as error:
            self._say(error.why)
