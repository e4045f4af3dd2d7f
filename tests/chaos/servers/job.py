"""A job with parameter servers, watched and struck from outside."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from chaos.servers.pushes import Counts, Pushes, saved_counts
from e2e.launched import Launched, kill
from e2e.running import wait_for
from pliant.client import Client
from pliant.core.model.names import MemberId
from pliant.core.supervisor.state import is_server
from pliant.wire.api import JobStatus, MemberLine
from unit.cli.program import environment, real

TESTS = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("training.py")
PATIENCE_S = 180.0
LOOK_S = 0.05
WORKERS = 2
SERVERS = 2


@dataclass(frozen=True)
class Setting:
    """One way to apply pushes."""

    name: str
    grads_to_wait: int
    staleness_max: int | None = None
    staleness_rates: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        limit = () if self.staleness_max is None else ("--staleness-max", str(self.staleness_max))
        rates = ("--staleness-rates",) if self.staleness_rates else ()
        return ("--grads-to-wait", str(self.grads_to_wait), *limit, *rates)


@dataclass(frozen=True)
class Size:
    """The length of a job."""

    shards: int
    records_per_shard: int = 256
    batch: int = 32

    @property
    def records(self) -> int:
        return self.shards * self.records_per_shard


@dataclass
class ServerJob:
    """A job from its start to its end. Its workers wait once `shards_max` shards are done."""

    base: Path
    setting: Setting
    size: Size
    shards_max: int = field(init=False)
    extra: Launched | None = field(default=None, init=False)  # an agent with one more server

    def __post_init__(self) -> None:
        self.folder, self.home = self.base / "workers", self.base / "home"
        self.folder.mkdir(parents=True)
        self.shards_max = self.size.shards
        self._hold = self.folder / "hold"
        self.checkpoints = self.base / "checkpoints"

    def __enter__(self) -> ServerJob:
        sizes = ("--workers", f"1:{WORKERS}", "--ps", str(SERVERS))
        self.run = self._launch(self.home, *sizes, "--checkpoint-every", "5s")
        try:
            self.run.endpoint_when_there()
            self._clients = self.run.client()
            self.client: Client = self._clients.__enter__()
            wait_for(lambda: any(job.name == "demo" for job in self.client.jobs()), "the job", PATIENCE_S)
        except BaseException:  # why: whatever happens, no process is left behind
            self.run.__exit__(None, None, None)
            raise
        return self

    def _launch(self, home: Path, *options: str, **env: str) -> Launched:
        size = self.size
        lengths = ("--records", size.records, "--records-per-shard", size.records_per_shard, "--batch-size", size.batch)
        script = (str(SCRIPT), str(self.folder), *map(str, lengths), *self.setting.options)
        paths = f"{TESTS.parent / 'examples'}:{TESTS}"
        options = (*options, "--max-restarts", "100000", "--checkpoint-dir", str(self.checkpoints))
        return Launched(home, *options, *script, OMP_NUM_THREADS="1", PYTHONPATH=paths, **env)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._clients.__exit__(None, None, None)
        (self.base / "output").write_text(self.run.output)
        for launched in (self.extra, self.run):
            if launched is not None:
                launched.__exit__(None, None, None)

    # -------------------------------------------------------------------------------------------------- looking

    @property
    def ended(self) -> bool:
        return self.run.process.poll() is not None

    def until(self, true: Callable[[JobStatus], object], what: str) -> JobStatus:
        """Return the status for which it is true. Raises AssertionError if `pliant run` ends before."""

        def look() -> bool:
            assert not self.ended, f"pliant run ended while the campaign waited for {what}"
            status = self.client.job("demo")
            found[:] = [status]
            if status.tasks is not None and self.shards_max <= status.tasks.done < self.size.shards:
                self._hold.touch()
            else:
                self._hold.unlink(missing_ok=True)
            return bool(true(status))

        found: list[JobStatus] = []
        wait_for(look, what, PATIENCE_S, look_s=LOOK_S)
        return found[0]

    def finish(self) -> int:
        """Let the job end; return the exit status."""
        self._hold.unlink(missing_ok=True)
        status = self.run.ended(10 * PATIENCE_S)
        if self.extra is not None:
            self.extra.ended(PATIENCE_S)
        return status

    # ------------------------------------------------------------------------------------------------- striking

    def kill(self, member: MemberLine) -> None:
        assert member.pid is not None
        kill(member.pid)

    def drain(self, member: MemberId) -> None:
        done = real(environment(self.home), "drain", "demo", member)
        assert done.code == 0, done.err

    def add_server(self) -> None:
        """Start another agent, with one server and no workers."""
        told = self.run.endpoint
        place = ("--coordinator", told["url"], "--token-file", told["token_file"])
        self.extra = self._launch(
            self.base / "extra", "--nproc-per-node", "0", "--ps", "1", *place, PLIANT_AGENT="extra"
        )

    def remove_server(self) -> None:
        """Let the other agent leave with its server."""
        assert self.extra is not None
        self.extra.signal(signal.SIGTERM)
        status = self.extra.ended(PATIENCE_S)
        assert status == 143, f"the agent that left ended with {status}:\n{self.extra.output[-3000:]}"
        self.extra = None

    # ------------------------------------------------------------------------------------------------- results

    def pushes(self) -> Pushes:
        return Pushes(self.folder, self.size.records)

    def saved(self) -> Counts:
        return saved_counts(self.checkpoints / "demo", self.size.records, self.setting.grads_to_wait)

    def audit(self) -> dict[str, Any]:
        found: dict[str, Any] = real(environment(self.home), "audit", "demo", "--json").json
        return found

    def events(self) -> list[str]:
        return real(environment(self.home), "events", "demo").out.splitlines()

    def loss(self) -> float:
        """Return the loss of the evaluation at the end."""
        (told,) = [line for line in self.events() if "evaluation 0 is done" in line]
        found = re.search(r"loss ([\d.]+)", told)
        assert found is not None
        return float(found[1])


def servers(status: JobStatus) -> list[MemberLine]:
    return [member for member in status.members if is_server(member.id) and member.pid]


def workers(status: JobStatus) -> list[MemberLine]:
    return [member for member in status.members if not is_server(member.id) and member.pid]
