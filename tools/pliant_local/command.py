"""`pliant local`: start a sandbox on this machine, and change it while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pliant import settings
from pliant.cli.connect import PROGRAM, Flags
from pliant.cli.output import json_option, print_json, print_table
from pliant.cli.run.command import parse_verbosity
from pliant.cli.run.command import run as run_command
from pliant.cli.run.output import JsonOutput, PlainOutput, Verbosity
from pliant.cli.run.plan import RunOptions, build_plan, probe_machine
from pliant.core.leases import LEASE_TTL_S
from pliant.core.model.names import bad_name
from pliant.errors import BadInput, PliantError

if TYPE_CHECKING:
    from pliant.agent.plan import RunPlan
    from pliant.agent.process.client import Processes
    from pliant_local.network import Network
    from pliant_local.sandbox import SandboxOptions

LOOKERS_S = 10.0  # how long to wait for other commands that hold the job's lock
MODES = ("auto", "namespaces", "loopback")

name_option = click.option("--name", default="local", show_default=True, help="Name of the sandbox.")


class _Local(click.Group):
    """A group whose first argument is a command, or the first argument for `pliant run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in self.commands:
            return super().parse_args(ctx, args)
        own, ctx.obj = split(args, self.params, run_command.params)
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, _ctx: click.Context) -> list[str]:
        return ["[OPTIONS] [OPTIONS OF pliant run] SCRIPT [ARGS]...\n  pliant local COMMAND"]


def split(
    args: Sequence[str], own: Sequence[click.Parameter], others: Sequence[click.Parameter]
) -> tuple[list[str], tuple[str, ...]]:
    """Split arguments into options of `pliant local` and arguments of `pliant run`, in any order before the script."""
    ours: list[str] = []
    rest: list[str] = []
    mine = {**_options(own), "--help": 0, "-h": 0}
    known = {**_options(others), **mine}
    at = 0
    while at < len(args):
        token = args[at]
        if token == "--":
            return ours, (*rest, *args[at + 1 :])
        if not token.startswith("-") or token == "-":
            break
        name, has_value, _ = token.partition("=") if token.startswith("--") else (token[:2], token[2:], "")
        dashed = name.replace("_", "-")  # torchrun accepts both spellings
        taken = 1 if has_value else 1 + known.get(dashed, 0)
        (ours if dashed in mine else rest).extend((dashed + token[len(name) :], *args[at + 1 : at + taken]))
        at += taken
    return ours, (*rest, *args[at:])


def _options(params: Sequence[click.Parameter]) -> dict[str, int]:
    """Return the number of values of each option."""
    return {
        name: 0 if option.is_flag or option.count else option.nargs
        for option in params
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    }


@click.group(cls=_Local, invoke_without_command=True)
@click.option("--agents", type=int, metavar="N", help="Number of agents at the start.  [default: 2]")
@click.option("--agent-schedule", metavar="S:N,...", help="Number of agents from second S on: 0:2,10:4,20:1.")
@click.option("--for", "for_s", type=click.FloatRange(0, min_open=True), metavar="S", help="End after S seconds.")
@click.option(
    "--network",
    type=click.Choice(MODES),
    default="auto",
    show_default=True,
    help="Give each agent a network namespace and address, or run all on 127.0.0.1.",
)
@click.option(
    "--lease-ttl-s",
    type=click.FloatRange(0.5, 3600.0),
    metavar="SECONDS",
    default=LEASE_TTL_S,
    show_default=True,
    help="Time without a renewal after which a worker is lost.",
)
@name_option
@json_option
@click.pass_context
def local(
    ctx: click.Context,
    agents: int | None,
    agent_schedule: str | None,
    for_s: float | None,
    network: str,
    lease_ttl_s: float,
    name: str,
    as_json: bool,
) -> int | None:
    """Train SCRIPT with agents that come and go on this machine.

    Starts a coordinator and several agents. Each agent is a `pliant run` with the remaining arguments, and has its own
    home and name; as root, its own address, too. Agents come and go by --agent-schedule, and by the commands below from
    another terminal.
    """
    if ctx.invoked_subcommand is not None:
        return None
    from pliant_local.sandbox import SandboxOptions
    from pliant_local.schedule import plan

    points = plan(agents, agent_schedule)
    asked, verbosity = _plan(ctx)
    folder, home = _folder(name), (settings.read().home / "jobs" / asked.job).absolute()
    logs = () if asked.logs.log_dir is not None else ("--log-dir", str(folder / "logs"))  # one folder for all agents
    wish = SandboxOptions(
        asked.job, PROGRAM, (*logs, *ctx.obj), points, for_s, asked.grace_s, lease_ttl_s, folder, home
    )
    output = JsonSandboxOutput() if as_json else PlainSandboxOutput(verbosity)
    try:
        return _run(wish, asked, network, output)
    finally:
        output.close()


def _plan(ctx: click.Context) -> tuple[RunPlan, Verbosity]:
    """Parse the arguments of `pliant run`, so that errors are reported once and not by every agent."""
    given = dict(run_command.make_context(ctx.command_path, list(ctx.obj)).params)
    urls, token_file = given.pop("coordinator_urls"), given.pop("token_file")
    if urls or token_file is not None:
        raise click.UsageError("`pliant local` starts its own coordinator. Drop --coordinator and --token-file.")
    del given["as_json"]
    verbosity = parse_verbosity(quiet=given.pop("quiet"), verbose=given.pop("verbose"))
    said = {name: value for name, value in given.items() if value is not None}
    somewhere = Flags((settings.DEFAULT_URL,), Path("join-token"))  # a placeholder: agents get the real address later
    return build_plan(RunOptions(**said), probe_machine(), somewhere).plan, verbosity


def _folder(name: str) -> Path:
    if wrong := bad_name(name):
        raise BadInput(f"Invalid --name: {wrong}.")
    return (settings.read().home / "local" / name).absolute()


def _run(wish: SandboxOptions, asked: RunPlan, mode: str, told: PlainSandboxOutput | JsonSandboxOutput) -> int:
    from pliant.agent.job_dir import RUNNER, JobDir
    from pliant.agent.process.client import Processes
    from pliant.agent.setup import open_job
    from pliant_local.control import claimed
    from pliant_local.network import this_process
    from pliant_local.sandbox import Sandbox
    from pliant_local.sweeper import Sweeper

    folder, owner = JobDir(wish.job_home), this_process()
    folder.make()
    with claimed(wish.home), folder.lock(RUNNER, LOOKERS_S), Sweeper(owner, wish.home):
        keeps = LoggedProcesses(wish.home / "logs", told.say)
        _point_to(asked.logs.log_dir or keeps.logs / asked.job, folder.logs_at)
        local = Sandbox(wish, keeps, _network(mode, told.say), told)
        with Processes(local.process_ended, local.broken) as keeps.processes:
            try:
                return local.run(folder.write_endpoint, lambda client: open_job(client, asked))
            finally:
                folder.forget_endpoint()


def _point_to(logs: Path, file: Path) -> None:
    """Record the folder of logs, so that `pliant logs` finds the output of all agents' workers."""
    try:
        file.write_text(f"{logs.absolute()}\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"Cannot write {file}: {error.strerror}.") from error


def _network(mode: str, say: Callable[[str], None]) -> Network | None:
    """Make a network of namespaces if it is wanted and possible."""
    from pliant_local.network import Network, namespaces_unavailable, remove_leftovers, this_process

    if mode == "loopback":
        return None
    why = namespaces_unavailable()
    network = Network(this_process())
    if not why:
        for owner in remove_leftovers():
            say(f"removed leftovers of process {owner.pid}, which was killed")
        try:
            network.open()
            return network
        except PliantError as error:
            why = error.why
    if mode == "namespaces":
        raise BadInput(f"Cannot make namespaces: {why}. Without --network all agents run on 127.0.0.1.")
    say(f"all agents run on 127.0.0.1: {why}")
    return None


@dataclass
class LoggedProcesses:
    """The processes of a sandbox, each with a log file."""

    logs: Path
    say: Callable[[str], None]
    processes: Processes = None  # type: ignore[assignment]  # set before anything is started

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str], line: Callable[[bytes], None]) -> None:
        from pliant.agent.logs.capture import OutputSink

        self.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.processes.start(name, argv, env, OutputSink(self.logs / f"{name}.log", line, self.say))

    def terminate(self, name: str) -> None:
        self.processes.terminate(name)

    def kill(self, name: str) -> None:
        self.processes.kill(name)


# ---------------------------------------------------------------------------------------------- what is shown


def parse_agent_line(line: bytes) -> dict[str, Any]:
    """Parse a line of `pliant run --json`; other lines, such as errors, become a message."""
    try:
        said = json.loads(line)
    except ValueError:
        said = None
    return said if isinstance(said, dict) else {"message": line.decode("utf-8", "replace")}


class PlainSandboxOutput(PlainOutput):
    """Plain text: the source in brackets, and the line. Events of the job are printed once, not by every agent."""

    def agent(self, name: str, line: bytes) -> None:
        said = parse_agent_line(line)
        if "worker" in said:
            is_error = said.get("stream") == "stderr"
            self.worker(str(said["worker"]), str(said.get("line", "")).encode(), is_error=is_error)
        elif "event" not in said:
            self.worker(name, str(said.get("message", "")).encode())


class JsonSandboxOutput(JsonOutput):
    """JSON lines of `pliant run`, with `agent` where an agent wrote it."""

    def agent(self, name: str, line: bytes) -> None:
        said = parse_agent_line(line)
        if "event" not in said:
            self.line(json.dumps({"agent": name, **said}), from_worker=True)


# ------------------------------------------------------------------------------------------------ by command


def _tell(name: str, as_json: bool, question: dict[str, Any], sentence: str) -> None:
    """Send a command to a sandbox and print the sentence."""
    from pliant_local.control import ask

    answer = ask(_folder(name), question)
    if as_json:
        print_json({key: value for key, value in answer.items() if key != "ok"})
    else:
        click.echo(sentence.format(**answer))


@local.command()
@name_option
@json_option
def add(name: str, as_json: bool) -> None:
    """Start one more agent."""
    _tell(name, as_json, {"do": "add"}, "{agent} started at {address}.")


@local.command()
@click.argument("agent", required=False)
@name_option
@json_option
def remove(agent: str | None, name: str, as_json: bool) -> None:
    """Let an agent leave (default: the newest)."""
    question = {"do": "remove", "agent": agent}
    _tell(name, as_json, question, "{agent} leaves within its grace period.")


@local.command()
@click.argument("agent")
@name_option
@json_option
def kill(agent: str, name: str, as_json: bool) -> None:
    """Kill an agent and its workers."""
    _tell(name, as_json, {"do": "kill", "agent": agent}, "{agent} was killed.")


@local.command()
@click.argument("agent")
@name_option
@json_option
def cut(agent: str, name: str, as_json: bool) -> None:
    """Cut an agent off from the network."""
    question = {"do": "cut", "agent": agent}
    _tell(name, as_json, question, "{agent} is cut off. Reconnect it with `pliant local heal {agent}`.")


@local.command()
@click.argument("agent")
@name_option
@json_option
def heal(agent: str, name: str, as_json: bool) -> None:
    """Reconnect an agent that was cut off."""
    _tell(name, as_json, {"do": "heal", "agent": agent}, "{agent} is reconnected.")


@local.command("list")
@name_option
@json_option
def list_agents(name: str, as_json: bool) -> None:
    """List the agents, running and ended."""
    from pliant_local.control import ask

    answer = ask(_folder(name), {"do": "list"})
    if as_json:
        print_json({key: value for key, value in answer.items() if key != "ok"})
    else:
        rows = [[_cell(each, key) for key in ("agent", "state", "address", "age_s")] for each in answer["agents"]]
        print_table(("agent", "state", "address", "age"), rows)


def _cell(agent: dict[str, Any], key: str) -> str:
    if key == "state" and agent["code"] is not None:
        return f"ended ({agent['code']})"
    return f"{agent[key]:.0f} s" if key == "age_s" else str(agent[key])
