"""The demo's table: methods × domains, the worst domain of each row marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprune.cli.compare_cells import p_value
from moeprune.cli.text import table

if TYPE_CHECKING:
    from moeprune.stages.demo_result import DemoResult, Variant


def demo_text(result: DemoResult) -> str:
    """What ``moeprune demo`` prints."""
    domains = list(result.questions)
    rows = [["held-out questions right, %", "worst", *domains, "mean", "lost/won", "p"]]
    ratio = 0.0
    for variant in result.variants:
        if variant.ratio != ratio:
            ratio = variant.ratio
            rows.append([f"{ratio:.0%} of experts removed", *[""] * (len(domains) + 4)])
        rows.append(_row(variant, domains))
    checked = [v.difference for v in result.variants if v.difference is not None]
    return (
        f"embedded model: router entropy {result.entropy_ratio:.1%} of its maximum "
        f"({result.regime})\n\n{table(rows)}\n\n"
        f"* the worst domain of the row; {sum(result.questions.values())} questions a row\n"
        "lost/won: right in the unpruned model alone / here alone; p: exact McNemar, corrected by "
        "Holm over the rows\n"
        f"every export verified byte by byte, and its logits equal to the masked model's "
        f"(largest difference {max(checked):.1e})\n"
        f"every artefact is in {result.output}: stats.safetensors, plans/, exports/, "
        "held-out.toml, runs/, results.json\n"
        f"more of it: moeprune compare {result.output}/runs"
    )


def _row(variant: Variant, domains: list[str]) -> list[str]:
    worst = variant.worst_domain
    cells = [
        f"{'*' if domain == worst else ''}{variant.accuracy[domain]:.1%}"[:-1] for domain in domains
    ]
    name = variant.name if variant.ratio == 0 else f"  {variant.name}"
    paired = ["", ""]
    if variant.lost is not None:
        paired = [f"{variant.lost}/{variant.won}", p_value(variant.p)]
    least, mean = (f"{share:.1%}"[:-1] for share in (variant.accuracy[worst], variant.mean))
    return [name, least, *cells, mean, *paired]
