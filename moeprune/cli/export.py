"""``moeprune export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from moeprune.cli.options import (
    json_option,
    model_argument,
    output_option,
    revision_option,
    say,
)
from moeprune.cli.policy_options import policy_options
from moeprune.cli.progress import progress
from moeprune.cli.quantise_options import quantise_asked, quantise_options


@click.command("export")
@model_argument
@output_option("the pruned checkpoint", metavar="FOLDER")
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The plan: which experts stay. [default: all]",
)
@policy_options
@click.option(
    "--fold-gain",
    type=click.Path(path_type=Path),
    metavar="STATS",
    help="With --k1 and --k2, for runtimes without code: write a plain checkpoint that runs k1 "
    "experts, and multiply what the experts of each layer give by the mean gain that STATS (of "
    "this model) tell, which stands for k2. An approximation.",
)
@click.option(
    "--mtp",
    type=click.Choice(["prune", "drop", "keep"]),
    default="prune",
    show_default=True,
    help="Next-token-prediction layers: prune cuts their experts to the ids of the last MoE layer; "
    "drop leaves the layers out; keep leaves them whole, which only loaders that ignore them can "
    "read.",
)
@click.option(
    "--shard-size",
    metavar="SIZE",
    help="Cut the weight files anew, to at most SIZE each, e.g. 5GB. [default: as in MODEL]",
)
@click.option(
    "--per-layer",
    is_flag=True,
    help="Layers keep different numbers of experts (plan --allocation global, --keep-layers): "
    "write them so, with the code that loads them. transformers needs trust_remote_code=True; no "
    "other runtime reads it.",
)
@click.option(
    "--pad",
    is_flag=True,
    help="Instead: fill every layer up to the widest one with experts that no token can choose. "
    "Any runtime loads it; exact only where the router has a bias, else refused.",
)
@quantise_options
@click.option(
    "--dry-run",
    is_flag=True,
    help="Write nothing: print what would change and how large it is (with --json: every tensor).",
)
@click.option(
    "--stream",
    is_flag=True,
    help="Of a Hub model, download only the weight files that are needed, one by one, and remove "
    "each when it was cut: needs room for the result and the largest of them.",
)
@revision_option
@json_option
def command(
    model: str,
    output: Path,
    plan: Path | None,
    k1: int | None,
    k2: int | str | None,
    fold_gain: Path | None,
    mtp: str,
    shard_size: str | None,
    per_layer: bool,
    pad: bool,
    quantize: str | None,
    also: str | None,
    group_size: int | None,
    double_quant: bool,
    requantize: bool,
    budget: str | None,
    stats: Path | None,
    dry_run: bool,
    stream: bool,
    revision: str | None,
    as_json: bool,
) -> None:
    """Write MODEL without the experts that the plan removes, with other k₁ and k₂, or quantised.

    Copies byte ranges at the speed of the disk: nothing is loaded, cast or re-serialised. What is
    quantised is read, written and compared one weight at a time. The folder appears under its name
    only when it is complete.

    With --k1 and --k2, the folder carries the code that routes so, for transformers with
    trust_remote_code=True; whoever does not run it has the model's own routing.
    """
    from moeprune.cli.export_text import export_text, preview_text
    from moeprune.core.plan import PrunePlan
    from moeprune.stages.budgeted import budgeted
    from moeprune.stages.export import source_of, write
    from moeprune.stages.preparing import prepare

    options: dict[str, Any] = {
        "k1": k1,
        "k2": k2,
        "fold_gain": fold_gain,
        "revision": revision,
        "mtp": mtp,
        "shard_size": shard_size,
        "per_layer": per_layer,
        "pad": pad,
        "quantize": quantise_asked(
            quantize,
            also=also,
            group_size=group_size,
            double_quant=double_quant,
            requantize=requantize,
        ),
    }
    made = None if plan is None else PrunePlan.load(plan)  # once: it may come through a pipe
    with progress() as report:
        made = budgeted(
            model, made, budget=budget, stats=stats, stream=stream, on_progress=report, **options
        )
    with source_of(
        model, output=output, revision=revision, stream=stream, write=not dry_run
    ) as source:
        prepared = prepare(model, plan=made, output=output, source=source, **options)
        if dry_run:
            say(prepared.to_json(), preview_text(prepared), as_json=as_json)
            return
        with progress() as on_progress:
            folder = write(prepared, on_progress=on_progress)
    kept = prepared.kept
    result = {
        "output": str(folder),
        "num_experts": kept[0] if len(set(kept)) == 1 else list(kept),
        "method": None if made is None else made.method,
        **({} if prepared.policy is None else {"policy": prepared.policy.to_json()}),
        **({} if prepared.gain is None else {"folded_gain": prepared.gain.to_json()}),
        **({} if prepared.quantised is None else {"quantisation": prepared.quantised.to_json()}),
        "size": dict(prepared.size),
        "token": prepared.token.to_json(),
        "next_token_layers": dict(prepared.next_token),
        "warnings": list(prepared.warnings),
    }
    say(result, export_text(prepared), as_json=as_json)
