"""Detect workers that hang: by the time they spend in user code, or by samples of their CPU time and output. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pliant.core.model.names import MemberId

WINDOW_S = 10.0  # CPU use is measured over this long, because the system counts in hundredths of a second
IDLE = 0.01  # a smaller share of a core is not work; idle threads that poll use as much
STOPPED_S = 2.0  # a worker that is stopped for this long is killed if others wait for it

GRACE_SHARE = 0.3  # of a grace period in user code: the other members need the rest to save
LONGEST_TIMES = 5  # user code that took this many times as long as ever before counts as stuck in a grace period


def user_code_limit_s(stall_s: float, grace_s: float | None, longest_s: float, *, alone: bool) -> float:
    """Return how long a member may be in user code before it counts as stuck; 0 if there is no limit.

    `grace_s` is the length of its grace period, if one has begun, and `longest_s` its longest time in user code so far.
    A member that is alone keeps no other member from saving.
    """
    if grace_s is None or alone or not stall_s:
        return stall_s
    return min(stall_s, max(GRACE_SHARE * grace_s, LONGEST_TIMES * longest_s))


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """The CPU time and output of a worker up to a moment of the agent's clock."""

    member: MemberId
    at: float
    cpu_s: float
    written: int
    state: str = "S"  # of its process, as in `proc(5)`


@dataclass(frozen=True, slots=True)
class WorkerActivity:
    """The summary of a worker's samples, built with `add_sample`."""

    member: MemberId
    moved_at: float  # when it last computed or wrote something
    stopped_at: float | None  # since when it is stopped (SIGSTOP) and computes nothing; None if it is not
    window: WorkerSample  # the sample that the next one is compared with
    newest: WorkerSample

    @property
    def state(self) -> str:
        return self.newest.state


def add_samples(
    known: tuple[WorkerActivity, ...], samples: tuple[WorkerSample, ...], workers: frozenset[MemberId]
) -> tuple[WorkerActivity, ...]:
    """Return the activity of these workers after one more sample of each."""
    before = {each.member: each for each in known}
    return tuple(add_sample(before.get(each.member), each) for each in samples if each.member in workers)


def add_sample(before: WorkerActivity | None, sample: WorkerSample) -> WorkerActivity:
    """Call with every sample of a worker, in order. The first counts as movement, since the worker just started."""
    stopped = _stopped_at(before, sample)
    if before is None:
        return WorkerActivity(sample.member, sample.at, stopped, sample, sample)
    window = before.window
    elapsed_s = sample.at - window.at
    used_s = sample.cpu_s - window.cpu_s
    # CPU time falls when a child that was never waited for is gone: something ended, so something happened.
    moved = sample.written != window.written or used_s < 0 or used_s >= IDLE * max(WINDOW_S, elapsed_s)
    if moved:
        return WorkerActivity(sample.member, sample.at, stopped, sample, sample)
    if elapsed_s >= WINDOW_S:
        window = sample
    return replace(before, stopped_at=stopped, window=window, newest=sample)


def _stopped_at(before: WorkerActivity | None, sample: WorkerSample) -> float | None:
    """Return since when a worker is stopped, or None if it ran between two samples, as under `cpulimit`."""
    if sample.state != "T":
        return None
    if before is None or before.stopped_at is None or sample.cpu_s != before.newest.cpu_s:
        return sample.at
    return before.stopped_at


def find_stopped(workers: Sequence[WorkerActivity], now: float) -> frozenset[MemberId]:
    """Return the workers that have been stopped for so long that others should not wait for them."""
    found = (each for each in workers if each.stopped_at is not None and now - each.stopped_at >= STOPPED_S)
    return frozenset(each.member for each in found)


def describe_hang(workers: Sequence[WorkerActivity], now: float, stall_s: float, *, all_here: bool = True) -> str:
    """Return in a sentence why one agent's workers hang; empty if they do not.

    They hang if none of them has computed or written anything for `stall_s`. A single idle worker may wait for others,
    so they must all be idle, and `all_here` must be true: none runs on another machine.
    A worker that was stopped for that long hangs whatever the others do: those may be busy waiting for it.
    While a debugger holds one of them, none hangs.
    """
    if any(each.state == "t" for each in workers):
        return ""
    stopped = {each.member: now - each.stopped_at for each in workers if each.stopped_at is not None}
    held = {member: for_s for member, for_s in stopped.items() if for_s >= stall_s}
    if held:
        return "; ".join(f"{member} has been stopped (SIGSTOP) for {for_s:.0f} s" for member, for_s in held.items())
    if not workers or not all_here:
        return ""
    quiet_s = now - max(each.moved_at for each in workers)
    if quiet_s < stall_s:
        return ""
    who = "the worker here has neither" if len(workers) == 1 else f"none of the {len(workers)} workers here has"
    verb = "computed nor written" if len(workers) == 1 else "computed or written"
    states = "".join(f"; {each.member} {_STATES[each.state]}" for each in workers if each.state in _STATES)
    return f"{who} {verb} anything for {quiet_s:.0f} s{states}"


_STATES = {
    "T": "is stopped (SIGSTOP)",
    "D": "waits for a disk or a device",
    "Z": "is a zombie",
}
