"""``moeprune plan``."""

from __future__ import annotations

from pathlib import Path

import click

from moeprune import criteria, plugins
from moeprune.cli.options import json_option, output_option, say
from moeprune.core.methods import METHODS

# The names alone: no criterion is imported, nor numpy.
CRITERIA = plugins.names(criteria)


@click.command("plan")
@click.argument("stats", type=click.Path(path_type=Path), metavar="STATS")
@output_option("the plan (plan.json)")
@click.option("--method", default="mesa", show_default=True, help=f"One of: {', '.join(METHODS)}.")
@click.option(
    "--ratio",
    type=float,
    help="Share of routed experts to remove, e.g. 0.25; rounded down to whole experts.",
)
@click.option("--keep", type=int, metavar="N", help="Instead: experts to keep in each layer.")
@click.option(
    "--allocation",
    type=click.Choice(["uniform", "global"]),
    help="uniform: the same count in every layer, which any runtime loads; global: the lowest "
    "scores over all layers, exported with --per-layer or --pad. Default: the method's own, "
    "uniform.",
)
@click.option(
    "--criterion",
    help=f"What a ranking method ranks by, instead of its own. One of: {', '.join(CRITERIA)}.",
)
@click.option(
    "--signal",
    metavar="CRITERION",
    help="mesa: weigh what a domain loses by this criterion. [default: mass, the paper's]",
)
@click.option(
    "--multiple-of",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Keep a multiple of N experts in each layer (expert-parallel serving likes 8).",
)
@click.option(
    "--domain-weight",
    "domain_weights",
    multiple=True,
    metavar="NAME=W",
    help="Weight of a domain in pooled scores (default 1 each), or 'tokens' to pool plain tokens.",
)
@click.option("--seed", type=int, help="random: the seed. [default: 0]")
@click.option("--steps", type=click.IntRange(min=1), help="mesa: iterations T. [default: 20]")
@click.option("--boost", type=float, help="mesa: boost of the worst domain. [default: 0.15]")
@click.option(
    "--decay",
    type=click.Choice(["linear", "cosine", "constant"]),
    help="mesa: how the boost falls, to half of it. [default: linear]",
)
@click.option(
    "--target",
    type=click.Choice(["transformers", "vllm", "llama.cpp", "mlx", "any"]),
    help="Refuse what this runtime could not load: different counts per layer, too many experts. "
    "[default: not checked]",
)
@json_option
def command(stats: Path, output: Path, as_json: bool, **options: object) -> None:
    """Decide which experts leave, from STATS alone: no model, no GPU, seconds.

    Prints what each domain loses (share of its router mass in the removed experts), worst first.
    """
    from moeprune.cli.plan_text import parse_weights, plan_text
    from moeprune.stages.plan import plan

    options["domain_weights"] = parse_weights(options["domain_weights"])  # type: ignore[arg-type]
    made = plan(stats, output=output, **options)  # type: ignore[arg-type]
    say(made.to_json(), plan_text(made, output), as_json=as_json)
