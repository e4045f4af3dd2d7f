"""`pliant run`: train a script elastically on this machine, with torchrun's options and Pliant's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pliant import settings
from pliant.cli.commands.jobs import parse_sizes
from pliant.cli.connect import PROGRAM, Flags, connection_options
from pliant.cli.output import json_option
from pliant.cli.run import option_types
from pliant.cli.run.output import JsonOutput, PlainOutput, Verbosity
from pliant.cli.run.plan import RunOptions, build_plan, probe_machine
from pliant.core.policy.schedule import describe_schedule
from pliant.errors import PliantError

FLAGS_WITHOUT_VARIABLE = ("--logs-specs", "--numa-binding")  # torchrun reads a PET_ variable for all others
IGNORED = "Accepted for torchrun, no effect."


def _option(*names: str, text: str = "", **more: Any) -> click.Option:
    return click.Option(names, help=text, **more)


_COUNT, _SECONDS, _POSITIVE_SECONDS = click.IntRange(0), click.FloatRange(0), click.FloatRange(0, min_open=True)
PLIANT_OPTIONS = [
    _option("--job", metavar="NAME", text="Name of the job.  [default: --rdzv-id, PLIANT_JOB, the script's name]"),
    _option(
        "--workers",
        type=parse_sizes,
        metavar="MIN:MAX",
        text="Smallest and largest number of workers; 4 means 4:4.",
    ),
    _option("--target", metavar="N", type=click.IntRange(1), text="Number of workers to start with.  [default: MAX]"),
    _option(
        "--schedule",
        metavar="STEP:N,...",
        type=option_types.parse_schedule,
        text="Number of workers from a step on, such as 0:2,1000:8, for a live job.",
    ),
    _option(
        "--ps",
        metavar="N",
        type=_COUNT,
        default=0,
        envvar="PLIANT_PS",
        text="Parameter servers beside the workers, for a task queue or --mode live.  [default: PLIANT_PS, 0]",
    ),
    _option("--spares", metavar="N", type=_COUNT, default=0, text="Standby workers beyond the target."),
    _option("--queue", metavar="NAME", text="Share the coordinator's pool with other jobs, in this queue."),
    _option(
        "--priority",
        metavar="N",
        type=int,
        default=0,
        text="With --queue: jobs with a higher number get workers first.",
    ),
    _option(
        "--at-most-cost",
        metavar="COST",
        type=option_types.parse_cost,
        default="none",
        text=option_types.COST_HELP,
    ),
    _option(
        "--deadline",
        metavar="TIME",
        type=option_types.parse_deadline,
        default="none",
        text=option_types.DEADLINE_HELP,
    ),
    _option(
        "--autoscale",
        type=click.Choice(["off", "advise", "on"]),
        default="off",
        text="Choose the number of workers by the job's own speed: on, or advise to see what it would do.",
    ),
    _option(
        "--mode",
        type=click.Choice(["auto", "live", "relaunch", "tasks"]),
        default="auto",
        text="live: workers keep running through changes. tasks: they take shards of a queue. relaunch: all restart.  "
        "[default: auto, by the script]",
    ),
    _option(
        "--grace-s",
        metavar="S",
        type=_SECONDS,
        default=settings.GRACE_S,
        envvar="PLIANT_GRACE_S",
        text=f"Seconds that workers have to leave.  [default: PLIANT_GRACE_S, {settings.GRACE_S:g}]",
    ),
    _option(
        "--wait-limit-s",
        metavar="S",
        type=_POSITIVE_SECONDS,
        text="Fail after waiting this long for workers.",
    ),
    _option(
        "--preload",
        type=option_types.parse_modules,
        metavar="MODULES",
        text="Modules to import ahead, so that workers start faster; '' for none.",
    ),
    _option(
        "--env",
        "kind",
        type=click.Choice(["torch", "tf", "jax"]),
        default="torch",
        text="Framework whose environment variables workers get.",
    ),
    _option(
        "--notice",
        "notices",
        type=option_types.parse_notice,
        multiple=True,
        metavar="NAME",
        text="Source of preemption notices: aws, gcp, azure, file:PATH, command:CMD. Repeatable.",
    ),
    _option(
        "--checkpoint-dir",
        metavar="DIR|URL",
        envvar="PLIANT_CHECKPOINT_DIR",
        text="Where to store checkpoints of a live job.  [default: PLIANT_CHECKPOINT_DIR, the job's folder]",
    ),
    _option(
        "--checkpoint-every",
        type=option_types.parse_interval,
        metavar="STEPS|TIME",
        default="10m",
        show_default=True,
        text="Checkpoint interval, such as 500 (steps), 90s or 2h; never: only when necessary and at the end.",
    ),
    _option(
        "--checkpoint-keep",
        metavar="N",
        type=click.IntRange(1),
        default=2,
        show_default=True,
        text="Number of checkpoints to keep.",
    ),
    _option("--fresh", is_flag=True, text="Start over instead of continuing an earlier attempt."),
    _option(
        "--metrics-port",
        metavar="N",
        type=click.IntRange(1, option_types.PORT_MAX),
        text="Port of this machine at which Prometheus reads metrics, with a token.",
    ),
    _option(
        "--override",
        is_flag=True,
        text="Continue with the script's learning rate and other optimizer settings, not the checkpoint's.",
    ),
    _option("--allow-chaos", "chaos", is_flag=True, text="Let `pliant chaos` inject faults into this job."),
    _option("-q", "--quiet", is_flag=True, text="Show the workers' output and problems only."),
    _option("-v", "--verbose", is_flag=True, text="Show every event of the job."),
]
TORCHRUN_OPTIONS = [  # in torchrun's order
    _option("--nnodes", type=parse_sizes, metavar="N|MIN:MAX", text="Number of machines."),
    _option("--nproc-per-node", metavar="N|auto|cpu|gpu|xpu", text="Number of workers this machine can run."),
    _option(
        "--rdzv-backend",
        "rdzv_kind",
        metavar="c10d|static|etcd",
        text="etcd: each agent runs a coordinator on it, and one leads. Otherwise agents meet at one coordinator.",
    ),
    _option(
        "--rdzv-endpoint",
        type=option_types.parse_endpoint,
        metavar="HOST[:PORT]|etcd://...",
        text="Address of the coordinator; the machine that has it hosts it. Or torchelastic's URL of etcd.",
    ),
    _option("--rdzv-id", metavar="NAME", text="Name of the job, like --job."),
    _option(
        "--rdzv-conf",
        type=option_types.parse_rdzv_conf,
        metavar="K=V,...",
        text="join_timeout and is_host; other keys have no effect.",
    ),
    _option("--standalone", is_flag=True, text="Use this machine only."),
    _option(
        "--max-restarts",
        metavar="N",
        type=_COUNT,
        default=3,
        show_default=True,
        text="Worker failures that the job survives.",
    ),
    _option("--monitor-interval", metavar="S", type=_SECONDS, text=IGNORED),
    _option("--start-method", type=click.Choice(["spawn", "fork", "forkserver"]), text=IGNORED),
    _option("--event-log-handler", metavar="NAME", text=f"{IGNORED} See `pliant events`."),
    _option("--role", default="default", text="Role of the workers; with --env tf, counts such as chief:1,ps:2."),
    _option("-m", "--module", is_flag=True, text="SCRIPT is a module name, like python -m."),
    _option("--no-python", is_flag=True, text="SCRIPT is a program; run it without Python."),
    _option("--run-path", is_flag=True, text=IGNORED),
    _option("--log-dir", type=click.Path(path_type=Path), metavar="DIR", text="Folder for the workers' logs."),
    _option(
        "-r",
        "--redirects",
        default="0",
        metavar="MASK",
        text="Streams to log without showing: 1 stdout, 2 stderr, 3 both; by local rank: 0:3,1:2.",
    ),
    _option("-t", "--tee", default="0", metavar="MASK", text="Streams to log and show."),
    _option(
        "--local-ranks-filter",
        type=option_types.parse_ranks,
        metavar="0,1,...",
        text="Show the output of these local ranks only.",
    ),
    _option(
        "--duplicate-stdout-filters",
        type=option_types.parse_filters,
        metavar="A,B",
        text="Copy lines of standard output that contain one of these words.",
    ),
    _option(
        "--duplicate-stderr-filters",
        type=option_types.parse_filters,
        metavar="A,B",
        text="Copy lines of standard error that contain one of these words.",
    ),
    _option("--node-rank", metavar="N", type=_COUNT, text="0 hosts the coordinator; other machines join it."),
    _option("--master-addr", "static_host", metavar="HOST", text="Address of the coordinator, like --rdzv-endpoint."),
    _option(
        "--master-port",
        "static_port",
        metavar="N",
        type=click.IntRange(0, option_types.PORT_MAX),
        text="Port of the coordinator.",
    ),
    _option("--local-addr", metavar="HOST", text="Address at which other machines reach this one."),
    _option("--logs-specs", metavar="NAME", text=IGNORED),
    _option("--numa-binding", type=click.Choice(["node", "socket", "exclusive", "core-complex"]), text=IGNORED),
    _option(
        "--signals-to-handle",
        "signals",
        type=option_types.parse_signals,
        metavar="A,B",
        text="Signals on which the workers leave.",
    ),
    _option(
        "--shutdown-timeout",
        metavar="S",
        type=_SECONDS,
        text="Seconds between SIGTERM and SIGKILL.  [default: 30; 5 with --env tf and jax]",
    ),
    _option("--virtual-local-rank", is_flag=True, text="Show each worker a single device, as device 0."),
]


class RunCommand(click.Command):
    """A command that takes defaults from torchrun's variables, with help in two sections."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        variables = {} if ctx.resilient_parsing else settings.with_prefix("PET_")
        given = {variable: option for option in TORCHRUN_OPTIONS if variables.get(variable := _variable_of(option))}
        ctx.default_map = {
            option.name or "": _value_from_variable(option, name, variables[name]) for name, option in given.items()
        }
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            for variable, option in given.items():
                source = ctx.get_parameter_source(option.name or "")
                if error.param is option and source is ParameterSource.DEFAULT_MAP:
                    raise click.UsageError(
                        f"The environment variable {variable} is invalid: {error.message}", ctx
                    ) from error
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        arguments = [each for each in self.params if isinstance(each, click.Argument)]
        torchrun = [option for option in self.params if option in TORCHRUN_OPTIONS]
        own = [option for option in self.get_params(ctx) if option not in [*TORCHRUN_OPTIONS, *arguments]]
        for title, options in (("Options", own), ("torchrun options (with - or _ in names)", torchrun)):
            with formatter.section(title):
                formatter.write_dl([row for option in options if (row := option.get_help_record(ctx)) is not None])


