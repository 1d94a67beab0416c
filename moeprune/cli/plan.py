"""``moeprune plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from moeprune import criteria, plugins
from moeprune.cli.default_command import DefaultCommand
from moeprune.cli.options import json_option, output_option, say
from moeprune.cli.search_options import SEARCH, search_options
from moeprune.core.methods import METHODS

# The names alone: no criterion is imported, nor numpy.
CRITERIA = plugins.names(criteria)
CONSTRAINTS = (
    "multiple_of",
    "keep_layers",
    "layer_keep",
    "protect_super_experts",
    "must_keep",
    "target",
)
SCHEMES = ("quantize", "budget", "weights")
OF_ONE_METHOD = ("signal", "seed", "steps", "boost", "decay", "gap", "time_limit")


@click.command(
    "plan",
    cls=DefaultCommand,
    others={"show": "moeprune.cli.plan_show", "diff": "moeprune.cli.plan_diff"},
    tables={"Methods": {name: METHODS[name].about for name in METHODS}},
    sections={
        "Constraints": CONSTRAINTS,
        "Schemes of quantisation": SCHEMES,
        "Options of one method": OF_ONE_METHOD,
        "Options of evoesap": SEARCH,
    },
)
@click.argument("stats", type=click.Path(path_type=Path), metavar="STATS")
@output_option("the plan (plan.json)")
@click.option("--method", default="auto", show_default=True, help="One of the methods above.")
@click.option(
    "--ratio",
    "ratios",
    metavar="R[,R…]",
    help="Share of routed experts to remove, e.g. 0.25; rounded down to whole experts. Several, as "
    "in 0.125,0.25,0.5, make a plan each: then -o is a name with {ratio} in it, or a folder "
    "(plan-R.json in it); all are made before the first is written.",
)
@click.option("--keep", type=int, metavar="N", help="Instead: experts to keep in each layer.")
@click.option(
    "--max-bytes",
    metavar="SIZE",
    help="Instead: the largest model of at most SIZE, e.g. 40GB or 37GiB (what export --pad fills "
    "up comes on top).",
)
@click.option(
    "--allocation",
    type=click.Choice(["uniform", "global"]),
    help="uniform: the same count in every layer, which any runtime loads; global: the lowest "
    "scores over all layers, exported with --per-layer or --pad. Default: the method's own, "
    "uniform; of best: global where the --target loads it.",
)
@click.option(
    "--criterion",
    help=f"What a ranking method ranks by, instead of its own. One of: {', '.join(CRITERIA)}.",
)
@click.option(
    "--signal",
    metavar="CRITERION",
    help="best, mesa, mesa-exact: weigh what a domain loses by this criterion. [default: "
    "fisher-cf of best, else mass, the paper's]",
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
    "--keep-layers",
    metavar="I[,I…]",
    help="Never prune these layers: ids as inspect shows them; -1 is the last MoE layer, -2 the "
    "one before. --ratio and --keep then speak of the other layers. Export needs --per-layer or "
    "--pad.",
)
@click.option(
    "--layer-keep",
    multiple=True,
    metavar="I=N",
    help="Layer I keeps N experts, whatever --ratio says of the others. May be given several "
    "times.",
)
@click.option(
    "--protect-super-experts",
    is_flag=True,
    help="Never remove the few experts with outputs so large that models fall apart without them "
    "(REAP's rule).",
)
@click.option(
    "--must-keep",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='Never remove the experts that a JSON file names: {"3": [0, 17], "5": [2]}, layer to '
    "expert ids.",
)
@click.option(
    "--domain-weight",
    "domain_weights",
    multiple=True,
    metavar="NAME=W",
    help="Weight of a domain in pooled scores (default 1 each; 0 leaves it out, and nothing "
    "protects it), or 'tokens' to pool plain tokens.",
)
@click.option("--seed", type=int, help="random, evoesap: the seed. [default: 0]")
@click.option("--steps", type=click.IntRange(min=1), help="mesa: iterations T. [default: 20]")
@click.option("--boost", type=float, help="mesa: boost of the worst domain. [default: 0.15]")
@click.option(
    "--decay",
    type=click.Choice(["linear", "cosine", "constant"]),
    help="mesa: how the boost falls, to half of it. [default: linear]",
)
@click.option(
    "--gap",
    type=float,
    help="best, mesa-exact: relative distance to the least worst-domain loss that is near enough. "
    "[default: 0.0001]",
)
@click.option(
    "--time-limit",
    type=float,
    metavar="SECONDS",
    help="best, mesa-exact: when to take the best plan so far; 0 = no solver, but good plans and a "
    "proof all the same. [default: 60]",
)
@click.option(
    "--target",
    type=click.Choice(["transformers", "vllm", "llama.cpp", "mlx", "any"]),
    help="Refuse what this runtime could not load: different counts per layer, too many experts. "
    "[default: not checked]",
)
@click.option(
    "--quantize",
    metavar="mixed",
    help="Choose a scheme for every layer too (int4, int8 or as it is), in which export stores its "
    "experts: least sum of worth x relative error of weights. Alone, no expert leaves; with "
    "--max-bytes, how many leave is part of the choice.",
)
@click.option(
    "--budget",
    metavar="SIZE",
    help="With --quantize: the most that all files of the export may take, e.g. 18GB. With "
    "--max-bytes instead, that is the most.",
)
@click.option(
    "--weights",
    metavar="MODEL",
    help="With --quantize: the model of the stats, whose weights are read and compared.",
)
@search_options
@json_option
def command(stats: Path, output: Path, as_json: bool, **options: Any) -> None:
    """Decide which experts leave, from STATS alone: no model, no GPU, seconds.

    evoesap alone runs the model (--model) and takes longer; interrupted, the same command goes on.
    --quantize reads its weights, without running it.

    Prints what each domain loses (share of its router mass in the removed experts), worst first.
    """
    from moeprune.cli.plan_text import parse_weights, plan_text
    from moeprune.cli.plan_values import parse_layer_keep, parse_layers, parse_ratios
    from moeprune.cli.plans_text import plans_text
    from moeprune.cli.progress import progress
    from moeprune.stages.plan import plan
    from moeprune.stages.plans import paths_for, plans

    options["domain_weights"] = parse_weights(options["domain_weights"])
    options["keep_layers"] = parse_layers(options["keep_layers"])
    options["layer_keep"] = parse_layer_keep(options["layer_keep"])
    ratios = parse_ratios(options.pop("ratios"))
    paths = paths_for(output, ratios)
    if len(ratios) > 1:
        with progress() as report:
            several = plans(stats, ratios=ratios, output=output, on_progress=report, **options)
        result = [
            {"output": str(path), "plan": made.to_json()}
            for path, made in zip(paths, several, strict=True)
        ]
        say(result, plans_text(several, paths), as_json=as_json)
        return
    ratio = ratios[0] if ratios else None
    with progress() as report:
        made = plan(stats, output=paths[0], ratio=ratio, on_progress=report, **options)
    say(made.to_json(), plan_text(made, f"written to {paths[0]}"), as_json=as_json)
