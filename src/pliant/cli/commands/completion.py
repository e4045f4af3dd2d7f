"""`pliant completion`: the script a shell needs to complete our commands, options and jobs' names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes a shell complete our commands.

    \b
    bash:  pliant completion bash > ~/.local/share/bash-completion/completions/pliant
    zsh:   pliant completion zsh > "${fpath[1]}/_pliant"
    fish:  pliant completion fish > ~/.config/fish/completions/pliant.fish
    """
    script = get_completion_class(shell)
    assert script is not None  # the three that click knows
    click.echo(script(ctx.find_root().command, {}, "pliant", "_PLIANT_COMPLETE").source())
