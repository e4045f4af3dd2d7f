"""The command line of a job's last start, kept in the job's folder, and how the next one differs from it.

Values of options that look like secrets are not kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pliant.private_files import replace_file

HIDDEN = "***"
NONE = "none"
_SECRET = re.compile(r"token|passw|secret|credential|auth|(^|[-_.])(key|api[-_]?key|pwd)($|[-_.])", re.IGNORECASE)
_NUMBER = re.compile(r"-\.?\d")
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The script with its arguments, and the options of `pliant run` that were given."""

    script: str  # its full path; or `-m` and the name of a module
    args: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def without_secrets(self) -> CommandLine:
        return CommandLine(self.script, tuple(_hide_in(self.args)), {k: _hide(k, v) for k, v in self.options.items()})


def write_last_command(path: Path, command: CommandLine) -> None:
    """Keep a command line, without secrets. The file is replaced as a whole."""
    kept = command.without_secrets()
    content = {"script": kept.script, "args": kept.args, "options": dict(kept.options)}
    replace_file(path, f"{json.dumps(content)}\n".encode())


def read_last_command(path: Path) -> CommandLine | None:
    """Return the kept command line; None if there is none that can be read."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        options = {str(name): str(value) for name, value in dict(said["options"]).items()}
        return CommandLine(str(said["script"]), tuple(map(str, said["args"])), options)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def describe_changes(before: CommandLine, now: CommandLine) -> str:
    """Return each argument that differs, such as "--lr 0.001 -> 0.5"; empty if none does. Secrets are not compared."""
    ours, theirs = before.without_secrets(), now.without_secrets()
    found = [f"script {ours.script} -> {theirs.script}"] if ours.script != theirs.script else []
    for old, new in ((ours.options, theirs.options), (_named(ours.args), _named(theirs.args))):
        names = [*old, *(name for name in new if name not in old)]
        found += [
            f"{name} {old.get(name, NONE)} -> {new.get(name, NONE)}" for name in names if old.get(name) != new.get(name)
        ]
    return ", ".join(found)


def _named(args: Sequence[str]) -> dict[str, str]:
    """Return arguments by name: `--lr 0.1`, `--lr=0.1` and `lr=0.1`. Others are named by their position."""
    found: dict[str, list[str]] = {}
    name = ""
    for arg in args:
        if _is_option(arg) or (not name and re.match(r"[A-Za-z_][\w.]*=", arg)):
            name, equals, value = arg.partition("=")
            found.setdefault(name, []).extend([value] if equals else [])
            name = "" if equals else name
        else:
            found.setdefault(name or f"argument {len(found) + 1}", []).append(arg)
    return {name: " ".join(values) or "yes" for name, values in found.items()}


def _is_option(arg: str) -> bool:
    return arg.startswith("-") and len(arg) > 1 and not _NUMBER.match(arg)


def _hide_in(args: Sequence[str]) -> list[str]:
    """Return the arguments with the values of secrets hidden."""
    found: list[str] = []
    name = ""
    for arg in args:
        option, equals, value = arg.partition("=")
        if equals and re.match(r"-{0,2}[\w.-]+$", option):
            found.append(f"{option}={_hide(option, value)}")
            name = ""
        elif _is_option(arg):
            found.append(arg)
            name = arg
        else:
            found.append(_hide(name, arg))
    return found


def _hide(name: str, value: str) -> str:
    return HIDDEN if _SECRET.search(name) else _USER_IN_URL.sub(f"{HIDDEN}@", value)
