"""Find the cause of a worker's failure: torchelastic's error file, else the last traceback, else its last lines.

torchelastic's convention: TORCHELASTIC_ERROR_FILE names the file for a worker's error, as JSON, and the decorator
`@record` writes it.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ERROR_FILE_MAX = 1 << 20
MESSAGE_MAX = 500  # characters
LAST_LINES = 20
NO_INPUT = (
    "Workers have no standard input, so pdb and input() end at once. "
    "To debug the script, run it alone: python SCRIPT [ARGS]."
)
AFTER_LINES = 20  # lines at the margin that may belong to an exception's text


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's error: `message` is one line, `traceback` the whole text, `at` the worker's clock, if recorded."""

    message: str
    traceback: str
    at: float | None = None


def read_failure(error_file: Path | None, tail: Sequence[bytes]) -> Failure | None:
    """Return the error of a failed worker, from its error file and last lines; None if it wrote nothing."""
    recorded, wrong = _read_error_file(error_file)
    lines = [_plain(line) for line in tail]
    found = _traceback(lines)
    if recorded is not None:
        if not recorded.traceback and found:
            return Failure(recorded.message, "\n".join(found), recorded.at)
        return recorded
    note = [f"(What it left in {error_file} cannot be read: {wrong}.)"] if wrong else []
    if found:
        return Failure(_message(found), "\n".join([*found, *note]))
    last = _without_blank_ends(lines)[-LAST_LINES:]
    said = [line for line in last if line.strip()]
    if not said and not note:
        return None
    return Failure(_cut((said or note)[-1]), "\n".join([*last, *note]))


def describe_failure(
    found: Failure | None,
    *,
    member: str,
    rank: int | None,
    host: str,
    pid: int | None,
    code: int,
    log: Path | None = None,
) -> str:
    """Return the message about the worker that failed first: several lines, without terminal control characters."""
    who = member if rank is None else f"rank {rank} ({member})"
    where = f"on {host}" if pid is None else f"process {pid} on {host}"
    head = f"{who}, {where}, failed with {how(code)}"
    kept = [] if log is None else [f"Its output is in {log}"]
    if found is None:
        return "\n".join([f"{head} and wrote nothing.", *kept])
    traceback = [f"    {line}" for line in found.traceback.split("\n")]
    hint = [NO_INPUT] if _NO_INPUT.match(found.message) else []
    return "\n".join([f"{head}: {found.message}", *traceback, *hint, *kept])


_NO_INPUT = re.compile(r"(?:bdb\.)?BdbQuit\b|EOFError: EOF when reading a line")


def how(code: int) -> str:
    """Return an exit code in words; negative is a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


# ----------------------------------------------------------------------------------------------------- the error file


def _read_error_file(error_file: Path | None) -> tuple[Failure | None, str]:
    """Return the content of the error file, or None and the reason why it cannot be read."""
    if error_file is None:
        return None, ""
    try:
        with open(error_file, "rb", opener=_without_waiting) as file:
            data = file.read(ERROR_FILE_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except OSError as error:
        return None, error.strerror or str(error)
    if not data:
        return None, ""  # the worker ended before it wrote anything
    if len(data) > ERROR_FILE_MAX:
        return None, f"it is larger than {ERROR_FILE_MAX} bytes"
    try:
        return _parse_error_file(json.loads(data)), ""
    except (ValueError, RecursionError):
        return None, "it is no JSON"
    except (KeyError, TypeError, AttributeError, OverflowError):
        return None, "it is not in torchelastic's format"


def _without_waiting(path: str, flags: int) -> int:
    """Open without blocking: a script may have put a pipe there."""
    return os.open(path, flags | os.O_NONBLOCK)


def _parse_error_file(content: Any) -> Failure:
    """Read either form of the file: `message` with everything in it, or `message` as text beside the rest."""
    message = content["message"]
    if isinstance(message, str):
        return Failure(_cut(message), _plain_text(content.get("py_callstack") or ""), _time(content.get("timestamp")))
    extra = message.get("extraInfo") or {}
    text = _plain_text(extra.get("py_callstack") or "")
    return Failure(_cut(message["message"]), text, _time(extra.get("timestamp")))


def _time(said: Any) -> float | None:
    try:
        return float(said) if said else None
    except ValueError:
        return None


# ---------------------------------------------------------------------------------------------- tracebacks in the tail

_HEADER = re.compile(r"^(?P<before>.*?)(?:Exception Group )?Traceback \(most recent call last\):$")
_FATAL = re.compile(r"^(?P<before>.*?)Fatal Python error: ")
_SYNTAX = re.compile(r"^(?P<before>.*?)(?:SyntaxError|IndentationError|TabError): ")
_PLACE = re.compile(r'^\s*File ".*", line \d+$')
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_INNER = ("Original Traceback", "    ")  # inside the text of another: of a data worker, or of an exception group
_IGNORED = ("Exception ignored in", "--- Logging error ---")


def _traceback(lines: Sequence[str]) -> list[str]:
    """Return the last traceback, with the exceptions it is chained to; empty if there is none."""
    starts = [at for at, line in enumerate(lines) if _HEADER.match(line)]
    wanted = [at for at in starts if not _line_before(lines, at).startswith(_IGNORED)] or starts
    # The report of a crash in C code comes after all other output.
    fatal = [at for at, line in enumerate(lines) if _FATAL.match(line)]
    if fatal and (not wanted or fatal[-1] > wanted[-1]):
        hit = _FATAL.match(lines[fatal[-1]])
        assert hit is not None  # it matched above
        return _without_blank_ends(_stripped(lines[fatal[-1] :], hit["before"]))
    block = _block(lines, starts, wanted[-1]) if wanted else (0, 0)
    syntax = _syntax_error(lines, block[1])
    start, end = syntax or block
    before = _margin(lines[start]) if start < end and not syntax else ""
    return _without_blank_ends(_stripped(lines[start:end], before))


def _block(lines: Sequence[str], starts: Sequence[int], last: int) -> tuple[int, int]:
    """Return the first and last line of the traceback with this header, with all it is chained to."""
    first = last
    for earlier in reversed([at for at in starts if at < last]):
        if not _is_chained(lines, first):
            break
        first = earlier
    end = _end(lines, last, _margin(lines[first]))
    rest = lines[end:]
    if len(rest) <= AFTER_LINES and not any(_HEADER.match(line) for line in rest):
        end = len(lines)  # no other output follows: the exception's text may have empty lines
    return first, end


def _is_chained(lines: Sequence[str], at: int) -> bool:
    """Return whether this traceback belongs to the one before: chained to it, or part of its exception's text."""
    inner = lines[at].lstrip(" |+-0123456789")
    if inner.startswith("Original Traceback") or lines[at].lstrip().startswith(("|", "+-")):
        return True  # of a data worker, inside the text of the main process; or of an exception group
    return _line_before(lines, at).endswith(_CHAINED)


