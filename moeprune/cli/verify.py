"""``moeprune verify``."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from moeprune.cli.options import (
    device_option,
    dtype_option,
    json_option,
    revision_option,
    say,
    trust_option,
)
from moeprune.cli.progress import progress
from moeprune.errors import UsageError


@click.command("verify")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@click.option("--source", required=True, metavar="MODEL", help="What OUT was exported from.")
@click.option(
    "--forward",
    is_flag=True,
    help="Also run both models: the logits of OUT must equal the source's with the removed "
    "experts masked, and k1 and k2 applied. --tolerance, --dtype, --device and "
    "--trust-remote-code are for it.",
)
@click.option(
    "--tolerance",
    type=float,
    help="Largest logit difference, relative to the largest logit where that exceeds 1. "
    "[default: 1e-05, or five times what rounding alone does to this model where that is more]",
)
@dtype_option("float32")
@device_option
@revision_option
@trust_option
@json_option
@click.pass_context
def command(ctx: click.Context, /, out: Path, source: str, as_json: bool, **options: object) -> int:
    """Check an exported folder against its source: every tensor, every kept byte.

    Exit code 1 if a check fails.
    """
    from moeprune.stages.verify import verify

    if not options["forward"]:
        for name in ("tolerance", "dtype", "device", "trust_remote_code"):
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                option = name.replace("_", "-")
                raise UsageError(f"--{option} is for --forward. Add --forward, or leave it out.")
    with progress() as on_progress:
        report = verify(out, source=source, on_progress=on_progress, **options)  # type: ignore[arg-type]
    say(report.to_json(), report.to_text(), as_json=as_json)
    return 0 if report.ok else 1
