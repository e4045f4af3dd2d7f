"""`pliant doctor`: what is wrong with a set-up, and what to do about it."""

from __future__ import annotations

import sys

import click

from pliant.cli.connect import Flags, connection
from pliant.cli.output import clean, json_option, print_json


@click.command()
@click.option("--job", help="Look for the coordinator of this job.")
@json_option
@connection
def doctor(job: str | None, flags: Flags, as_json: bool) -> None:
    """Look for what is wrong with this set-up.

    Exit status 0: there may be warnings. 1: something does not work, and what to do is said.
    """
    from pliant.cli.doctor.checks import Level, checks

    found = checks(flags.place(job))
    bad = [finding for finding in found if finding.level is Level.PROBLEM]
    if as_json:
        print_json({"ok": not bad, "checks": found})
    else:
        width = max(len(finding.level.value) for finding in found)
        for finding in found:
            click.echo(f"{finding.level.value.ljust(width)}  {finding.check}: {clean(finding.say)}")
            if finding.do:
                click.echo(f"{' ' * width}  -> {clean(finding.do)}")
    sys.exit(1 if bad else 0)
