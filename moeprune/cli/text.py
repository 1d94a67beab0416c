"""How results read on a terminal. No torch, no numpy arithmetic: words only."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.core.completions import completion_warnings, completions_of
from moeprune.core.unseen import reached
from moeprune.errors import UsageError

if TYPE_CHECKING:
    from moeprune.core.stats import CalibrationStats, DomainStats

_NAMED = 8  # shards that a line names


def parse_shard(text: str) -> tuple[int, int]:
    """``"2/8"`` to ``(2, 8)``.

    Raises:
        UsageError: not of that form, or the index is outside.
    """
    index, slash, of = text.partition("/")
    if slash and re.fullmatch("[0-9]{1,9}/[0-9]{1,9}", text) and int(index) < int(of):
        return int(index), int(of)
    raise UsageError(f"--shard {text!r} is not I/N with 0 <= I < N, e.g. 0/4.")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as aligned columns: the first column left, the others right."""
    widths = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        gaps = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        first, *others = (
            cell + gap if not at else gap + cell
            for at, (cell, gap) in enumerate(zip(row, gaps, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    return "\n".join(lines)


def _width(cell: str) -> int:
    """Columns of a terminal: two for a letter of Chinese or Japanese, none for an accent."""
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in cell
    )


def size(num_bytes: int) -> str:
    """Bytes in the largest decimal unit that leaves at least 1."""
    value = float(num_bytes)
    for name in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if name == "B" else f"{value:.2f} {name}"
        value /= 1000
    return f"{value:.2f} TB"


def stats_json(stats: CalibrationStats, path: Path) -> dict[str, Any]:
    """What calibrate and merge print for machines."""
    return {
        "output": str(path),
        "model": stats.model.to_json(),
        "domains": {
            domain.name: {
                "documents": domain.documents,
                "tokens": domain.num_tokens(),
                "duplicates": domain.duplicates,
                **({} if domain.read is None else {"read": domain.read}),
                **_loss_json(domain),
            }
            for domain in stats.domains
        },
        **reached(stats.model, stats.domains),
        **({"stable": stable} if (stable := stats.provenance.get("stable")) else {}),
        **_completions_json(stats.provenance),
    }


def _loss_json(domain: DomainStats) -> dict[str, Any]:
    """The loss of a domain, where it was measured: nats of a target token."""
    if not domain.has_loss:
        return {}
    return {"loss": {"tokens": int(domain.total("loss_tokens")), "mean": domain.mean_loss()}}


def stats_text(stats: CalibrationStats, path: Path) -> str:
    """What calibrate and merge print for people."""
    model = stats.model
    rows = [["domain", "documents", "tokens"]]
    rows += [[d.name, _documents(d), f"{d.num_tokens():,}"] for d in stats.domains]
    if stats.has_loss:
        rows[0] += ["targets", "loss/target"]
        for row, domain in zip(rows[1:], stats.domains, strict=True):
            mean = domain.mean_loss()
            row += [f"{int(domain.total('loss_tokens')):,}", "-" if mean is None else f"{mean:.4f}"]
    return (
        f"{model.name}: {model.model_type}, {model.num_layers} MoE layers x {model.width} experts, "
        f"top-{model.top_k}\n{table(rows)}\n{_duplicates(stats)}{_reached(stats)}"
        f"{_completions_text(stats.provenance)}written to {path}"
    )


def missing_text(missing: Mapping[str, Sequence[str]]) -> str:
    """One line on the shards that a merge lacks, by domain."""
    lacks = [
        f"{name} lacks shard{'s' * (len(shards) > 1)} {', '.join(shards[:_NAMED])}"
        + (f" and {len(shards) - _NAMED:,} more" if len(shards) > _NAMED else "")
        for name, shards in missing.items()
    ]
    return f"not whole: {'; '.join(lacks)}. Merge them too, or plans are made without them."


def _completions_json(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Lengths of what the model wrote; nothing of stats made in prefill."""
    found = completions_of(provenance)
    if not found:
        return {}
    return {
        "completions": {
            name: {
                "number": one.number,
                "p50": one.percentile(50),
                "p99": one.percentile(99),
                "max": one.percentile(100),
                "cut": one.cut,
                "cut_share": one.cut_share,
            }
            for name, one in found.items()
        },
        "warnings": list(completion_warnings(provenance)),
    }


def _completions_text(provenance: Mapping[str, Any]) -> str:
    """The same for people."""
    found = completions_of(provenance)
    if not found:
        return ""
    rows = [["completions, tokens", "number", "p50", "p99", "max", "cut"]]
    rows += [
        [
            name,
            f"{one.number:,}",
            *(f"{one.percentile(percent):,}" for percent in (50, 99, 100)),
            f"{one.cut_share:.1%}",
        ]
        for name, one in found.items()
    ]
    lines = [table(rows), *(f"warning: {line}" for line in completion_warnings(provenance))]
    return "\n".join(lines) + "\n"


def _duplicates(stats: CalibrationStats) -> str:
    """A line on documents that were left out, where there were any."""
    dropped = [f"{d.name} {d.duplicates:,}" for d in stats.domains if d.duplicates]
    return f"left out as exact duplicates: {', '.join(dropped)}\n" if dropped else ""


def _reached(stats: CalibrationStats) -> str:
    """How far the text reached, and how stable plans are, where that was looked at."""
    found = reached(stats.model, stats.domains)
    per, total = found["tokens_per_expert"], sum(stats.model.num_experts)
    line = (
        f"tokens an expert received: {per['least']:,} at least, {per['median']:,} in the median; "
        f"experts that no token reached: {found['unseen']:,} of {total:,}\n"
    )
    curve = stats.provenance.get("stable", {}).get("curve", [])
    if not curve:
        return line
    rows = [["documents", "tokens", "plan", "halves agree", "unseen"]]
    rows += [
        [
            f"{at['documents']:,}",
            f"{at['tokens']:,}",
            at["method"],
            "-" if (agree := at["agree"][at["method"]]) is None else f"{agree:.1%}",
            f"{at['unseen']:,}",
        ]
        for at in curve
    ]
    asked = stats.provenance["stable"]["asked"]
    end = "enough" if curve[-1]["enough"] else "all of the text was read, and is not enough"
    return f"{line}{table(rows)}\nplans to agree on {asked:.1%}: {end}\n"


def _documents(domain: DomainStats) -> str:
    """How many documents of a domain were measured; of how many, where shards are missing."""
    whole = domain.documents
    # Shards never overlap (merge sees to it), so their sizes add up.
    measured = sum(len(range(index, whole, of)) for index, of in domain.shards)
    measured = measured if domain.read is None else domain.read
    return f"{whole:,}" if measured == whole else f"{measured:,} of {whole:,}"
