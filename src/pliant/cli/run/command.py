"""`pliant run`: train a script elastically on this machine, with torchrun's command line and ours."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pliant import settings
from pliant.cli.commands.jobs import sizes
from pliant.cli.connect import PROGRAM, Flags, connection
from pliant.cli.output import clean, json_option
from pliant.cli.run import option_types
from pliant.cli.run.plan import Given, look_around, understand

if TYPE_CHECKING:
    from pliant.core.messages import Event

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")
SHOWN_MAX = 4000  # characters of a line on the screen; the log has it whole
PROGRESS_S = 10.0
WITHOUT_VARIABLE = ("--logs-specs", "--numa-binding")  # torchrun reads a PET_ variable for every other flag


def _option(*names: str, text: str = "", **more: Any) -> click.Option:
    return click.Option(names, help=text, **more)


_COUNT, _SECONDS, _SOME_SECONDS = click.IntRange(0), click.FloatRange(0), click.FloatRange(0, min_open=True)
OURS = [
    _option("--job", metavar="NAME", text="The job's name.  [default: --rdzv-id, PLIANT_JOB, the script's name]"),
    _option("--workers", type=sizes, metavar="MIN:MAX", text="How few and how many workers; 4 means 4:4."),
    _option("--target", metavar="N", type=click.IntRange(1), text="How many are wanted at first.  [default: MAX]"),
    _option("--spares", metavar="N", type=_COUNT, default=0, text="Ready workers beyond the target."),
    _option(
        "--mode",
        type=click.Choice(["auto", "live", "relaunch"]),
        default="auto",
        text="What a change does: live workers go on, others are relaunched.  [default: auto, by the script]",
    ),
    _option(
        "--grace-s",
        metavar="S",
        type=_SECONDS,
        default=settings.GRACE_S,
        show_default=True,
        text="How long leaving may take.",
    ),
    _option("--wait-limit-s", metavar="S", type=_SOME_SECONDS, text="Fail after waiting so long for workers."),
    _option(
        "--preload", type=option_types.modules, metavar="MODULES", text="Imported ahead, for quick starts; '' for none."
    ),
    _option(
        "--env",
        "kind",
        type=click.Choice(["torch", "tf", "jax"]),
        default="torch",
        text="Whose variables workers get.",
    ),
    _option(
        "--notice",
        "notices",
        type=option_types.notice,
        multiple=True,
        metavar="NAME",
        text="Where spot notices come from: aws, gcp, azure, file:PATH, command:CMD. May be repeated.",
    ),
    _option("--checkpoint-dir", metavar="DIR|URL", text="Where live jobs are saved.  [default: the job's own folder]"),
    _option(
        "--checkpoint-every",
        type=option_types.every,
        metavar="STEPS|TIME",
        default="10m",
        show_default=True,
        text="How often, 500 or 90s or 2h for instance; never: only when it must be, and at the end.",
    ),
    _option(
        "--checkpoint-keep",
        metavar="N",
        type=click.IntRange(1),
        default=2,
        show_default=True,
        text="How many are kept.",
    ),
    _option("--fresh", is_flag=True, text="Begin anew, whatever an earlier attempt came to."),
    _option("--allow-chaos", "chaos", is_flag=True, text="Let `pliant chaos` strike at this job."),
]
TORCHRUNS = [  # in its order
    _option("--nnodes", type=sizes, metavar="N|MIN:MAX", text="How many machines."),
    _option("--nproc-per-node", metavar="N|auto|cpu|gpu|xpu", text="How many workers this machine has room for."),
    _option("--rdzv-backend", "rdzv_kind", metavar="c10d|static", text="Either: agents meet at a coordinator."),
    _option(
        "--rdzv-endpoint", type=option_types.endpoint, metavar="HOST[:PORT]", text="Where agents meet; its owner hosts."
    ),
    _option("--rdzv-id", metavar="NAME", text="The job's name, as --job."),
    _option(
        "--rdzv-conf", type=option_types.conf, metavar="K=V,...", text="join_timeout, is_host; others have no effect."
    ),
    _option("--standalone", is_flag=True, text="This machine alone."),
    _option(
        "--max-restarts",
        metavar="N",
        type=_COUNT,
        default=3,
        show_default=True,
        text="Failures of workers by themselves.",
    ),
    _option("--monitor-interval", metavar="S", type=_SECONDS, text="No effect."),
    _option("--start-method", type=click.Choice(["spawn", "fork", "forkserver"]), text="No effect."),
    _option("--event-log-handler", metavar="NAME", text="No effect; see `pliant events`."),
    _option("--role", default="default", text="The workers' role; with --env tf, chief:1,ps:2 for instance."),
    _option("-m", "--module", is_flag=True, text="SCRIPT is a module's name, as for python -m."),
    _option("--no-python", is_flag=True, text="SCRIPT is a program, run as it is."),
    _option("--run-path", is_flag=True, text="No effect."),
    _option("--log-dir", type=click.Path(path_type=Path), metavar="DIR", text="Where workers' logs go."),
    _option("-r", "--redirects", default="0", metavar="MASK", text="Only logged: 1 stdout, 2 stderr, 3 both; 0:3,1:2."),
    _option("-t", "--tee", default="0", metavar="MASK", text="Logged and shown."),
    _option("--local-ranks-filter", type=option_types.ranks, metavar="0,1,...", text="Show these local ranks alone."),
    _option(
        "--duplicate-stdout-filters",
        type=option_types.filters,
        metavar="A,B",
        text="Copy lines that have one of these.",
    ),
    _option(
        "--duplicate-stderr-filters", type=option_types.filters, metavar="A,B", text="The same for standard error."
    ),
    _option("--node-rank", metavar="N", type=_COUNT, text="0 hosts the coordinator, others join."),
    _option("--master-addr", "static_host", metavar="HOST", text="Where agents meet, as --rdzv-endpoint."),
    _option(
        "--master-port", "static_port", metavar="N", type=click.IntRange(0, option_types.PORT_MAX), text="Its port."
    ),
    _option("--local-addr", metavar="HOST", text="Where other machines reach this one."),
    _option("--logs-specs", metavar="NAME", text="No effect."),
    _option("--numa-binding", type=click.Choice(["node", "socket", "exclusive", "core-complex"]), text="No effect."),
    _option(
        "--signals-to-handle",
        "signals",
        type=option_types.signals,
        metavar="A,B",
        text="Signals that let workers leave.",
    ),
    _option(
        "--shutdown-timeout", metavar="S", type=_SECONDS, text="Seconds between SIGTERM and SIGKILL.  [default: 30]"
    ),
    _option("--virtual-local-rank", is_flag=True, text="Each worker sees one device, as its device 0."),
]


class Run(click.Command):
    """A command with torchrun's variables for defaults, and help in two parts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        said = {} if ctx.resilient_parsing else settings.with_prefix("PET_")
        given = {variable: option for option in TORCHRUNS if said.get(variable := _variable(option))}
        ctx.default_map = {option.name or "": _said(option, name, said[name]) for name, option in given.items()}
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            for variable, option in given.items():
                source = ctx.get_parameter_source(option.name or "")
                if error.param is option and source is ParameterSource.DEFAULT_MAP:
                    raise click.UsageError(
                        f"{variable} in the environment cannot be used: {error.message}", ctx
                    ) from error
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        arguments = [each for each in self.params if isinstance(each, click.Argument)]
        theirs = [option for option in self.params if option in TORCHRUNS]
        ours = [option for option in self.get_params(ctx) if option not in [*TORCHRUNS, *arguments]]
        for title, options in (("Options", ours), ("torchrun's options, with - or _ in their names", theirs)):
            with formatter.section(title):
                formatter.write_dl([row for option in options if (row := option.get_help_record(ctx)) is not None])


