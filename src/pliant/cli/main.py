"""The `pliant` command: a group that imports a command only when it runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from pliant.cli.interrupts import DefaultInterrupts

with DefaultInterrupts():
    import importlib
    import importlib.util
    from dataclasses import dataclass

    import click

from pliant import __version__
from pliant.errors import PliantError


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """The location of a command, and its line in the list of commands."""

    target: str  # "package.module:attribute"
    short_help: str

    def is_installed(self) -> bool:
        package = self.target.partition(".")[0]
        return importlib.util.find_spec(package) is not None

    def load(self) -> click.Command:
        module_name, _, attribute = self.target.partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.target} is a {type(command).__name__}, not a click command")
        return command


# Commands of the packages under tools/, which are not part of the wheel.
DEVELOPER_COMMANDS = {
    "local": LazyCommand("pliant_local.command:local", "Train SCRIPT with agents that come and go on this machine."),
    "sim": LazyCommand("pliant_sim.command:sim", "Run the decision code through simulated faults."),
}

COMMANDS: Mapping[str, LazyCommand] = MappingProxyType(
    {
        "agent": LazyCommand("pliant.cli.pool.agent:agent", "Lend this machine to many jobs of one coordinator."),
        "audit": LazyCommand("pliant.cli.audit.command:audit", "Verify that every sample was used exactly once."),
        "autoscale": LazyCommand(
            "pliant.cli.pool.autoscale:autoscale", "Show the sizes that autoscaling would have chosen for a job."
        ),
        "cancel": LazyCommand("pliant.cli.commands.control:cancel", "Cancel a job."),
        "certs": LazyCommand(
            "pliant.cli.coordinator.certs:certs", "Make a CA of your own, and issue, renew and list certificates."
        ),
        "chaos": LazyCommand("pliant.cli.commands.chaos:chaos", "Inject faults into a job and report how it recovers."),
        "checkpoint": LazyCommand(
            "pliant.cli.commands.control:checkpoint", "Save a checkpoint of a job and wait for it."
        ),
        "checkpoints": LazyCommand(
            "pliant.cli.checkpoints.commands:checkpoints", "List the checkpoints of a job, a folder or a URL."
        ),
        "completion": LazyCommand(
            "pliant.cli.commands.completion:completion", "Print the completion script for a shell."
        ),
        "coordinator": LazyCommand(
            "pliant.cli.coordinator.command:coordinator", "Run a coordinator until it is stopped."
        ),
        "doctor": LazyCommand("pliant.cli.doctor.command:doctor", "Check this machine's setup for problems."),
        "drain": LazyCommand(
            "pliant.cli.commands.control:drain", "Let a member, or all members of an agent, leave a job."
        ),
        "evaluate": LazyCommand("pliant.cli.modules.command:evaluate", "Evaluate a saved model."),
        "events": LazyCommand("pliant.cli.commands.events:events", "Show the events of a job."),
        "export": LazyCommand("pliant.cli.checkpoints.commands:export", "Export a checkpoint for use without Pliant."),
        "jobs": LazyCommand(
            "pliant.cli.commands.jobs:jobs", "List jobs, create one, change its settings, or delete old ones."
        ),
        "kube": LazyCommand("pliant.cli.kube.command:kube", "Run elastic jobs on Kubernetes."),
        "logs": LazyCommand("pliant.cli.commands.logs:logs", "Show the output of a job's workers on this machine."),
        "predict": LazyCommand("pliant.cli.modules.command:predict", "Predict with a saved model."),
        "queue": LazyCommand("pliant.cli.commands.queue:queue", "Show the pool and the jobs that share it, or set it."),
        "replay": LazyCommand("pliant.cli.commands.replay:replay", "Recompute steps of a job and compare the result."),
        "report": LazyCommand("pliant.cli.commands.report:report", "Show how the workers of a job spent their time."),
        "resize": LazyCommand(
            "pliant.cli.commands.control:resize", "Change the number of workers of a job, or their placement."
        ),
        "run": LazyCommand("pliant.cli.run.command:run", "Train SCRIPT elastically, with torchrun's command line."),
        "status": LazyCommand("pliant.cli.commands.status:status", "Show a job with its members and agents."),
        "submit": LazyCommand("pliant.cli.kube.submit:submit", "Submit a job to a Kubernetes cluster."),
        "token": LazyCommand("pliant.cli.coordinator.token:token", "Create, list, revoke and rotate tokens."),
        "train": LazyCommand("pliant.cli.modules.command:train", "Train a model module."),
        "verify": LazyCommand("pliant.cli.checkpoints.commands:verify", "Verify checkpoints against their hashes."),
        "wait": LazyCommand("pliant.cli.commands.wait:wait", "Wait until a job ends."),
        **{name: command for name, command in DEVELOPER_COMMANDS.items() if command.is_installed()},
    }
)


class LazyGroup(click.Group):
    """A click group that imports a command when it is called."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.lazy.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        try:
            return entry.load()
        except ModuleNotFoundError as missing:
            raise click.ClickException(f"`pliant {cmd_name}` cannot start: {missing}") from missing

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from pliant.cli.suggest import did_you_mean

        name = args[0]
        if name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        suggestion = did_you_mean(name, self.list_commands(ctx)) or " `pliant --help` lists all commands."
        raise click.UsageError(f"No such command {name!r}.{suggestion}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._short_help(ctx, name)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def _short_help(self, ctx: click.Context, name: str) -> str:
        entry = self.lazy.get(name)
        if entry is not None:
            return entry.short_help
        command = super().get_command(ctx, name)
        return "" if command is None else command.get_short_help_str()


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pliant")
def cli() -> None:
    """Elastic distributed training: workers come and go, training continues."""


INTERRUPTED = 130  # the exit status of a program ended by Ctrl-C


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its status."""
    try:
        status = cli.main(args=None if argv is None else list(argv), prog_name="pliant", standalone_mode=False)
    except PliantError as error:
        click.echo(f"pliant: {error.why}", err=True)
        sys.exit(error.exit_code)
    except click.NoSuchOption as error:
        _with_suggestion(error).show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _with_suggestion(error: click.NoSuchOption) -> click.UsageError:
    """Return the error with the options that the unknown one may stand for."""
    from pliant.cli.suggest import did_you_mean

    params = error.ctx.command.get_params(error.ctx) if error.ctx is not None else []
    names = [name for each in params if isinstance(each, click.Option) for name in (*each.opts, *each.secondary_opts)]
    given = error.option_name.replace("_", "-")
    return click.UsageError(f"No such option {error.option_name!r}.{did_you_mean(given, names)}", error.ctx)