def _variable_of(option: click.Option) -> str:
    """Return the variable that torchrun reads for this option; empty if there is none."""
    flag = max(option.opts, key=len)
    return "" if flag in FLAGS_WITHOUT_VARIABLE else f"PET_{flag.removeprefix('--').replace('-', '_').upper()}"


def _value_from_variable(option: click.Option, variable: str, text: str) -> str | bool:
    if not option.is_flag:
        return text
    if not text.strip().isdecimal():
        raise click.UsageError(f"The environment variable {variable} must be 1 or 0, not {text!r}.")
    return int(text) != 0


def given_options(ctx: click.Context) -> dict[str, str]:
    """Return the options that were passed, with their values as text."""
    found = {}
    for option in [*PLIANT_OPTIONS, *TORCHRUN_OPTIONS]:
        source = ctx.get_parameter_source(option.name or "")
        if source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP):
            found[max(option.opts, key=len)] = _as_text(ctx.params[option.name or ""])
    return found


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return describe_schedule(value) if value and isinstance(value[0], tuple) else ":".join(map(str, value))
    return "yes" if value is True else str(value)


def _with_dashes(name: str) -> str:
    return name.replace("_", "-")


def parse_verbosity(*, quiet: bool, verbose: bool) -> Verbosity:
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose cannot be combined.")
    return Verbosity.QUIET if quiet else Verbosity.VERBOSE if verbose else Verbosity.NORMAL


