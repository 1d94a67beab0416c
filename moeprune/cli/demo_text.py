"""The demo's table: methods × domains, the worst domain of each row marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprune.cli.text import table

if TYPE_CHECKING:
    from moeprune.stages.demo import DemoResult, Variant


def demo_text(result: DemoResult) -> str:
    """What ``moeprune demo`` prints."""
    domains = list(result.questions)
    rows = [["held-out questions right, %", *domains, "mean", "worst"]]
    ratio = 0.0
    for variant in result.variants:
        if variant.ratio != ratio:
            ratio = variant.ratio
            rows.append([f"{ratio:.0%} of experts removed", *[""] * (len(domains) + 2)])
        rows.append(_row(variant, domains))
    checked = [v.difference for v in result.variants if v.difference is not None]
    return (
        f"embedded model: router entropy {result.entropy_ratio:.1%} of its maximum "
        f"({result.regime})\n\n{table(rows)}\n\n"
        f"* the worst domain of the row; {sum(result.questions.values())} questions a row\n"
        f"every export verified byte by byte, and its logits equal to the masked model's "
        f"(largest difference {max(checked):.1e})\n"
        f"every artefact is in {result.output}: stats.safetensors, plans/, exports/, "
        "answers.jsonl, results.json"
    )


def _row(variant: Variant, domains: list[str]) -> list[str]:
    worst = variant.worst_domain
    cells = [
        f"{'*' if domain == worst else ''}{variant.accuracy[domain]:.1%}"[:-1] for domain in domains
    ]
    name = variant.name if variant.ratio == 0 else f"  {variant.name}"
    return [name, *cells, f"{variant.mean:.1%}"[:-1], f"{variant.accuracy[worst]:.1%}"[:-1]]
