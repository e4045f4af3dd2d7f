"""A coordinator and members in processes of their own, watched from outside.

    with Crowd(home, fork_server) as crowd:
        a, b = crowd.start(2)
        a.reached(5)
        b.kill()
        crowd.fast()
        crowd.finished(a)

The test stands in for the agent: it tells the coordinator how a process ended (rule 19).
"""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from e2e.running import Running, start, wait_for
from pliant.client import Client
from pliant.core.messages import Create, Drain, Exited, Resize, StepsCommitted
from pliant.core.model.job import JobSpec, JobState, Target
from pliant.core.model.names import MemberId
from pliant.wire.api import JobStatus
from unit.cli.program import Done, environment, real

PATIENCE_S = 120.0
JOB = "live"


class ForkServer:
    """The process that members are forked from. One for a whole session."""

    def __init__(self, log: Path, scenes: str = "live.scenes", **settings: str) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PLIANT_", "XDG_"))},
            "OMP_NUM_THREADS": "1",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # looking for a GPU must not make forking impossible
            "GLOO_LOG_LEVEL": "FATAL",
            "TORCH_CPP_LOG_LEVEL": "FATAL",
            "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '.')}:{Path(__file__).parents[1]}",
            **settings,
        }
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, *([] if settings else ["-W", "error"]), "-m", "live.fork_server", scenes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        self._changed = threading.Condition()
        self._born: list[int] = []
        self._codes: dict[int, int] = {}
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def fork(self, order: dict[str, Any]) -> int:
        with self._changed:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            assert self._changed.wait_for(lambda: self._born, 600.0), "the fork server forked no member"
            return self._born.pop()

    def code(self, pid: int) -> int | None:
        """Return how a process ended; None while it lives."""
        with self._changed:
            return self._codes.get(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60.0)
        self._reading.join(60.0)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._changed:
                if "code" in said:
                    self._codes[said["pid"]] = said["code"]
                elif "pid" in said:
                    self._born.append(said["pid"])
                self._changed.notify_all()


class Member:
    """One member's process, and what it said."""

    def __init__(self, crowd: "Crowd", name: str, pid: int, log: Path) -> None:
        self.crowd = crowd
        self.name = MemberId(name)
        self.pid = pid
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def said(self, key: str) -> list[dict[str, Any]]:
        """Everything it told under that key, in order."""
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{") and line.endswith("}")]
        return [line for line in lines if key in line]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return self.said("size")

    @property
    def code(self) -> int | None:
        return self.crowd.fork_server.code(self.pid)

    def tells(self, key: str, times: int = 1) -> dict[str, Any]:
        """Wait until it told that so often."""
        self.crowd.wait(lambda: len(self.said(key)) >= times, f"{self.name} to tell {key}", self)
        return self.said(key)[times - 1]

    def reached(self, step: int) -> None:
        self.crowd.wait(
            lambda: bool(self.steps) and self.steps[-1]["step"] >= step, f"{self.name} to reach step {step}", self
        )

    def in_world_of(self, size: int) -> dict[str, Any]:
        """Wait until it trained in a world of that size last."""
        self.crowd.wait(
            lambda: bool(self.steps) and self.steps[-1]["size"] == size, f"{self.name} in a world of {size}", self
        )
        return self.steps[-1]

    def logged(self, text: str) -> None:
        self.crowd.wait(lambda: text in self.log, f"{self.name} to say {text!r}", self)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def ended(self) -> int:
        """Wait for its end; the exit status."""
        self.crowd.wait(lambda: self.code is not None, f"{self.name} to end")
        assert self.code is not None
        return self.code