@click.command(
    cls=RunCommand,
    params=[*PLIANT_OPTIONS, *TORCHRUN_OPTIONS],
    context_settings={"allow_interspersed_args": False, "token_normalize_func": _with_dashes},
)
@json_option
@connection_options
@click.argument("script", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    script: str | None, args: tuple[str, ...], flags: Flags, as_json: bool, quiet: bool, verbose: bool, **given: Any
) -> int:
    """Train SCRIPT elastically, with torchrun's command line.

    Starts the workers of this machine, replaces lost workers, and shows their output and the events of the job. A
    script that calls pliant.join() keeps running through changes; any other script is relaunched. Ctrl-C lets the
    workers leave; run the same command again to resume. Everything after SCRIPT is passed to it.
    """
    options = RunOptions(
        script=script,
        args=args,
        given=given_options(click.get_current_context()),
        **{name: value for name, value in given.items() if value is not None},
    )
    return run_agent(options, flags, as_json=as_json, verbosity=parse_verbosity(quiet=quiet, verbose=verbose))


def run_agent(
    options: RunOptions, flags: Flags, *, as_json: bool, verbosity: Verbosity, once_finished: str = ""
) -> int:
    """Run this machine's agent until the job ends. Return the exit status.

    `once_finished` is shown if the job is finished then. An agent that leaves early also ends with 0.
    """
    from pliant.agent.agent import AgentProcess
    from pliant.agent.setup import agent_id

    machine = probe_machine()
    planned = build_plan(options, machine, flags)
    output = JsonOutput() if as_json else PlainOutput(verbosity, agent_id())
    try:
        for note in planned.notes:
            output.say(note)
        agent = AgentProcess(planned.plan, machine.settings.home, output, PROGRAM, planned.elsewhere)
        status = agent.run()
        if once_finished and agent.finished:
            output.say(once_finished)
        return status
    except PliantError as error:
        output.fail(error.why)
        return error.exit_code
    finally:
        output.close()
