"""Submissions: requests to train, and what became of each.

A client that has no rights in the cluster sends one to the coordinator, and the operator turns it into a job. An image,
a command and numbers are all that a submission can choose. The limits are those of the definition of ElasticJob.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pliant.core.messages.rejection import Code, Rejection
from pliant.core.model.job import Mode

TASK_MAX = 40  # characters: pods, Services and labels are named after it
SIZE_MAX = 4096
SERVERS_MAX = 256
PROCESSES_MAX = 64
IMAGE_MAX = 255
TEXT_MAX = 4096  # characters of all values of one submission together
WHY_MAX = 500  # characters
OPEN_MAX = 200  # submissions that are not over
OVER_KEPT = 100

_TASK = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESOURCE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?")
_AMOUNT = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_OPERATORS_OWN = ("PLIANT_", "PET_")  # variables by which the operator connects a pod with its job


@dataclass(frozen=True, slots=True)
class Submission:
    """A request to train: everything that a client may choose."""

    task: str
    image: str
    size_min: int
    size_max: int
    command: tuple[str, ...] = ()
    target: int | None = None
    servers: int = 0  # parameter servers; 0: AllReduce; Pliant's own if the mode is tasks
    processes: int = 1  # workers in each pod
    claim: str | None = None  # a volume claim for checkpoints
    limits: tuple[tuple[str, str], ...] = ()  # (resource, amount), such as ("nvidia.com/gpu", "1")
    environment: tuple[tuple[str, str], ...] = ()
    mode: Mode = Mode.AUTO


def bad_submission(wanted: Submission) -> str:
    """Return what is wrong with a submission, or the empty string."""
    return _bad_name(wanted) or _bad_size(wanted) or _bad_pairs(wanted) or _bad_text(wanted)


def _bad_name(wanted: Submission) -> str:
    if not _TASK.fullmatch(wanted.task) or len(wanted.task) > TASK_MAX:
        return (
            f"task must have 1 to {TASK_MAX} lower-case letters, digits and '-', begin with a letter and not end with "
            f"'-'; got {wanted.task[:60]!r}"
        )
    if not _IMAGE.fullmatch(wanted.image) or len(wanted.image) > IMAGE_MAX:
        return f"image must be the name of an image with at most {IMAGE_MAX} characters; got {wanted.image[:60]!r}"
    if wanted.claim is not None and not _CLAIM.fullmatch(wanted.claim):
        return f"claim must be the name of a volume claim; got {wanted.claim[:60]!r}"
    return ""


def _bad_size(wanted: Submission) -> str:
    if not 1 <= wanted.size_min <= wanted.size_max <= SIZE_MAX:
        return f"workers must be MIN:MAX with 1 <= MIN <= MAX <= {SIZE_MAX}; got {wanted.size_min}:{wanted.size_max}"
    if wanted.target is not None and not wanted.size_min <= wanted.target <= wanted.size_max:
        return f"target must lie between {wanted.size_min} and {wanted.size_max}; got {wanted.target}"
    if not 0 <= wanted.servers <= SERVERS_MAX:
        return f"a job has 0 to {SERVERS_MAX} parameter servers; got {wanted.servers}"
    if wanted.servers and wanted.mode is Mode.LIVE:
        return "in a cluster a live job has no parameter servers; choose the mode tasks, or no servers"
    if not 1 <= wanted.processes <= PROCESSES_MAX:
        return f"a pod has 1 to {PROCESSES_MAX} processes; got {wanted.processes}"
    return ""


def _bad_pairs(wanted: Submission) -> str:
    for name, value in wanted.environment:
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            return f"{name[:60]!r} cannot be set as an environment variable"
        if name.startswith(_OPERATORS_OWN):
            return f"{name[:60]} cannot be chosen: the operator sets variables that begin with PLIANT_ and PET_"
    for name, amount in wanted.limits:
        if not _RESOURCE.fullmatch(name) or not _AMOUNT.fullmatch(amount):
            return f"{f'{name}={amount}'[:60]!r} is not the limit of a resource, such as nvidia.com/gpu=1 or memory=8Gi"
    for pairs in (wanted.environment, wanted.limits):
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            return "each variable and each resource can be given once"
    return ""


def _bad_text(wanted: Submission) -> str:
    if any("\0" in word for word in wanted.command):
        return "the command contains a zero byte"
    texts = [*wanted.command, *(text for pair in (*wanted.environment, *wanted.limits) for text in pair)]
    length = sum(map(len, texts)) + len(texts)
    if length > TEXT_MAX:
        return f"command, variables and limits may have {TEXT_MAX} characters together; these have {length}"
    return ""


def allows_image(patterns: Sequence[str], image: str) -> bool:
    """Return whether an image is on the list. `*` in a pattern stands for any characters, `/` included."""
    forms = (".*".join(re.escape(part) for part in pattern.split("*")) for pattern in patterns)
    return any(re.fullmatch(form, image) for form in forms)


# ------------------------------------------------------------------------------------------- what became of it


class SubmissionState(StrEnum):
    """The state of a submission. The job that it created has a state of its own."""

    ACCEPTED = "accepted"  # the operator has not taken it up yet
    CREATED = "created"
    STOPPING = "stopping"
    REFUSED = "refused"
    ENDED = "ended"  # the job was stopped or deleted

    @property
    def is_over(self) -> bool:
        return self in (SubmissionState.REFUSED, SubmissionState.ENDED)


@dataclass(frozen=True, slots=True)
class StoredSubmission:
    """A submission with its number, which is used once, and the id of the token that sent it."""

    number: int
    wanted: Submission
    token: str
    made_at: float
    state: SubmissionState = SubmissionState.ACCEPTED
    why: str = "waiting for an operator"
    job: str = ""  # the name of its job in the coordinator


@dataclass(frozen=True, slots=True)
class Submissions:
    """All submissions of a store: those that are not over, and the latest ones that are. Oldest first."""

    entries: tuple[StoredSubmission, ...] = ()
    last: int = 0  # the highest number ever used

    def find(self, task: str) -> StoredSubmission | None:
        """Return the newest submission of a task."""
        return next((each for each in reversed(self.entries) if each.wanted.task == task), None)


def accept(known: Submissions, wanted: Submission, token: str, now: float) -> StoredSubmission | Rejection:
    """Return the entry of a submission: a new one, or the one that the same request made before."""
    if wrong := bad_submission(wanted):
        return Rejection(Code.BAD, wrong)
    found = known.find(wanted.task)
    if found is not None and not found.state.is_over:
        if (found.wanted, found.token) == (wanted, token):
            return found
        return Rejection(Code.EXISTS, f"there is another submission with task {wanted.task}; choose another name")
    if sum(not each.state.is_over for each in known.entries) >= OPEN_MAX:
        return Rejection(Code.EXISTS, f"there are {OPEN_MAX} submissions already, the maximum; stop some first")
    return StoredSubmission(known.last + 1, wanted, token, now)


def stop(known: Submissions, task: str, token: str | None, why: str) -> StoredSubmission | Rejection:
    """Return the entry after a request to stop it. Only the token that sent it may; None stands for an admin."""
    found = known.find(task)
    if found is None:
        return Rejection(Code.UNKNOWN, f"there is no submission with task {task}")
    if token not in (None, found.token):
        return Rejection(Code.EXISTS, f"the submission {task} was sent with another token; use that one")
    if found.state.is_over or found.state is SubmissionState.STOPPING:
        return found
    return replace(found, state=SubmissionState.STOPPING, why=why[:WHY_MAX])


_MOVES = {
    SubmissionState.ACCEPTED: (SubmissionState.CREATED, SubmissionState.REFUSED),
    SubmissionState.CREATED: (SubmissionState.ENDED,),
    SubmissionState.STOPPING: (SubmissionState.ENDED,),
    SubmissionState.REFUSED: (),
    SubmissionState.ENDED: (),
}


def report(known: Submissions, number: int, state: SubmissionState, why: str, job: str) -> StoredSubmission | Rejection:
    """Return the entry after an operator's report. A report that is older than the entry is rejected."""
    found = next((each for each in known.entries if each.number == number), None)
    if found is None:
        return Rejection(Code.UNKNOWN, f"there is no submission with the number {number}")
    if state is found.state:
        return found
    if state not in _MOVES[found.state]:
        return Rejection(Code.PAST, f"submission {number} is {found.state.value} and cannot become {state.value}")
    return replace(found, state=state, why=why[:WHY_MAX], job=job or found.job)


def with_entry(known: Submissions, entry: StoredSubmission) -> Submissions:
    """Return the submissions with a new or changed entry. Of those that are over, the oldest are dropped."""
    others = [each for each in known.entries if each.number != entry.number]
    entries = sorted([*others, entry], key=lambda each: each.number)
    over = [each.number for each in entries if each.state.is_over]
    dropped = set(over[: max(0, len(over) - OVER_KEPT)])
    kept = tuple(each for each in entries if each.number not in dropped)
    return Submissions(kept, max(known.last, entry.number))
