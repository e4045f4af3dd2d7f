"""A cluster of `pliant local` whose agents hang on wires of ours instead of the kernel's bridge alone."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from namespaces.cluster import Cluster
from networks.weather import Weather
from pliant_local import network
from pliant_local.schedule import number_of

FORWARDER = Path(__file__).with_name("forwarder.py")
FAIR = Weather()


class Wires:
    """Use it as a context manager, and `lay` a wire for each agent that runs."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        (self._owner,) = {
            whose for _, whose in network.namespaces_and_links() if whose.pid == cluster.process.pid and whose.began
        }
        # Its namespace goes with it, and with that every wire.
        self._forwarder = subprocess.Popen(
            ["unshare", "--net", sys.executable, str(FORWARDER), "run", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.agents: list[str] = []

    def __enter__(self) -> Wires:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._forwarder.stdin is not None
        assert self._forwarder.stdout is not None
        with suppress(BrokenPipeError):
            self._forwarder.stdin.close()
        self._forwarder.wait()
        self._forwarder.stdout.close()

    def lay(self, agent: str) -> None:
        """Put a wire between an agent and the bridge; for a moment it has none."""
        number, owner, pid = number_of(agent), self._owner, str(self._forwarder.pid)
        outer, far, near = f"plx{owner.pid}-{number}", f"far{number}", owner.link(number)
        namespace = owner.namespace(number)
        network.ip("netns", "exec", namespace, sys.executable, str(FORWARDER), "plain", network.INTERFACE)
        network.ip("link", "add", outer, "type", "veth", "peer", "name", far, "netns", pid)
        network.ip("link", "set", outer, "alias", owner.alias)
        subprocess.run([sys.executable, str(FORWARDER), "plain", outer], check=True)
        network.ip("link", "set", near, "netns", pid)
        network._join_bridge(owner.bridge, outer)
        network.ip("link", "set", outer, "up")
        self.agents.append(agent)
        self._say(agent, wire=(near, far))

    def namespace(self, agent: str) -> str:
        return self._owner.namespace(number_of(agent))

    def weather(self, agent: str, up: Weather, down: Weather | None = None) -> dict[str, Any]:
        """From now on: on the way from the agent, and on the way to it. What was counted so far."""
        return self._say(agent, up=asdict(up), down=asdict(up if down is None else down))

    def everywhere(self, weather: Weather) -> None:
        for agent in self.agents:
            self.weather(agent, weather)

    def reset(self, agent: str, seconds: float) -> None:
        """Every connection of that agent's over which something is said within this time gets a reset, once."""
        self._say(agent, reset_s=seconds)

    def counts(self) -> dict[str, int]:
        """Return what happened to frames, over all wires."""
        total: dict[str, int] = {}
        for agent in self.agents:
            said = self._say(agent)
            for name, count in [*said["up"].items(), *said["down"].items(), ("reset", said["reset"])]:
                total[name] = total.get(name, 0) + count
        return total

    def _say(self, agent: str, **order: Any) -> dict[str, Any]:
        assert self._forwarder.stdin is not None
        assert self._forwarder.stdout is not None
        print(json.dumps({"agent": agent, **order}), file=self._forwarder.stdin, flush=True)
        line = self._forwarder.stdout.readline()
        assert line, f"the forwarder has ended with {self._forwarder.wait()}"
        said: dict[str, Any] = json.loads(line)
        return said
