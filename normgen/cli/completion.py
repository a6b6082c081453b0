"""The command that prints a shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell: bash, zsh or fish.

    \b
    bash  eval "$(normgen completion bash)" in ~/.bashrc
    zsh   eval "$(normgen completion zsh)" in ~/.zshrc
    fish  normgen completion fish > ~/.config/fish/completions/normgen.fish
    """
    script = get_completion_class(shell)
    assert script is not None, "click completes these three"
    click.echo(script(context.find_root().command, {}, "normgen", "_NORMGEN_COMPLETE").source())
