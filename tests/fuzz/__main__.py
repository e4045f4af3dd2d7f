"""Fuzz every parser of bytes from sockets and files: `make fuzz`, with SEED= for other cases.

The last line is a JSON object: whether all held, and the cases and seconds of each parser.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fuzz import everything, live
from fuzz.kept import KEPT
from fuzz.parser import Findings, run


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--cases", type=int, default=10_000)
    given.add_argument("--seed", type=int, default=0)
    given.add_argument("--only", default="", help="part of a parser's name")
    options = given.parse_args()
    logging.disable()  # a refused input may be worth a line to an operator, ten thousand are not
    results = []
    for found in results_of(options.only, options.cases, options.seed):
        print(f"{found.parser:32} {found.cases:6} cases {found.accepted:6} valid {found.seconds:8.2f} s")
        for wrong in found.wrong:
            print(f"    {wrong}")
        sys.stdout.flush()
        results.append(found)
    count = sum(len(found.wrong) for found in results)
    parsers = {found.parser: found.cases for found in results}
    seconds = round(sum(found.seconds for found in results), 1)
    print(json.dumps({"ok": not count, "seed": options.seed, "wrong": count, "seconds": seconds, "cases": parsers}))
    return 1 if count else 0


def results_of(only: str, cases: int, seed: int) -> Iterator[Findings]:
    for parser in everything.PARSERS:
        if only in parser.name:
            yield run(parser, cases, seed, KEPT.get(parser.name, ()))
    if only in live.NAME:
        with tempfile.TemporaryDirectory(prefix="pliant-fuzz-") as home:
            yield live.run(Path(home), cases, seed)


if __name__ == "__main__":
    sys.exit(main())
