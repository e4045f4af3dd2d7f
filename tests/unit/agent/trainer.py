"""A script for `pliant run` that needs no framework: it joins, holds, and rank 0 commits the steps of a real ledger.

`python trainer.py [STEP_S [EPOCHS]]`. A step begins when the file `go` beside the job's checkpoints is there, if it is
started with STEP_S `go`.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from pliant.client import Client
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import LedgerLine, Lineage, expected_digest, make_line
from pliant.core.data.sample_order import Order
from pliant.core.messages import Drain, Join, Leave, Report
from pliant.core.model.job import Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View
from pliant.credentials import read_token
from pliant.errors import PliantError, Refused, Unreachable
from pliant.wire.views import apply_update

GRID = Grid(samples=40, batch=8, slots=4, epochs=int(sys.argv[2]) if len(sys.argv) > 2 else 4)
TERMS = Terms(GRID, seed=7)
FENCED = 75


class Trainer:
    def __init__(self, env: "os._Environ[str]") -> None:
        self.job, self.id = env["PLIANT_JOB"], MemberId(env["PLIANT_MEMBER"])
        self.agent = AgentId(env["PLIANT_AGENT"])
        self.go = Path(env["PLIANT_CHECKPOINT_DIR"]) / "go"
        self.grace_s = float(env["PLIANT_GRACE_S"])
        token = read_token(Path(env["PLIANT_TOKEN_FILE"]))
        self.client = Client(env["PLIANT_COORDINATOR"].split(","), token, patience_s=20.0)
        self.going = threading.Event()
        self.pause = threading.Event()

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self.going.set())
        self.client.send(self.job, Join(self.id, self.agent, TERMS, pid=os.getpid()))
        print(f"joined as {self.id}", flush=True)
        view: View | None = None
        told = 0
        while True:
            if self.going.is_set():
                self.client.send(self.job, Drain(self.id, self.grace_s, "SIGTERM"))
            told_now = self.client.watch(self.job, self.id, told, 0.05)
            if told_now.delta is not None:
                view = apply_update(view, told_now)
                told = view.revision
            assert view is not None
            if view.state.ended:
                return 0
            if not view.known:
                return FENCED
            if view.draining:
                self.client.send(self.job, Leave(self.id, 0, "drained"))
                return 0
            if view.worlds and view.worlds[-1].members[0] == self.id and not view.worlds[-1].hold:
                self.step(view, told_now.durable)

    def step(self, view: View, durable: Lineage) -> None:
        if sys.argv[1:2] == ["go"] and not self.go.exists():
            return
        if len(sys.argv) > 1 and sys.argv[1] != "go":
            self.pause.wait(float(sys.argv[1]))
        if durable.step == GRID.total_steps:
            return
        world = view.worlds[-1]
        done = self.client.send(
            self.job, Report(self.id, 0, world.number, (committed(durable, world.number),), frozenset(world.members))
        )
        print(f"step {durable.step + 1} is durable at {done.revision}", flush=True)


def committed(parent: Lineage, generation: int) -> LedgerLine:
    step = parent.step + 1
    digest = expected_digest(GRID, Order(TERMS.seed, GRID.samples), step)
    return make_line(parent, generation, step, GRID.cursor(step), GRID.size(step), digest)


def main() -> int:
    trainer = Trainer(os.environ)
    while True:
        try:
            return trainer.run()
        except (Refused, Unreachable) as error:
            if isinstance(error, Refused) and error.code == "ended":
                return 0
            print(f"again: {error.why}", flush=True)
        except PliantError as error:
            print(f"trouble: {error.why}", flush=True)
            return 1


if __name__ == "__main__":
    sys.exit(main())
