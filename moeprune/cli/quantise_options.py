"""Options that say how the weights of an export are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from moeprune.cli.options import Command
from moeprune.core.quantisation import MIXED, PARTS, SCHEMES, QuantOptions
from moeprune.errors import UsageError


def quantise_options(function: Command) -> Command:
    """``--quantize`` and what goes with it."""
    for option in (
        click.option(
            "--stats",
            type=click.Path(path_type=Path),
            metavar="STATS",
            help="With --quantize mixed: what calibrate measured of MODEL; it says which layers "
            "matter.",
        ),
        click.option(
            "--budget",
            metavar="SIZE",
            help="With --quantize mixed: the most that all files may take together, e.g. 18GB.",
        ),
        click.option(
            "--requantize",
            is_flag=True,
            help="With --quantize: take a source that is quantised already; its numbers are "
            "rounded a second time.",
        ),
        click.option(
            "--double-quant",
            is_flag=True,
            help="With --quantize nf4: quantise the scales too, which saves 0.37 bits a number.",
        ),
        click.option(
            "--group-size",
            type=click.IntRange(min=1),
            metavar="N",
            help="With --quantize: inputs that share a scale; of fp8, the side of a block. "
            "[default: as loaders expect it, or the next size that divides the weights]",
        ),
        click.option(
            "--also",
            metavar="PARTS",
            help=f"With --quantize: further parts, of {','.join(PARTS)}. [default: routed experts "
            "alone]",
        ),
        click.option(
            "--quantize",
            type=click.Choice((*SCHEMES, MIXED)),
            help="Store the weights of routed experts so: int8 and int4 in the layout of "
            "compressed-tensors, fp8 in DeepSeek's, nf4 in bitsandbytes'. Rounded to nearest, "
            "expert by expert, without calibration. mixed: int4, int8 or as it is, a scheme for "
            "every layer, with --budget and --stats, or as the plan says.",
        ),
    ):
        function = option(function)
    return function


def quantise_asked(
    quantize: str | None,
    *,
    also: str | None,
    group_size: int | None,
    double_quant: bool,
    requantize: bool,
) -> QuantOptions | None:
    """The options together; None: nothing is quantised.

    Raises:
        UsageError: an option that serves only with ``--quantize``, or does not go with its scheme.
    """
    given: dict[str, Any] = {
        "--also": also,
        "--group-size": group_size,
        "--double-quant": double_quant,
        "--requantize": requantize,
    }
    if quantize is None:
        for name, value in given.items():
            if value:
                raise UsageError(f"{name} says how --quantize is to be done; give that too.")
        return None
    parts = tuple(part.strip() for part in also.split(",")) if also is not None else ()
    return QuantOptions(
        scheme=quantize,
        also=tuple(part for part in PARTS if part in parts) if set(parts) <= set(PARTS) else parts,
        group_size=group_size,
        double_quant=double_quant,
        requantize=requantize,
    )