def _variable(option: click.Option) -> str:
    """The variable that torchrun reads where the flag is not given; empty if there is none."""
    flag = max(option.opts, key=len)
    return "" if flag in WITHOUT_VARIABLE else f"PET_{flag.removeprefix('--').replace('-', '_').upper()}"


def _said(option: click.Option, variable: str, text: str) -> str | bool:
    if not option.is_flag:
        return text
    if not text.strip().isdecimal():
        raise click.UsageError(f"{variable} in the environment must be 1 or 0, not {text!r}.")
    return int(text) != 0


def _dashes(name: str) -> str:
    return name.replace("_", "-")


@click.command(
    cls=Run,
    params=[*OURS, *TORCHRUNS],
    context_settings={"allow_interspersed_args": False, "token_normalize_func": _dashes},
)
@json_option
@connection
@click.argument("script", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(script: str | None, args: tuple[str, ...], flags: Flags, as_json: bool, **given: Any) -> int:
    """Train SCRIPT elastically, in torchrun's place.

    Starts this machine's workers, replaces those that are lost, and shows what they write and what happens to the job.
    A script that calls pliant.join() goes on through every change; any other is relaunched. Ctrl-C lets workers leave;
    the same command goes on where they left. What follows SCRIPT is the script's own.
    """
    from pliant.agent.agent import AgentProcess

    around = look_around()
    said = {name: value for name, value in given.items() if value is not None}
    found = understand(Given(script=script, args=args, **said), around, flags)
    screen = JsonScreen() if as_json else PlainScreen()
    for note in found.notes:
        screen.say(note)
    return AgentProcess(found.plan, around.said.home, screen, PROGRAM, found.elsewhere).run()


class _Screen:
    """Writes whole lines, one at a time. Once nobody reads them any more it is silent; logs and training go on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gone = False

    def _write(self, text: str) -> None:
        encoding = sys.stdout.encoding or "utf-8"
        known = text.encode(encoding, "replace").decode(encoding)  # a terminal need not know every sign
        with self._lock:
            if not self._gone:
                try:
                    click.echo(known)
                except OSError:  # a closed pipe, a terminal that is gone
                    self._gone = True


class PlainScreen(_Screen):
    """For people: who says it, in brackets, and what."""

    def __init__(self) -> None:
        super().__init__()
        self._colours: dict[str, str] = {}
        self._progress_at = time.monotonic()

    def worker(self, member: str, line: bytes) -> None:
        from pliant.agent.logs.capture import visible

        text = visible(line)
        if len(text) > SHOWN_MAX:
            text = f"{text[:SHOWN_MAX]} ... ({len(text) - SHOWN_MAX} more characters, in its log)"
        with self._lock:
            colour = self._colours.setdefault(member, COLOURS[len(self._colours) % len(COLOURS)])
        self._write(f"{click.style(f'[{member}]', fg=colour)} {text}")

    def event(self, _revision: int, event: Event) -> None:
        from pliant.core.messages import AgentReadied, HoldersChanged, StepsCommitted
        from pliant.core.messages.describe import describe

        if isinstance(event, HoldersChanged | AgentReadied):
            return
        if isinstance(event, StepsCommitted):
            if time.monotonic() - self._progress_at < PROGRESS_S:
                return  # there is one for every few steps
            self._progress_at = time.monotonic()
        self.say(describe(event))

    def say(self, text: str) -> None:
        self._write(f"{click.style('[pliant]', bold=True)} {clean(text)}")


class JsonScreen(_Screen):
    """For programs: one object on each line, with `worker` and `line`, `event` and `revision`, or `say`."""

    def worker(self, member: str, line: bytes) -> None:
        self._object({"worker": member, "line": line.decode("utf-8", "replace")})

    def event(self, revision: int, event: Event) -> None:
        from pliant.wire.api import EVENTS

        self._write(f'{{"revision":{revision},"event":{EVENTS.encode(event).decode()}}}')

    def say(self, text: str) -> None:
        self._object({"say": text})

    def _object(self, said: dict[str, str]) -> None:
        import msgspec

        self._write(msgspec.json.encode(said).decode())
