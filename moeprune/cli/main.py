"""The ``moeprune`` command: loads a command's module only when it is used, shows errors once."""

from __future__ import annotations

import importlib
import sys

import click

import moeprune
from moeprune.errors import MoePruneError

COMMANDS = ("demo", "inspect", "calibrate", "merge", "plan", "export", "verify", "push")


class LazyGroup(click.Group):
    """A group whose commands are modules of this folder, imported when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"moeprune.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name is answered with the nearest one."""
        from moeprune.plugins import known

        if args and not args[0].startswith("-"):
            known(args[0], COMMANDS, kind="command")
        return super().resolve_command(ctx, args)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(moeprune.__version__, prog_name="moeprune")
def cli() -> None:
    """Prune whole experts from Mixture-of-Experts models into standalone checkpoints.

    \b
    The usual way:
      moeprune inspect MODEL
      moeprune calibrate MODEL -o stats.safetensors
      moeprune plan stats.safetensors -o plan.json --method mesa --ratio 0.25
      moeprune export MODEL -o OUT --plan plan.json
      moeprune verify OUT --source MODEL

    MODEL is a local folder or a Hub id (org/name). Results go to stdout, progress to stderr.
    """  # noqa: D301 - click reads the \b escape


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 done, 1 a check failed, 2 wrong input)."""
    try:
        result = cli.main(args=args, prog_name="moeprune", standalone_mode=False)
    except MoePruneError as error:
        click.echo(f"moeprune: {' '.join(str(error).split())}", err=True)
        return error.exit_code
    except click.Abort:
        click.echo("moeprune: interrupted.", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
