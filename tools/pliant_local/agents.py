"""Start, remove, kill, cut off and reconnect the agents of a sandbox."""

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
from pliant_local.coordinator import LOOPBACK, ProcessKeeper
from pliant_local.network import INTERFACE, Network
from pliant_local.schedule import AGENTS_MAX, agent_change, number_of

CARDS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables that name the network interface to use. Without them libraries use the address of the host's name, which
no agent in a namespace has."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The command line of every agent: `program` starts `pliant`, `run` are the arguments of `pliant run`."""

    job: str
    program: tuple[str, ...]
    run: tuple[str, ...]
    home: Path  # each agent's home is below it
    token_file: Path


@dataclass(slots=True)
class LocalAgent:
    """One agent."""

    name: str
    address: str
    began: float
    wanted: bool = True  # False: it is leaving, or was killed by command
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


class LocalAgents:
    """All agents, running or ended. `line` receives each line they write, `say` messages for users."""

    def __init__(
        self,
        wish: AgentOptions,
        keeps: ProcessKeeper,
        network: Network | None,
        line: Callable[[str, bytes], None],
        say: Callable[[str], None],
    ) -> None:
        self._wish = wish
        self._keeps = keeps
        self._network = network
        self._line = line
        self._say = say
        self._all: dict[str, LocalAgent] = {}

    @property
    def running(self) -> list[LocalAgent]:
        return [agent for agent in self._all.values() if agent.runs]

    @property
    def present(self) -> list[str]:
        """Names of the running agents that are not leaving, oldest first."""
        return [agent.name for agent in self.running if agent.wanted]

    def bring_to(self, wanted: int, url: str) -> bool:
        """Add or remove agents up to that number; return False if nothing changed."""
        changed = agent_change(wanted, self.present, self._all)
        for name in changed.add:
            self._start(name, url)
        for name in changed.remove:
            self.remove(self._all[name])
        return bool(changed.add or changed.remove)

    def add(self, url: str) -> LocalAgent:
        """Start one more agent. Raises PliantError at the limit."""
        if len(self.present) >= AGENTS_MAX:
            raise PliantError(f"There are {AGENTS_MAX} agents, which is the limit.")
        (name,) = agent_change(len(self.present) + 1, self.present, self._all).add
        return self._start(name, url)

    def named(self, name: str | None) -> LocalAgent:
        """Return the running agent of that name; without a name, the newest that is not leaving.

        Raises PliantError with the names of all running agents.
        """
        if name is None:
            if not self.present:
                raise PliantError("No agent is left.")
            name = self.present[-1]
        agent = self._all.get(name)
        if agent is None or not agent.runs:
            there = ", ".join(each.name for each in self.running) or "none"
            raise PliantError(f"There is no agent {name}. Running agents: {there}.")
        return agent

    def remove(self, agent: LocalAgent) -> None:
        """Let an agent leave, with its workers."""
        agent.wanted = False
        self._keeps.terminate(agent.name)

    def kill(self, agent: LocalAgent) -> None:
        agent.wanted = False
        self._keeps.kill(agent.name)

    def connect(self, agent: LocalAgent, *, is_cut: bool) -> None:
        """Cut an agent off, or reconnect it."""
        if self._network is None:
            raise PliantError(
                "Agents on 127.0.0.1 cannot be cut off. Run `pliant local` as root, with --network namespaces."
            )
        (self._network.cut if is_cut else self._network.heal)(number_of(agent.name))
        agent.cut = is_cut
        self._say(f"{agent.name} is {'cut off' if is_cut else 'reconnected'}")

    def ended(self, name: str, code: int) -> LocalAgent:
        """Record the end of an agent's process."""
        agent = self._all[name]
        agent.code = code
        self._say(f"{agent.name} ended with {describe_exit(code)}")
        if self._network is not None:
            threading.Thread(target=self._forget, args=(self._network, agent), name="forget", daemon=True).start()
        return agent

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each agent, for `pliant local list`."""
        now = time.monotonic()
        for each in self._all.values():
            yield {
                "agent": each.name,
                "state": each.state,
                "address": each.address,
                "age_s": round(now - each.began, 1),
                "code": each.code,
            }

    def _start(self, name: str, url: str) -> LocalAgent:
        network, wish = self._network, self._wish
        address = LOOPBACK if network is None else network.add(number_of(name))
        inside = () if network is None else network.inside(number_of(name))
        cards = () if network is None else (card for card in CARDS if not settings.is_set(card))
        where = ("--coordinator", url, "--token-file", str(wish.token_file))
        argv = [*inside, *wish.program, "run", "--job", wish.job, *where, "--json", *wish.run]
        env = {"PLIANT_HOME": str(wish.home / name), "PLIANT_AGENT": name, **dict.fromkeys(cards, INTERFACE)}
        agent = self._all[name] = LocalAgent(name, address, time.monotonic())
        self._keeps.start(name, argv, env, lambda line: self._line(name, line))
        return agent

    def _forget(self, network: Network, agent: LocalAgent) -> None:
        """Remove an agent's namespace. This takes a while: processes that it left there have to end first."""
        try:
            network.remove(number_of(agent.name))
        except PliantError as error:
            self._say(error.why)
