"""`pliant doctor`: find problems of a setup and how to fix them."""

from __future__ import annotations

import sys

import click

from pliant.cli.connect import Flags, connection_options
from pliant.cli.output import clean, json_option, print_json


@click.command()
@click.option("--job", metavar="NAME", help="Check the coordinator of this job.")
@json_option
@connection_options
def doctor(job: str | None, flags: Flags, as_json: bool) -> None:
    """Check this machine's setup for problems.

    Exits with 1 if there is a problem, with 0 if there are only warnings.
    """
    from pliant.cli.doctor.checks import run_checks
    from pliant.cli.doctor.finding import Level

    found = run_checks(flags.resolve(job), named=flags.names_coordinator or flags.names_token or job is not None)
    bad = [finding for finding in found if finding.level is Level.PROBLEM]
    if as_json:
        print_json({"ok": not bad, "checks": found})
    else:
        width = max(len(finding.level.value) for finding in found)
        for finding in found:
            click.echo(f"{finding.level.value.ljust(width)}  {finding.check}: {clean(finding.message)}")
            if finding.fix:
                click.echo(f"{' ' * width}  -> {clean(finding.fix)}")
    sys.exit(1 if bad else 0)
