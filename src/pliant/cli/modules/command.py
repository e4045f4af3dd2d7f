"""`pliant train`, `pliant evaluate` and `pliant predict`: the functions of a model module under `pliant run`.

Each checks the module with its data in a process of its own, and then runs the agent of this machine, as `pliant run`
does, with the workers' module as script.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from pliant import settings
from pliant.cli.connect import connection_options
from pliant.cli.output import json_option
from pliant.cli.run.command import (
    PLIANT_OPTIONS,
    TORCHRUN_OPTIONS,
    RunCommand,
    given_options,
    parse_verbosity,
    run_agent,
)
from pliant.cli.run.option_types import checkpoint_place
from pliant.cli.run.plan import RunOptions
from pliant.core.model.names import NAME_MAX
from pliant.errors import BadInput, PliantError

WORKERS = "pliant.model_modules"
SERVERS = 2  # by default: with two, the loss of one loses nothing
SHARED_OPTIONS = (
    *("--job", "--workers", "--target", "--wait-limit-s", "--grace-s", "--notice", "--fresh", "--metrics-port"),
    *("--allow-chaos", "--quiet", "--verbose", "--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint"),
    *("--rdzv-conf", "--max-restarts", "--log-dir", "--local-addr"),
)
TRAIN_OPTIONS = ("--checkpoint-every", "--checkpoint-keep")

_COUNT = click.IntRange(1)


def _options_of_run(*names: str) -> list[click.Parameter]:
    return [each for each in (*PLIANT_OPTIONS, *TORCHRUN_OPTIONS) if not {*each.opts}.isdisjoint(names)]


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all three commands."""
    for option in (
        click.option(
            "--records-per-task", type=_COUNT, metavar="N", default=4096, show_default=True, help="Records of a shard."
        ),
        click.option(
            "--batch-size", type=_COUNT, metavar="N", default=64, show_default=True, help="Records of a batch."
        ),
        click.option(
            "--format",
            type=click.Choice(["tfrecord", "example", "recordio", "csv", "parquet", "files"]),
            help="Format of the files, if their names do not tell it.",
        ),
        click.option("--data", metavar="PATH|URL", required=True, help="Record files: a file, pattern or folder."),
        click.option(
            "--model-def", metavar="FILE|MODULE", required=True, help="The model module: a file, or a dotted name."
        ),
    ):
        command = option(command)
    return json_option(connection_options(command))


def _module_command(*more: str, **extra: Any) -> Callable[[Callable[..., Any]], click.Command]:
    return click.command(
        cls=RunCommand,
        params=_options_of_run(*SHARED_OPTIONS, *more),
        context_settings={"max_content_width": 100},
        **extra,
    )


@_module_command(*TRAIN_OPTIONS)
@click.option(
    "--output", metavar="DIR|URL", required=True, help="Where to save the model, in a folder with the job's name."
)
@click.option(
    "--ps",
    metavar="N",
    type=click.IntRange(0),
    default=SERVERS,
    show_default=True,
    help="Parameter servers of this machine.",
)
@click.option(
    "--evaluate-every",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    help="Shards between two evaluations.  [default: an epoch]",
)
@click.option("--epochs", type=_COUNT, metavar="N", default=1, show_default=True, help="Passes over the data.")
@click.option("--validation-data", metavar="PATH|URL", help="Record files to evaluate on during the training.")
@_shared
def train(**given: Any) -> int:
    """Train a model module.

    Workers take shards of the records from a task queue, and the parameters are on parameter servers. A lost worker's
    shard goes to another one. The servers save the model in OUTPUT/JOB, where `pliant evaluate` and `pliant predict`
    read it.
    """
    if not (given["ps"] or given["rdzv_endpoint"] or given["flags"].names_coordinator):
        raise BadInput("--ps 0 needs servers on another machine: pass --rdzv-endpoint HOST, or --ps 1 or more.")
    if given["evaluate_every"] and given["validation_data"] is None:
        raise BadInput("--evaluate-every needs --validation-data: there is nothing to evaluate on.")
    job = _job_name(given, "")
    place = checkpoint_place(job, given["output"])
    hint = f"pliant evaluate --model-def {given['model_def']} --model {place} --data ..."
    return _launch(
        "train",
        job,
        given,
        {"checkpoint_dir": given["output"]},
        ("validation_data", "epochs", "evaluate_every"),
        f"the model is saved in {place}: {hint}",
    )


