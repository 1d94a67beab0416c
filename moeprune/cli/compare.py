"""``moeprune compare``."""

from __future__ import annotations

import click

from moeprune.cli.options import json_option, say
from moeprune.errors import UsageError, VerificationError


@click.command("compare")
@click.argument("base", metavar="BASE")
@click.argument("variants", nargs=-1, metavar="[VARIANT]...")
@click.option(
    "--tasks",
    metavar="NAME,…",
    multiple=True,
    help="Compare these tasks. [default: all that are shared]",
)
@click.option(
    "--metric",
    metavar="[TASK=]NAME",
    multiple=True,
    help="Compare by this metric, e.g. acc_norm. [default: right or wrong]",
)
@click.option("--level", type=float, default=0.95, show_default=True, help="Of the intervals.")
@click.option(
    "--cluster",
    metavar="GROUP=TASK,…",
    multiple=True,
    help="One of two groups of tasks to trade off, e.g. reasoning=gsm8k,aime. [default: found in "
    "the figures, of 3 variants and 3 tasks]",
)
@click.option(
    "--fail-on-regression",
    metavar="POINTS",
    type=float,
    help="Exit with 1 where a variant lost more points of accuracy than this.",
)
@click.option(
    "--regression-by",
    type=click.Choice(["task", "domain", "overall"]),
    default="task",
    show_default=True,
    help="Where to look for that: every task, every domain, or all questions together.",
)
@click.option(
    "--significant",
    is_flag=True,
    help="With --fail-on-regression: count a loss only where its p, corrected by Holm, is below 1 "
    "- level.",
)
@click.option("--all-domains", is_flag=True, help="Show every domain, not the 12 worst.")
@click.option("--by-seed", is_flag=True, help="Show every seed too.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for a model card or a comment.")
@json_option
def command(
    base: str,
    variants: tuple[str, ...],
    tasks: tuple[str, ...],
    metric: tuple[str, ...],
    level: float,
    cluster: tuple[str, ...],
    fail_on_regression: float | None,
    regression_by: str,
    significant: bool,
    all_domains: bool,
    by_seed: bool,
    markdown: bool,
    as_json: bool,
) -> None:
    """Compare VARIANTs with BASE, question by question: no model, seconds.

    Each is a run folder of 'moeprune eval' or what 'lm_eval --log_samples' wrote; NAME=PATH gives
    it another name. A folder of runs stands for all of them, and alone is compared with the one of
    the model as it is. Questions must have been asked in the same way.

    Shown are the worst domain of each variant, both numbers of flips, exact McNemar p-values and
    Holm's correction, paired intervals, truncation, and perplexity beside accuracy.
    """
    from moeprune.cli.compare_text import (
        comparison_markdown,
        comparison_text,
        regression_text,
    )
    from moeprune.stages.compare import compare

    if markdown and as_json:
        raise UsageError("--markdown and --json are two forms of one result; give one.")
    if fail_on_regression is None and (significant or regression_by != "task"):
        option = "--significant" if significant else "--regression-by"
        raise UsageError(f"{option} belongs to --fail-on-regression; give that too.")
    found = compare(
        base,
        variants,
        metric=metric,
        tasks=_parted(tasks) if tasks else None,
        level=level,
        fail_on_regression=fail_on_regression,
        regression_by=regression_by,
        significant=significant,
        clusters=_clusters(cluster),
    )
    shown = comparison_markdown if markdown else comparison_text
    text = "" if as_json else shown(found, all_domains=all_domains, by_seed=by_seed)
    say(found.to_json() if as_json else None, text, as_json=as_json)
    if found.regressions and found.limit is not None:
        raise VerificationError(regression_text(found.regressions, found.limit.points))


def _parted(values: tuple[str, ...]) -> list[str]:
    return [name for value in values for name in value.split(",") if name]


def _clusters(values: tuple[str, ...]) -> dict[str, list[str]] | None:
    found: dict[str, list[str]] = {}
    for value in values:
        name, equals, tasks = value.partition("=")
        if not name or not equals or not tasks:
            raise UsageError(f"--cluster {value!r} is not GROUP=TASK,…, e.g. reasoning=gsm8k,aime.")
        if name in found:
            raise UsageError(f"--cluster names the group {name!r} twice; name each once.")
        found[name] = _parted((tasks,))
    return found or None
