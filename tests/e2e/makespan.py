"""Two jobs on a pool that fits one and a half of them: `python -m e2e.makespan`, in the folder `tests`.

Elastic jobs share the pool. First-come, each job has a fixed size, and the second one waits until the first has ended.
Both have a real coordinator, machines lent by `pliant agent --pool`, and live PyTorch jobs. The last line of the output
is one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT

import click

from e2e.launched import Launched, Lending, all_gone, family
from e2e.pools import SCRIPTS, digests, watched, with_tests
from e2e.running import Running, start, wait_for
from pliant.client import Client
from pliant.core import messages as m
from pliant.core.allocate import Pool
from pliant.core.model.job import JobSpec, JobState, Mode
from unit.cli.program import environment, real

SCRIPT = "makespan_worker.py"
MACHINES, SLOTS_EACH = 3, 2
POOL = MACHINES * SLOTS_EACH
WORKERS = 4  # that each job can use: the pool fits one and a half jobs
LEAST = {"first-come": WORKERS, "elastic": 1}  # workers of a job, by arrangement
JOBS = ("first", "second")
STEPS = 120
SLOT_S = 0.1  # for each of the 12 slots of a step, on one worker
ENDS_S = 600.0


@dataclass
class Record:
    """The times of one job by the coordinator's clock, and its sizes, from its events."""

    created: float = 0.0
    began: float = 0.0  # its first world
    ended: float = 0.0
    sizes: tuple[int, ...] = ()  # of its worlds, in order

    @classmethod
    def of(cls, client: Client, job: str) -> Record:
        found = cls()
        for event in events(client, job):
            match event:
                case m.JobCreated(at=at):
                    found.created = at
                case m.WorldEntered(at=at):
                    found.began = found.began or at
                case m.WorldFormed(world=world):
                    found.sizes += (len(world.members),)
                case m.StateChanged(at=at, state=JobState.FINISHED):
                    found.ended = at
                case _:
                    pass
        return found


@dataclass(frozen=True)
class Outcome:
    """The records of both jobs in one arrangement, the digests of their workers, and what was wrong."""

    records: dict[str, Record]
    digests: dict[str, set[str]]
    wrong: list[str]

    @property
    def figures(self) -> dict[str, float]:
        first, second = (self.records[job] for job in JOBS)
        mean_s = (first.ended - first.created + second.ended - second.created) / 2
        return {"makespan_s": round(max(first.ended, second.ended) - first.created, 1), "mean_s": round(mean_s, 1)}


def events(client: Client, job: str) -> Iterator[m.Event]:
    after = 0
    while found := client.events(job, after):
        yield from (event for _, event in found)
        after = found[-1][0]


@contextmanager
def machine(home: Path, at: Running, name: str) -> Iterator[Launched]:
    """Lend a machine, and take it back: then none of its processes runs."""
    options = ("--coordinator", at.url, "--token-file", str(at.home / "token"), "--slots", str(SLOTS_EACH))
    where = ("--scripts", str(SCRIPTS), "--checkpoint-dir", str(home / "checkpoints"))
    env = {"PYTHONPATH": with_tests(), "PLIANT_AGENT": name, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    with Lending(home / name, *options, *where, job=name, **env) as lending:
        yield lending
        processes = family(lending.home)
        lending.signal(SIGINT)
        assert lending.ended() == 0, lending.output
        all_gone(processes, lending.home)


def arrange(home: Path, least: int, seed: int) -> Outcome:
    """Run both jobs on a fresh pool. The second one is created once the first one trains."""
    with start(f"sqlite:{home / 'store.db'}", home=home / "coordinator") as at, watched(at.client(), POOL) as seen:
        client = at.client()
        client.set_pool(Pool(0, is_lent=True))
        with ExitStack() as until:
            machines = [until.enter_context(machine(home, at, f"machine{number}")) for number in range(MACHINES)]
            wait_for(lambda: client.pool().pool == Pool(POOL, is_lent=True), "all machines")
            for number, job in enumerate(JOBS):
                script = (SCRIPT, str(STEPS), str(SLOT_S), str(seed + number))
                client.send(job, m.Create(job, JobSpec(least, WORKERS, mode=Mode.AUTO, queue="default", script=script)))
                wait_for(lambda: client.job(JOBS[0]).job.step > 0, f"the first step of {JOBS[0]}")
            for job in JOBS:
                wait_for(lambda job=job: client.job(job).job.state.ended, f"the end of {job}", ENDS_S, look_s=0.2)  # type: ignore[misc]
        records = {job: Record.of(client, job) for job in JOBS}
        wrong = [*seen.over, *(f"{job} did not finish" for job in JOBS if not records[job].ended), *unsound(at)]
    lines = [line for each in machines for line in each.lines]
    return Outcome(records, {job: digests([x for x in lines if x.startswith(f"[{job} ")]) for job in JOBS}, wrong)


def unsound(at: Running) -> list[str]:
    """Return the jobs whose audits find lost or repeated samples."""
    env = environment(at.home, PLIANT_COORDINATOR=at.url)
    done = {job: real(env, "audit", job, "--json", "--token-file", str(at.home / "token")) for job in JOBS}
    return [f"the audit of {job} failed: {each.out}" for job, each in done.items() if each.code or not each.json["ok"]]


def alone(home: Path, seed: int) -> set[str]:
    """Return the digest of one worker without a coordinator."""
    command = [sys.executable, str(SCRIPTS / SCRIPT), str(STEPS), "0", str(seed)]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=300, check=True)
    return digests(done.stdout.splitlines())


def misarranged(outcomes: dict[str, Outcome]) -> list[str]:
    """Return what was not as the names of the arrangements say."""
    wrong = []
    first, second = (outcomes["first-come"].records[job] for job in JOBS)
    if second.began < first.ended or {*first.sizes, *second.sizes} != {WORKERS}:
        wrong.append(f"first-come: {second} did not wait for {first}, or a size changed")
    first, second = (outcomes["elastic"].records[job] for job in JOBS)
    if second.began > first.ended:
        wrong.append(f"elastic: {second} waited for {first}")
    return wrong


@click.command(help=__doc__)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True)
def main(seed: int) -> None:
    outcomes: dict[str, Outcome] = {}
    for name, least in LEAST.items():
        with tempfile.TemporaryDirectory(prefix="pliant-makespan-") as folder:
            outcomes[name] = arrange(Path(folder), least, seed)
    with tempfile.TemporaryDirectory(prefix="pliant-makespan-") as folder:
        bits = {job: alone(Path(folder), seed + number) for number, job in enumerate(JOBS)}
    wrong = misarranged(outcomes)
    for name, each in outcomes.items():
        wrong += [f"{name}: {text}" for text in each.wrong]
        wrong += [f"{name}: the bits of {job} differ" for job in JOBS if each.digests[job] != bits[job]]
    print("| arrangement | " + " | ".join(outcomes["elastic"].figures) + " | sizes of the first job | of the second |")
    print("|---" * 5 + "|")
    for name, each in outcomes.items():
        sizes = [", ".join(map(str, each.records[job].sizes)) for job in JOBS]
        print("| " + " | ".join([name, *map(str, each.figures.values()), *sizes]) + " |")
    for text in wrong:
        print(text)
    figures = {name: each.figures for name, each in outcomes.items()}
    ratio = figures["elastic"]["makespan_s"] / figures["first-come"]["makespan_s"]
    print(json.dumps({"ok": not wrong, "wrong": len(wrong), "ratio": round(ratio, 3), **figures}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