@_module_command()
@click.option("--model", metavar="DIR|URL", required=True, help="The saved model: OUTPUT/JOB of pliant train.")
@_shared
def evaluate(**given: Any) -> int:
    """Evaluate a saved model.

    Shows the means of its loss and metrics over all records.
    """
    return _launch("evaluate", _job_name(given, "-evaluate"), given, {}, ("model",))


@_module_command()
@click.option(
    "--output",
    metavar="DIR|URL",
    required=True,
    help="Folder that all machines share, for the predictions: one file of JSON lines for each shard.",
)
@click.option("--model", metavar="DIR|URL", required=True, help="The saved model: OUTPUT/JOB of pliant train.")
@_shared
def predict(**given: Any) -> int:
    """Predict with a saved model.

    Writes one line for each record, exactly once. A file appears once all records of its shard are predicted. Workers
    that are lost change nothing in the output.
    """
    return _launch("predict", _job_name(given, "-predict"), given, {}, ("model", "output"))


def _job_name(given: Mapping[str, Any], suffix: str) -> str:
    """Return the job's name: the given one, PLIANT_JOB, or that of the module."""
    if name := given["job"] or settings.read().job:
        return str(name)
    where = str(given["model_def"])
    stem = Path(where).stem if where.endswith(".py") else where.rpartition(".")[2]
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[: NAME_MAX - len(suffix)]
    return f"{plain or 'model'}{suffix}"


def _launch(
    command: str,
    job: str,
    given: Mapping[str, Any],
    changes: dict[str, Any],
    own: tuple[str, ...],
    once_finished: str = "",
) -> int:
    """Check the module and its data, then run this machine's agent."""
    work = {name: given[name] for name in ("model_def", "data", "format", "batch_size", "records_per_task", *own)}
    args = [command]
    for name, value in work.items():
        args += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    verbosity = parse_verbosity(quiet=given["quiet"], verbose=given["verbose"])
    facts, status = _check(args)
    if status:
        return status
    args += ["--saved", facts["saved"]] if facts.get("saved") else []
    known = set(RunOptions.__dataclass_fields__)
    options = RunOptions(
        **{name: value for name, value in given.items() if name in known and value is not None}
        | {"script": WORKERS, "module": True, "args": tuple(args), "job": job, "mode": "tasks"}
        | {"given": given_options(click.get_current_context())}
        | changes
    )
    return run_agent(
        options, given["flags"], as_json=given["as_json"], verbosity=verbosity, once_finished=once_finished
    )


def _check(args: list[str]) -> tuple[dict[str, Any], int]:
    """Check in a process of its own, which imports the framework. It prints what is wrong itself."""
    done = subprocess.run(
        [sys.executable, "-m", WORKERS, *args, "--check"],
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode < 0:
        raise PliantError(
            f"The check of the module was ended by {_signal_name(-done.returncode)}. If the machine has too little "
            "memory for the module with its data or its saved model, use a larger one."
        )
    if done.returncode:
        return {}, done.returncode
    for line in reversed(done.stdout.splitlines()):  # other programs that the module starts may write here, too
        with suppress(ValueError):
            facts = json.loads(line)
            if isinstance(facts, dict) and "records" in facts:
                return facts, 0
    raise PliantError("The check of the module printed no result: the module ends the process. Remove that from it.")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # such as a real-time signal
        return f"signal {number}"
