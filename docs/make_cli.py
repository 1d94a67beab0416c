"""Write docs/cli.md from --help; with --check, exit 1 if the file is stale."""

import sys
from pathlib import Path

import click

from moeprune.cli.default_command import DefaultCommand
from moeprune.cli.main import cli

PAGE = Path(__file__).parent / "cli.md"


def page() -> str:
    """The Markdown of docs/cli.md."""
    context = click.Context(
        cli,
        info_name="moeprune",
        terminal_width=100,
        max_content_width=100,
        **cli.context_settings,
    )
    parts = [
        "# Command line",
        "Made from `--help` by `python docs/make_cli.py`.",
        f"```\n{cli.get_help(context)}\n```",
    ]
    commands = []
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        commands.append((name, command))
        if isinstance(command, DefaultCommand):
            commands += [(f"{name} {other}", command.other(other)) for other in command.others]
    for name, command in commands:
        inner = click.Context(
            command, info_name=name, parent=context, terminal_width=100, max_content_width=100
        )
        parts.append(f"## moeprune {name}\n\n```\n{command.get_help(inner)}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Write the page, or check it."""
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
