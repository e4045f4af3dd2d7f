"""`pliant replay`: compute a job's steps again with one worker, and compare."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pliant import settings
from pliant.cli.commands.audit import History, read_history
from pliant.cli.connect import Flags, connection, the_job
from pliant.cli.output import clean, json_option, print_json
from pliant.errors import Refused

if TYPE_CHECKING:
    from pliant.core.data.ledger import LedgerLine
    from pliant.core.model.job import Terms
    from pliant.torch.replay import Replayed

ALONE = ("PLIANT_COORDINATOR", "PLIANT_JOB", "PLIANT_MEMBER", "PLIANT_AGENT", "WORLD_SIZE", "RANK")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--to", "to", type=click.IntRange(0), required=True, metavar="STEP", help="The step to come to.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module's name, as for python -m.")
@json_option
@connection
@click.argument("job")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def replay(to: int, module: bool, job: str, script: str, args: tuple[str, ...], flags: Flags, as_json: bool) -> int:
    """Compute a step of JOB again, with one worker.

    All steps up to it are, on this machine and without a coordinator. SCRIPT is what the job trains, with the same
    arguments; it must be deterministic (`deterministic=True`). The hash of the state after that step is compared with
    the one in the ledger, which has it where members compared their states (`verify=`). Status 1 if they differ.
    """
    from pliant.core.model.fingerprint import fingerprint_difference

    name = the_job(job)
    if not module and not Path(script).is_file():
        raise click.UsageError(f"There is no script {script!r}. Options of pliant replay go before it.")
    with flags.connect(name) as client:
        history = read_history(client, name)
    terms = _terms(history, name)
    lines = history.committed()
    if to and to not in lines:
        last = max(lines, default=0)
        raise Refused(f"Step {to} of {name} is not committed: its last step is {last}. Choose one up to that.")
    found = _computed(to, (sys.executable, "-u", *(("-m",) if module else ()), script, *args))
    _require_same_training(terms, found.terms, name)
    recorded = _recorded(terms, lines, to)
    same = None if recorded is None else recorded == found.said
    if as_json:
        print_json(
            {
                "step": to,
                "hash": f"{found.whole:016x}",
                "recorded": None if recorded is None else f"{recorded:016x}",
                "same": same,
            }
        )
    else:
        click.echo(_sentence(name, to, found, recorded, terms.verify))
        if same is False and (why := fingerprint_difference(history.bits, found.bits)):
            click.echo(f"This machine is not like the job's: it {clean(why)}. Replay on one that is.")
    return 1 if same is False else 0


def _terms(history: History, name: str) -> Terms:
    if history.terms is None:
        raise Refused(f"There is nothing to replay yet: nobody has joined {name}.")
    if dict(history.terms.extra).get("deterministic") != "True":
        raise Refused(
            f"{name} was not trained with deterministic=True, so its steps cannot be computed again to the bit."
        )
    return history.terms


def _computed(to: int, command: tuple[str, ...]) -> Replayed:
    """Run the script alone up to that step. What it prints goes to stderr."""
    import msgspec

    from pliant.torch.replay import Replayed

    with tempfile.TemporaryDirectory(prefix="pliant-replay-") as folder:
        file = Path(folder) / "replayed.json"
        extra = {"PLIANT_REPLAY_TO": str(to), "PLIANT_REPLAY_FILE": str(file)}
        if not settings.is_set("OMP_NUM_THREADS"):
            extra["OMP_NUM_THREADS"] = "1"  # as the agent says to workers: other threads, other bits
        environment = {key: value for key, value in settings.for_child(extra).items() if key not in ALONE}
        ended = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
        if not file.exists():
            raise Refused(f"The script ended with status {ended.returncode} before it came to step {to}.")
        return msgspec.json.decode(file.read_bytes(), type=Replayed)


def _require_same_training(job: Terms, own: Terms, name: str) -> None:
    from pliant.core.messages.describe import describe_difference

    if why := describe_difference(job, replace(own, checkpoint_every=job.checkpoint_every)):
        raise Refused(f"The script trains {clean(why)}: give the script and arguments that {name} was started with.")


def _recorded(terms: Terms, lines: dict[int, LedgerLine], to: int) -> int | None:
    """The next step's line says which state it was computed from."""
    if not terms.verify or to % terms.verify or to + 1 not in lines:
        return None
    return lines[to + 1].state


def _sentence(name: str, to: int, found: Replayed, recorded: int | None, verify: int) -> str:
    said = f"step {to} of {name}, computed again by one worker: {found.whole:016x}"
    if recorded is None:
        every = f"every {verify} steps, and of a step that another one followed" if verify else "with verify= alone"
        return f"{said}; the ledger has no hash to compare it with: it has them {every}"
    return f"{said}, " + ("as in the ledger" if recorded == found.said else f"NOT as in the ledger: {recorded:016x}")
