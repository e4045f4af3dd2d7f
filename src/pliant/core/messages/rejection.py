"""The refusal of a command: a code for programs and a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """The reason for a refusal, for programs."""

    NO_JOB = "no-job"
    EXISTS = "exists"
    ENDED = "ended"
    GONE = "gone"
    UNKNOWN = "unknown"
    SEALED = "sealed"
    PAST = "past"
    MISMATCH = "mismatch"
    NOT_NEXT = "not-next"
    BAD = "bad"
    SET_BACK = "set-back"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A command that changes nothing, with the reason."""

    code: Code
    why: str
