"""Checks of an ended job: it leaves its checkpoints, no process, no other file and no secret; its report adds up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chaos.checks import committed
from chaos.job import GONE_S, JOB, Job
from e2e.running import wait_for
from pliant.core import messages as m
from pliant.core.model.names import MemberId
from pliant.credentials import read_token
from unit.cli.program import real

WITHIN = 0.01  # of the workers' time, what is added up may differ from what their lives add up to
OURS = {  # in a job's folder
    *("store.db", "store.db.mark", "store.db.archive", "endpoint.json", "token", "join-token", "lock", "agent-home"),
    "command.json",  # the last command, with which a later start is compared
}
FOLDERS = {"logs", "errors", "checkpoints"}
NOT_OURS = (
    "torchinductor_",
    "__autograph_generated_file",
    "__pycache__",
)  # torch's cache; TensorFlow's, which a killed process leaves, and Python's of them


def check_leftovers(job: Job, keep: int, broken: list[str]) -> dict[str, Any]:
    """Call once the job has finished and `pliant run` has ended. Every sentence in `broken` is something left over."""
    try:
        wait_for(lambda: not job.left(), "the end of every process", GONE_S)
    except AssertionError:
        broken.append(f"processes are left over: {[_what(pid) for pid in job.left()]}")
    broken += [f"{path} is left over" for path in _strangers(job)]
    secrets = sorted(_secrets(job.base))
    broken += [f"a secret is in {path}" for path in _leaks(job.base, secrets)]
    kept = _check_checkpoints(job, keep, broken)
    return {"checkpoints": kept, "secrets_looked_for": len(secrets), "files": sum(1 for _ in _files(job.base))}


def _what(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return f"{pid}, which has ended by now"


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _strangers(job: Job) -> Iterator[Path]:
    """Whatever is in the job's home or in its folder for temporary files, and has no business there."""
    yield from (path for path in job.temporary.iterdir() if not path.name.startswith(NOT_OURS))
    own = job.home / "jobs" / JOB
    for path in own.iterdir():
        if path.name not in OURS | FOLDERS:
            yield path
    pids = {str(each["pid"]) for each in job.said()}
    for path in Path("/dev/shm").iterdir():
        if path.name.startswith("torch_") and path.name.split("_")[1] in pids:
            yield path


def _secrets(base: Path) -> Iterator[bytes]:
    for path in _files(base):
        if path.name in ("token", "join-token"):
            yield read_token(path).secret.encode()


def _leaks(base: Path, secrets: list[bytes]) -> Iterator[Path]:
    for path in _files(base):
        if path.name not in ("token", "join-token"):
            content = path.read_bytes()
            if any(secret in content for secret in secrets):
                yield path


def _check_checkpoints(job: Job, keep: int, broken: list[str]) -> list[str]:
    """Those that count are there and damaged ones, nothing else; and every byte of the former is what was written."""
    folder = job.home / "jobs" / JOB / "checkpoints"
    kept = [each.name for each in job.chronicle.scene.whole[-keep:]]
    damaged = job.chronicle.scene.unreadable
    there = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if there != sorted({*kept, *damaged}):
        broken.append(f"the checkpoints {there} are there, and {kept} should be, and the damaged {sorted(damaged)}")
    broken += [f"{path} is left over" for path in _files(folder) if path.name.startswith(".") and path.parent != folder]
    verified = real(job.environment, "verify", str(folder), "--json")
    found = verified.json if verified.out else {"checkpoints": []}
    whole = [each["name"] for each in found["checkpoints"] if each["ok"]]
    if (verified.code and not damaged) or sorted(whole) != sorted(kept):
        broken.append(f"pliant verify ends with {verified.code}: {verified.out} {verified.err}")
    if not kept or kept[-1] != job.chronicle.scene.published[-1].name:
        broken.append("the last checkpoint is not whole")
    elif job.chronicle.scene.published[-1].lineage.step != job.task.steps:
        broken.append(f"the last checkpoint is not that of the last step, {job.task.steps}")
    return kept


def check_report(job: Job, broken: list[str]) -> dict[str, Any]:
    """`pliant report` against the event log: the workers' lives, and what the ledger has twice."""
    found = job.checkpoint_wanted_at_step("report")
    lives = sum(end - began for began, end in _lives(job).values())
    added = sum(found["seconds"].values())
    if abs(added - lives) > WITHIN * lives:
        broken.append(f"the report's seconds are {added:.1f}, and the workers lived {lives:.1f}")
    for each in found["workers"]:
        lived, spent = each["ended"] - each["began"], sum(each["seconds"].values())
        if abs(lived - spent) > WITHIN * lived + 1e-3:
            broken.append(f"{each['worker']} lived {lived:.3f} s, and the report says what it did for {spent:.3f} s")
    lines = [line for _, line in committed(job)]
    again = sum(line.samples for line in lines) - job.task.epochs * job.task.samples
    if found["recomputed_samples"] != again:
        broken.append(f"{found['recomputed_samples']} samples were recomputed by the report, {again} by the ledger")
    return {
        "worker_seconds": round(added, 1),
        "lived_s": round(lives, 1),
        "differ_by": round(abs(added - lives) / lives, 5) if lives else None,
        "seconds": {name: round(spent, 1) for name, spent in found["seconds"].items()},
        "goodput": round(found["goodput"], 4),
        "recomputed_samples": again,
        "recomputed_steps": found["recomputed_steps"],
    }


def _lives(job: Job) -> dict[MemberId, tuple[float, float]]:
    """By member, from when to when its process was there, as the event log tells it.

    Of workers whose agent was killed it tells nothing but that the next agent of that name came: they ended with the
    last word before.
    """
    began: dict[MemberId, tuple[float, str]] = {}
    ended: dict[MemberId, float] = {}
    lives: dict[str, str] = {}
    last = 0.0
    for event in job.chronicle.events:
        match event:
            case m.MemberJoined():
                began[event.member.id] = event.at - event.age_s, event.member.agent
            case m.MemberGone():
                ended.setdefault(event.member, event.at)
            case m.AgentJoined() if lives.get(event.agent) != event.run_id:
                lives[event.agent] = event.run_id
                for member, (_, agent) in began.items():
                    if agent == event.agent:
                        ended.setdefault(member, last)
            case m.StateChanged() if event.state.ended:
                for member in began:
                    ended.setdefault(member, event.at)
            case _:
                pass
        last = event.at
    return {member: (at, ended.get(member, last)) for member, (at, _) in began.items()}
