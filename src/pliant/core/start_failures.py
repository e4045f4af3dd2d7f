"""Failures at the start of workers: which of them the next start repeats, and when an agent gives up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pliant.core.supervisor import Supervisor, WorkerEnded

INCURABLE = frozenset(  # exceptions that another start of the same script raises again
    {"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError", "NameError", "BadInput"}
)
BAD_INPUT = frozenset(  # exceptions that another start raises again, if the last one did
    {"ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "AssertionError", "FileNotFoundError"}
)


USAGE_CODE = 2  # the exit code of argparse and click for a wrong command line
USAGE_ERROR = re.compile(r"(\S+: error|Error): ")  # how their last line begins


def is_incurable(error: str, code: int) -> bool:
    """Return whether another start would fail with the same error, by the exit code and the last line of a worker.

    That is so for some exceptions, and for a command line that the script refuses.
    """
    if code == USAGE_CODE and USAGE_ERROR.match(error):
        return True
    return _exception(error) in INCURABLE or (_exception(error) == "Refused" and " would train " in error)


def is_bad_input(error: str) -> bool:
    """Return whether the last line of a traceback names an exception that a repeated start is likely to repeat."""
    return _exception(error) in BAD_INPUT


def _exception(error: str) -> str:
    return error.partition(":")[0].rpartition(".")[2]


def reason_to_give_up(state: Supervisor, ended: WorkerEnded, how: str) -> str:
    """Return why a script that never joins is not started again; empty if it is. `how` is its exit, as a phrase.

    Where other workers have joined, a worker that ended well without was asked to, by a person for instance.
    """
    if ended.code == 0 and not state.script_joins:
        return (
            f"{ended.member} ended with {how} and had never joined the job: "
            "a script for live training calls pliant.join(); for one that does not, use --mode relaunch --fresh"
        )
    if not state.trains and _will_fail_again(state, ended):
        return f"it cannot start: {ended.member} ended with {how}: {ended.error}"
    if state.never_joined <= state.max_restarts:
        return ""
    log = f"; its output is in {ended.log}" if ended.log else ""
    return f"{state.never_joined} workers in a row ended before they joined, {ended.member} with {how}{log}"


def _will_fail_again(state: Supervisor, ended: WorkerEnded) -> bool:
    """Return whether the next worker is certain to end with this error: no restart cures it, or the last one had it."""
    before = [end.error for end in state.ends[-2:-1]]
    return is_incurable(ended.error, ended.code) or (is_bad_input(ended.error) and ended.error in before)
