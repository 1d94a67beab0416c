"""The ``moeprune`` command: loads a command's module only when it is used, shows errors once."""

from __future__ import annotations

import importlib
import sys

import click
from click.exceptions import NoArgsIsHelpError

import moeprune
from moeprune.cli.options import printable
from moeprune.errors import ElsewhereError, MoePruneError

COMMANDS = (
    "demo",
    "inspect",
    "calibrate",
    "merge",
    "plan",
    "analyse",
    "export",
    "verify",
    "tasks",
    "eval",
    "compare",
    "scan",
    "push",
)
_LONGEST = 1200  # characters of an error line; a file may quote megabytes at us


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, but on a narrow terminal a line is wrapped, not cut off."""
        commands = ((name, self.get_command(ctx, name)) for name in COMMANDS)
        rows = [(name, found.get_short_help_str(limit=200)) for name, found in commands if found]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

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
      moeprune eval MODEL -o runs --tasks questions.jsonl --variants variants.toml
      moeprune compare runs
      moeprune export MODEL -o OUT --plan plan.json
      moeprune verify OUT --source MODEL

    \b
    Fewer experts per token, without removing any:
      moeprune scan MODEL -o scan --tasks questions.jsonl
      moeprune export MODEL -o OUT --k1 4 --k2 16

    MODEL is a local folder or a Hub id (org/name). Results go to stdout, progress to stderr.
    """  # noqa: D301 - click reads the \b escape


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 done, 1 a check failed, 2 wrong input)."""
    try:
        result = cli.main(args=args, prog_name="moeprune", standalone_mode=False)
    except ElsewhereError as error:
        return error.exit_code
    except MoePruneError as error:
        return _fail(str(error), error.exit_code)
    except click.Abort:
        return _fail("interrupted.", 130)
    except NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        if not _speaks():
            return error.exit_code
        context = error.ctx if isinstance(error, click.UsageError) else None
        way_out = f" See '{context.command_path} --help'." if context else ""
        return _fail(error.format_message() + way_out, error.exit_code)
    except OSError as problem:  # a path that cannot be, a folder without permission, a full disk
        what = f"{problem.filename}: " if problem.filename is not None else ""
        return _fail(f"{what}{problem.strerror or problem}.", 2)
    return result if isinstance(result, int) else 0


def _speaks() -> bool:
    """Whether this is the process of a launch that says what all of them find."""
    from moeprune.observe.launch import launched

    try:
        return launched().speaks
    except MoePruneError:  # said when it matters
        return True


def _fail(message: str, code: int) -> int:
    """Say what went wrong in one line of bounded length, and return the exit code."""
    line = printable(" ".join(message.split()))
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"
    click.echo(f"moeprune: {line}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
