"""Faults at the workers and servers of one job, one after the other, and the checks of its end."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from chaos.servers.job import SERVERS, ServerJob, Setting, Size, servers, workers
from chaos.servers.pushes import ACKNOWLEDGED, REFUSED, Counts, Pushes
from pliant.wire.api import JobStatus

SHARDS_PER_FAULT = 6
SHARDS_AFTER = 8  # of the last fault
LOSS_WITHIN = 0.05  # of the undisturbed run


class Fault(StrEnum):
    """A kind of fault."""

    KILL_WORKER = "kill-worker"
    KILL_SERVER = "kill-server"
    DRAIN_SERVER = "drain-server"
    ADD_SERVER = "add-server"
    REMOVE_SERVER = "remove-server"


SHARES = {Fault.KILL_WORKER: 0.4, Fault.KILL_SERVER: 0.35, Fault.DRAIN_SERVER: 0.1, Fault.ADD_SERVER: 0.15}


def plan(count: int, chance: random.Random) -> list[Fault]:
    """Return so many faults. Every second change of the number of servers is a removal."""
    drawn = [fault for fault, share in SHARES.items() for _ in range(max(1, round(share * count)))]
    chance.shuffle(drawn)
    changes: Iterator[int] = iter(range(count))
    return [
        Fault.REMOVE_SERVER if fault is Fault.ADD_SERVER and next(changes) % 2 else fault for fault in drawn[:count]
    ]


def size_for(faults: int) -> Size:
    return Size(SHARDS_PER_FAULT * faults + SHARDS_AFTER)


class Campaign:
    """The faults of one job. A server is only struck while every bucket has two copies, as the promise demands."""

    def __init__(self, job: ServerJob, faults: list[Fault], chance: random.Random) -> None:
        self._job, self._faults, self._chance = job, faults, chance
        self.done: Counter[Fault] = Counter()
        self.seconds: list[float] = []  # until each fault was felt, with the wait for two copies before

    def run(self) -> None:
        strikes: dict[Fault, Callable[[], str]] = {
            Fault.KILL_WORKER: self._kill_worker,
            Fault.KILL_SERVER: self._kill_server,
            Fault.DRAIN_SERVER: self._drain_server,
            Fault.ADD_SERVER: self._add_server,
            Fault.REMOVE_SERVER: self._remove_server,
        }
        began = time.monotonic()
        for at, fault in enumerate(self._faults):
            self._job.shards_max = SHARDS_PER_FAULT * (at + 1)
            self._until_done(SHARDS_PER_FAULT * at + 1)
            struck = time.monotonic()
            victim = strikes[fault]()
            self.done[fault] += 1
            self.seconds.append(time.monotonic() - struck)
            print(
                f"{self._job.setting.name}, {time.monotonic() - began:6.1f} s: fault {at + 1} of {len(self._faults)}, "
                f"{fault} {victim}, felt after {self.seconds[-1]:.1f} s; {self._until_done(0)} shards are done",
                flush=True,
            )

    def _until_done(self, shards: int) -> int:
        """Wait until so many shards are done, and return their number."""

        def done(status: JobStatus) -> int:
            return -1 if status.tasks is None else status.tasks.done

        return done(self._job.until(lambda status: done(status) >= shards, f"{shards} shards"))

    def _whole(self) -> JobStatus:
        """Wait until every bucket has two copies, so that a server can be lost."""
        return self._job.until(lambda now: now.tables_whole and len(servers(now)) >= SERVERS, "two copies")

    def _until_gone(self, name: str) -> None:
        self._job.until(lambda now: name not in {member.id for member in now.members}, f"the end of {name}")

    def _kill_worker(self) -> str:
        found = self._job.until(workers, "a worker")
        victim = self._chance.choice(sorted(workers(found), key=lambda member: member.id))
        self._job.kill(victim)
        self._until_gone(victim.id)
        return victim.id

    def _kill_server(self) -> str:
        victim = self._chance.choice(sorted(servers(self._whole()), key=lambda member: member.id))
        self._job.kill(victim)
        self._until_gone(victim.id)
        return victim.id

    def _drain_server(self) -> str:
        victim = self._chance.choice(sorted(servers(self._whole()), key=lambda member: member.id))
        self._job.drain(victim.id)
        self._until_gone(victim.id)
        return victim.id

    def _add_server(self) -> str:
        self._job.add_server()
        status = self._job.until(lambda now: any(member.agent == "extra" for member in servers(now)), "another server")
        return next(member.id for member in servers(status) if member.agent == "extra")

    def _remove_server(self) -> str:
        self._whole()
        self._job.remove_server()
        return "extra"


def strike(folder: Path, setting: Setting, faults: list[Fault], chance: random.Random) -> dict[str, Any]:
    """Run a job through faults, and return what it showed, with the broken promises in `broken`."""
    began = time.monotonic()
    with ServerJob(folder, setting, size_for(len(faults))) as job:
        campaign = Campaign(job, faults, chance)
        broken: list[str] = []
        try:
            campaign.run()
        except AssertionError as error:
            broken.append(f"after {campaign.done.total()} faults: {error}")
            return {"broken": broken, "faults": campaign.done.total()}
        status = job.finish()
        if status != 0:
            broken.append(f"pliant run ended with {status}")
        found = check(job, broken)
    felt = sorted(campaign.seconds)
    return {
        "broken": broken,
        "faults": campaign.done.total(),
        "kinds": dict(campaign.done),
        **found,
        "felt_s": {"median": round(felt[len(felt) // 2], 2), "longest": round(felt[-1], 2)},
        "seconds": round(time.monotonic() - began, 1),
    }


def check(job: ServerJob, broken: list[str]) -> dict[str, Any]:
    """Compare the audit, the workers' notes and the saved tables of an ended job."""
    audit, pushes, saved = job.audit(), job.pushes(), job.saved()
    if not audit["ok"] or audit["records"] != job.size.records or audit["shards_missing"]:
        broken.append(f"the audit found {audit}")
    broken += compare(pushes, saved, audit["repeated_max"])
    broken += [line for line in job.events() if "continue from the last checkpoint" in line]
    return {
        "records": audit["records"],
        "attempts": audit["attempts"],
        "pushes": pushes.batches[ACKNOWLEDGED],
        "refused": pushes.batches[REFUSED],
        "repeated": _repeated(pushes),
        "repeated_max": audit["repeated_max"],
        "loss": job.loss(),
    }


