"""Failures at the start of workers: which of them the next start repeats."""

from __future__ import annotations

import re

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
