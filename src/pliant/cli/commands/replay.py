"""`pliant replay`: recompute steps of a job with one worker and compare the result."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pliant import settings
from pliant.cli.audit.command import LedgerHistory, read_history
from pliant.cli.connect import Flags, connection_options, resolve_job
from pliant.cli.output import clean, json_option, print_json
from pliant.errors import Refused

if TYPE_CHECKING:
    from pliant.core.data.ledger import LedgerLine
    from pliant.core.model.job import Terms
    from pliant.train.live.replay import Replayed

REMOVED_VARIABLES = ("PLIANT_COORDINATOR", "PLIANT_JOB", "PLIANT_MEMBER", "PLIANT_AGENT", "WORLD_SIZE", "RANK")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--to", "to", type=click.IntRange(0), required=True, metavar="STEP", help="Last step to compute.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module name, like python -m.")
@json_option
@connection_options
@click.argument("job")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def replay(to: int, module: bool, job: str, script: str, args: tuple[str, ...], flags: Flags, as_json: bool) -> int:
    """Recompute steps of a job and compare the result.

    Computes all steps up to STEP with one worker, on this machine and without a coordinator. Pass the script of the job
    and the same arguments; it must train with deterministic=True. The hash of the state after STEP is compared with the
    ledger, which has one for the steps where members compared their states (verify=). Exits with 1 if the hashes
    differ.
    """
    from pliant.core.model.fingerprint import fingerprint_difference

    name = resolve_job(job)
    if not module and not Path(script).is_file():
        raise click.UsageError(f"There is no script {script!r}. Put options of pliant replay before JOB.")
    with flags.connect(name) as client:
        history = read_history(client, name)
    terms = _require_deterministic(history, name)
    lines = history.committed()
    if to and to not in lines:
        last = max(lines, default=0)
        raise Refused(f"Step {to} of {name} is not committed. Choose a step up to {last}.")
    found = _run_replay(to, (sys.executable, "-u", *(("-m",) if module else ()), script, *args))
    _require_same_training(terms, found.terms, name)
    recorded = _recorded_hash(terms, lines, to)
    same = None if recorded is None else recorded == found.word_hash
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
        click.echo(_describe_result(name, to, found, recorded, terms.verify))
        if same is False and (why := fingerprint_difference(history.fingerprint, found.fingerprint)):
            click.echo(f"This machine differs from the job's: it {clean(why)}. Replay on a machine like the job's.")
    return 1 if same is False else 0


def _require_deterministic(history: LedgerHistory, name: str) -> Terms:
    if history.terms is None:
        raise Refused(f"Nothing to replay: no worker has joined {name} yet.")
    if dict(history.terms.extra).get("deterministic") != "True":
        raise Refused(f"Job {name} was not trained with deterministic=True, so its steps cannot be recomputed exactly.")
    return history.terms


def _run_replay(to: int, command: tuple[str, ...]) -> Replayed:
    """Run the script up to that step. Its output goes to standard error."""
    import msgspec

    from pliant.train.live.replay import Replayed

    with tempfile.TemporaryDirectory(prefix="pliant-replay-") as folder:
        file = Path(folder) / "replayed.json"
        extra = {"PLIANT_REPLAY_TO": str(to), "PLIANT_REPLAY_FILE": str(file)}
        if not settings.is_set("OMP_NUM_THREADS"):
            extra["OMP_NUM_THREADS"] = "1"  # as the agent sets it; other thread counts give other bits
        environment = {
            key: value for key, value in settings.child_environment(extra).items() if key not in REMOVED_VARIABLES
        }
        ended = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
        if not file.exists():
            raise Refused(f"The script ended with status {ended.returncode} before step {to}.")
        return msgspec.json.decode(file.read_bytes(), type=Replayed)


def _require_same_training(job: Terms, own: Terms, name: str) -> None:
    from pliant.core.messages.describe import describe_difference

    if why := describe_difference(job, replace(own, checkpoint_every=job.checkpoint_every)):
        raise Refused(
            f"The script trains {clean(why)}. Pass the script and the arguments that {name} was started with."
        )


def _recorded_hash(terms: Terms, lines: dict[int, LedgerLine], to: int) -> int | None:
    """Return the recorded hash of the state, which the line of the next step contains."""
    if not terms.verify or to % terms.verify or to + 1 not in lines:
        return None
    return lines[to + 1].state


def _describe_result(name: str, to: int, found: Replayed, recorded: int | None, verify: int) -> str:
    summary = f"step {to} of {name}, recomputed by one worker: {found.whole:016x}"
    if recorded is None:
        every = f"of every {verify}th step that another step followed" if verify else "with verify="
        return f"{summary}; the ledger has no hash of this step, only {every}"
    return f"{summary}, " + (
        "as in the ledger" if recorded == found.word_hash else f"DIFFERENT from the ledger: {recorded:016x}"
    )