def compare(pushes: Pushes, saved: Counts, repeated_max: int) -> list[str]:
    """Return what is wrong with the saved counts of each record, given the pushes that workers wrote down."""
    broken = []
    if lost := int((saved < pushes.acknowledged).sum()):
        broken.append(f"acknowledged pushes of {lost} records are lost")
    if twice := int((saved > pushes.begun).sum()):
        broken.append(f"pushes of {twice} records were applied more often than they were sent")
    if missing := int((pushes.acknowledged < 1).sum()):
        broken.append(f"{missing} records are done, and no push of them was acknowledged")
    if (repeated := _repeated(pushes)) > repeated_max:
        broken.append(f"{repeated} records were processed again, and the audit allows {repeated_max}")
    return broken


def _repeated(pushes: Pushes) -> int:
    return int(np.maximum(pushes.acknowledged - 1, 0).sum())


def undisturbed(folder: Path, setting: Setting, faults: int) -> dict[str, Any]:
    """Train the same without faults."""
    began = time.monotonic()
    broken: list[str] = []
    with ServerJob(folder, setting, size_for(faults)) as job:
        if (status := job.finish()) != 0:
            broken.append(f"pliant run ended with {status}")
        found = check(job, broken)
    return {"broken": broken, **found, "seconds": round(time.monotonic() - began, 1)}