def _end(lines: Sequence[str], header: int, margin: str) -> int:
    """Return the index after the last line of a traceback: indented frames, then the exception's text."""
    at = header + 1
    while at < len(lines) and _is_indented(lines[at], margin):
        at += 1
    limit = at + AFTER_LINES
    while at < len(lines) and at < limit:
        line = lines[at].removeprefix(margin)
        another = _HEADER.match(line) is not None and not line.startswith(_INNER)
        if another or line.startswith(_IGNORED) or not line.strip() or not lines[at].startswith(margin):
            break
        at += 1
        while at < len(lines) and _is_indented(lines[at], margin):
            at += 1
            limit = max(limit, at + 1)
    return at


def _is_indented(line: str, margin: str) -> bool:
    inner = line.removeprefix(margin)
    return line.startswith(margin) and inner.startswith((" ", "\t")) and bool(inner.strip())


def _syntax_error(lines: Sequence[str], after: int) -> tuple[int, int] | None:
    """Return the lines of a syntax error in the script itself, which has no header, after the last traceback."""
    for end in range(len(lines) - 1, after - 1, -1):
        if _SYNTAX.match(lines[end]):
            for start in range(end - 1, max(after, end - 6) - 1, -1):
                if _PLACE.match(lines[start]):
                    return start, end + 1
    return None


def _message(traceback: Sequence[str]) -> str:
    """Return the exception's own line, after the frames of the last traceback that is not inside another's text."""
    if _FATAL.match(traceback[0]):
        return _cut(traceback[0])
    outer = [at for at, line in enumerate(traceback) if _HEADER.match(line) and not line.startswith(_INNER)]
    after = traceback[outer[-1] + 1 :] if outer else traceback
    texts = [line.removeprefix("  | ") for line in after]  # the margin of an exception group
    return _cut(next((text for text in texts if text and not text[0].isspace()), traceback[-1]))


def _margin(header: str) -> str:
    """Return the common prefix of the lines: torch writes `[rank0]: ` there."""
    hit = _HEADER.match(header)
    before = hit["before"] if hit else ""
    return before if before.strip(" |+-0123456789") and not before.startswith("Original") else ""


def _stripped(lines: Sequence[str], margin: str) -> list[str]:
    return [line.removeprefix(margin) if margin else line for line in lines]


def _line_before(lines: Sequence[str], at: int) -> str:
    """Return the last line before this one that is not blank. A blank line may have a margin."""
    margin = _margin(lines[at])
    for earlier in range(at - 1, max(at - 4, -1), -1):
        if inner := lines[earlier].removeprefix(margin).removeprefix(margin.rstrip()).strip(" |"):
            return inner
    return ""


def _without_blank_ends(lines: Sequence[str]) -> list[str]:
    full = [at for at, line in enumerate(lines) if line.strip()]
    return list(lines[full[0] : full[-1] + 1]) if full else []


# ----------------------------------------------------------------------------------------------------------- plain text

_COLOUR = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")


def _plain(line: bytes) -> str:
    """Return a line as a terminal shows it last, without colours, and with other control characters escaped."""
    text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
    text = _COLOUR.sub("", text)
    return "".join(
        sign if sign.isprintable() or sign == "\t" else sign.encode("unicode_escape").decode() for sign in text
    )


def _plain_text(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError("text was expected")
    return "\n".join(_plain(line) for line in text.encode("utf-8", "replace").rstrip(b"\n").split(b"\n"))


def _cut(text: str) -> str:
    line = " ".join(_plain_text(text).split())
    return line if len(line) <= MESSAGE_MAX else f"{line[:MESSAGE_MAX]} ..."
