"""The process of a worker of `pliant train`, `pliant evaluate` and `pliant predict`.

With `--check` it is no worker: it checks the module with its data, and prints what all workers share as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import fields

from pliant.errors import PliantError
from pliant.model_modules.work import COMMANDS, WorkOptions, check

INTERRUPTED = 130  # the exit status of a program ended by Ctrl-C


def main(argv: Sequence[str] | None = None) -> int:
    """Run one worker, or the check. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pliant.model_modules", allow_abbrev=False)
    parser.add_argument("command", choices=sorted(COMMANDS))
    parser.add_argument("--check", action="store_true")
    for field in fields(WorkOptions)[1:]:
        kind = int if field.type == "int" else str
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    given = vars(parser.parse_args(argv))
    checks = given.pop("check")
    options = WorkOptions(**given)
    try:
        if checks:
            with redirect_stdout(sys.stderr):  # what the module prints is no part of the result
                facts = check(options)
            sys.stdout.write(f"\n{json.dumps(facts)}\n")
        else:
            COMMANDS[options.command](options)
    except PliantError as error:
        sys.stderr.write(f"pliant: {error.why}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