class Crowd:
    """One job with its coordinator and members."""

    def __init__(
        self,
        home: Path,
        fork_server: ForkServer,
        *,
        target: int = 2,
        size_min: int = 1,
        size_max: int = 8,
        lease_ttl_s: float = 10.0,
        max_restarts: int = 3,
        patience_s: float = PATIENCE_S,
        **plan: Any,
    ) -> None:
        self.home = home
        self.fork_server = fork_server
        self.members: list[Member] = []
        self._told_of: set[int] = set()
        self._plan = {"folder": str(home), **plan}
        self._lease_ttl_s = lease_ttl_s
        self._patience_s = patience_s
        self._coordinator = self._start()
        self.client: Client = self._coordinator.client()
        self.client.send(JOB, Create(JOB, JobSpec(size_min, size_max, Target(target), max_restarts=max_restarts)))

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for member in self.members:
            if member.code is None:
                member.signal(signal.SIGKILL)
        wait_for(lambda: all(member.code is not None for member in self.members), "all members to end")
        if kind is not None:
            for member in self.members:
                print(f"--- {member.name}, exit status {member.code}\n{member.log[-2500:]}")
            for at, event in self.client.events(JOB, 0, 1000):
                if not isinstance(event, StepsCommitted):
                    print(at, event)
        self._coordinator.kill() if kind is not None else self._coordinator.stop()

    def _start(self, port: int = 0) -> Running:
        store = f"sqlite:{self.home / 'store.db'}"
        return start(store, home=self.home / "coordinator", port=port, lease_ttl_s=self._lease_ttl_s)

    def kill_coordinator(self) -> None:
        self._coordinator.kill()

    def restart_coordinator(self) -> None:
        self._coordinator = self._start(self._coordinator.port)
        self.client = self._coordinator.client()

    def join(self, **plan: Any) -> Member:
        """Start one more member; it joins when it is ready."""
        name = f"m{len(self.members)}"
        log = self.home / f"{name}.log"
        environment = {
            "PLIANT_COORDINATOR": self._coordinator.url,
            "PLIANT_JOB": JOB,
            "PLIANT_MEMBER": name,
            "PLIANT_AGENT": "test",
            "PLIANT_TOKEN_FILE": str(self._coordinator.home / "token"),
            "PLIANT_CHECKPOINT_DIR": str(self.home / "checkpoints"),
            "PLIANT_GRACE_S": "20",
        }
        whole = {**self._plan, "own_seed": len(self.members), **plan}
        pid = self.fork_server.fork({"scene": "train", "plan": whole, "env": environment, "log": str(log)})
        member = Member(self, name, pid, log)
        self.members.append(member)
        return member

    def start(self, count: int, **plan: Any) -> list[Member]:
        """So many members, in the order of their ranks, at work."""
        found = []
        for _ in range(count):
            found.append(self.join(**plan))
            found[-1].tells("joined")
        return found

    def wait(self, true: Any, what: str, member: Member | None = None) -> None:
        """Wait, seeing to what an agent does meanwhile. A member that ended will not do what is waited for."""

        def seen() -> bool:
            self.tell_of_the_dead()
            if true():
                return True
            assert member is None or member.code is None or true(), f"{member.name} ended with {member.code}: {what}"
            return False

        wait_for(seen, what, self._patience_s)

    def tell_of_the_dead(self) -> None:
        for member in self.members if self._coordinator.alive else ():
            if member.code is not None and member.pid not in self._told_of:
                self._told_of.add(member.pid)
                self.client.send(JOB, Exited(member.name, member.code))

    def audit(self) -> Done:
        """The audit of the job so far, by the program."""
        return real(environment(self._coordinator.home), "audit", JOB, "--coordinator", self._coordinator.url)

    @property
    def status(self) -> JobStatus:
        return self.client.job(JOB)

    def has_size(self, size: int) -> None:
        self.wait(lambda: self.status.job.size == size, f"a world of {size}")

    def resize(self, size: int) -> None:
        self.client.send(JOB, Resize(Target(size)))

    def drain(self, member: Member, grace_s: float = 20.0) -> None:
        self.client.send(JOB, Drain(member.name, grace_s, "the test wants it so"))

    def fast(self) -> None:
        """Nothing more is to be seen: train to the end."""
        (self.home / "fast").touch()

    def go(self) -> None:
        (self.home / "go").touch()

    def finished(self, *members: Member) -> list[dict[str, Any]]:
        """Train to the end, and give what these members ended with: the same bits on each."""
        self.fast()
        ends = [member.tells("done") for member in members]
        assert [member.ended() for member in members] == [0] * len(members)
        self.wait(lambda: self.status.job.state is JobState.FINISHED, "the job to be finished")
        assert self.status.job.step == self.status.job.total_steps
        assert len({(end["digest"], end["scheduler"], end["steps"], end["rate"]) for end in ends}) == 1, ends
        return ends
