"""`pliant completion`: print the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  pliant completion bash > ~/.local/share/bash-completion/completions/pliant
    zsh:   pliant completion zsh > "${fpath[1]}/_pliant"
    fish:  pliant completion fish > ~/.config/fish/completions/pliant.fish
    """
    script = get_completion_class(shell)
    assert script is not None  # click supports all three
    click.echo(script(ctx.find_root().command, {}, "pliant", "_PLIANT_COMPLETE").source())
