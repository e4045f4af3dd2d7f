"""The course of each script: it starts, a worker is killed, an agent is added, and it ends."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from time import monotonic
from typing import Any

from e2e.running import wait_for
from scripts.cases import Case
from scripts.watched import Agent, Broken, Step, left
from unit.cli.program import environment, free_port, real

JOB = "script"
QUICK, SLOW, FULL = "0.1", "0.6", "0"  # seconds for a step: to watch, to wait for a worker, to come to the end
SAVED = 14  # by this step each script has written a checkpoint
SEEN = 3  # so many steps of every worker are a world at work
GONE_S = 10.0


class Story:
    """One script with one or two agents. `run` gives what it found; what is wrong is raised as `Broken`."""

    def __init__(self, case: Case, folder: Path, seed: int) -> None:
        self.case = case
        self.folder = folder
        self.chance = random.Random(f"{case.name} {seed}")
        self.work = folder / "work"  # where the script runs, and leaves its checkpoints
        self.work.mkdir(parents=True)
        self.pace = folder / "pace"
        self.port = free_port()
        self.agents: list[Agent] = []
        self.began = monotonic()
        self.found: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        try:
            self._start()
            self._kill()
            self._add()
            self._end()
        finally:
            for agent in self.agents:
                agent.close()
        return self.found

    # ------------------------------------------------------------------------------------------------------ the acts

    def _start(self) -> None:
        self._paced(QUICK)
        agent = self._agent("first", self.case.first)
        size = self.case.worlds[0]
        agent.until(lambda: self._at_work(0, size, past=SAVED), f"{SAVED} steps of {size} workers")
        self._mark("start")

    def _kill(self) -> None:
        """A worker is killed. The others are relaunched with its successor, or, beside parameter servers, stay."""
        (agent,) = self.agents
        if self.case.refilled:
            number = self.chance.choice(sorted(agent.serving))
            before, last = len(agent.serving[number]), agent.steps[-1]
            os.kill(agent.serving[number][-1], signal.SIGKILL)
            agent.until(lambda: len(agent.serving[number]) > before, "the killed worker's successor")
            agent.until(lambda: agent.steps[-1].step > last.step + SAVED, "steps after the kill")
            if agent.steps[-1].pid != last.pid:
                raise Broken("the chief was started again, though only a worker was killed")
        else:
            victim = self.chance.choice(self._latest())
            os.kill(victim.pid, signal.SIGKILL)
            agent.until(lambda: self._at_work(victim.generation, self.case.worlds[0]), "a new launch after the kill")
            self._resumed(victim.generation)
        self._mark("killed")

    def _add(self) -> None:
        """A second agent comes, with a token that is good for nothing else, and the world is larger."""
        self._paced(SLOW)
        (agent,) = self.agents
        before = self._generation()
        env = environment(agent.install_id)
        token = self.folder / "join-token"
        made = real(env, "token", "create", "--scope", "join", "--job", JOB, "--out", str(token))
        if made.code:
            raise Broken(f"no token for the second agent: {made.err}")
        second = self._agent("second", self.case.second, "--token-file", str(token))
        size = self.case.worlds[1]
        agent.until(lambda: second.ended or self._at_work(before, size), f"steps of {size} workers")
        if second.ended:
            raise Broken(f"second ended with {second.process.returncode} before steps of {size} workers")
        self._resumed(before)
        self._mark("added")

    def _end(self) -> None:
        self._paced(FULL)
        codes = {agent.name: agent.exit_code() for agent in self.agents}
        self._mark("end")
        self.found |= {"exit_codes": codes, "steps": max(step.step for step in self._steps())}
        self.found["generations"] = self._generation()
        if any(codes.values()):
            raise Broken(f"exit codes {codes}")
        for agent in self.agents:
            wait_for_nobody(agent.install_id)

    # -------------------------------------------------------------------------------------------------------- pieces

    def _agent(self, name: str, capacity: int, *more: str) -> Agent:
        case = self.case
        place = ("--job", JOB, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}")
        command = (*place, *case.options(capacity), "--shutdown-timeout", "5", *more, str(case.script), *case.args)
        home = self.folder / name
        home.mkdir(mode=0o700)
        agent = Agent(name, home, self.work, command, PACE_FILE=str(self.pace))
        self.agents.append(agent)
        return agent

    def _paced(self, seconds: str) -> None:
        unfinished = self.pace.with_suffix(".unfinished")
        unfinished.write_text(seconds)
        unfinished.replace(self.pace)

    def _steps(self) -> list[Step]:
        return [step for agent in self.agents for step in agent.steps]

    def _generation(self) -> int:
        return max((step.generation for step in self._steps()), default=0)

    def _latest(self) -> list[Step]:
        """The latest step of each rank of the newest launch."""
        newest = self._generation()
        found = {step.rank: step for step in self._steps() if step.generation == newest}
        return [found[rank] for rank in sorted(found)]

    def _at_work(self, after: int, size: int, past: int = 0) -> bool:
        """Return whether a launch newer than `after`, of this size, has done some steps, and got past a step."""
        steps = [step for step in self._steps() if step.generation > after and step.world == size]
        counts = {rank: sum(step.rank == rank for step in steps) for rank in {step.rank for step in steps}}
        counting = 1 if self.case.refilled else size  # of a chief and its workers only the chief counts steps
        return len(counts) == counting and min(counts.values()) >= SEEN and max(s.step for s in steps) > past

    def _resumed(self, after: int) -> None:
        """Return whether the script went on where its checkpoint was, rather than beginning again."""
        newer = [step for step in self._steps() if step.generation > after]
        if min(step.step for step in newer) == 1:
            raise Broken("the script began again at step 1")

    def _mark(self, name: str) -> None:
        self.found[f"{name}_s"] = round(monotonic() - self.began, 1)


def wait_for_nobody(home: Path) -> None:
    """See that all that an agent had started is gone."""
    try:
        wait_for(lambda: not left(home), "the end of every process", GONE_S)
    except AssertionError:
        raise Broken(f"left behind: {left(home)}") from None
