"""What ``moeprune export`` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprune.cli.cost_text import cost_text
from moeprune.cli.quantised_text import quantised_text
from moeprune.cli.text import size

if TYPE_CHECKING:
    from moeprune.stages.prepared import PreparedExport

_MOST_FILES = 12
_MOST_LETTERS = 400


def export_text(prepared: PreparedExport) -> str:
    """After the folder was written."""
    least, most = min(prepared.kept), max(prepared.kept)
    counts = f"{most} experts in each MoE layer"
    padding = prepared.size.get("bytes_padding")
    if padding:
        counts += f", of which {least} to {most} are kept and the others are padding"
    elif least != most:
        counts = f"{least} to {most} experts in a MoE layer; loads with trust_remote_code=True"
    lines = [f"{prepared.output}: {counts}", *_routing(prepared)]
    lines += [*_layers(prepared), *quantised_text(prepared.quantised)]
    return "\n".join([*lines, *_size(prepared), *_warnings(prepared)])


def preview_text(prepared: PreparedExport) -> str:
    """Instead of writing it."""
    counts = prepared.counts()
    lines = [
        f"{prepared.output} would hold {counts['copy']:,} tensors as they are, "
        f"{counts['rename']:,} renumbered and {counts['slice']:,} sliced"
        f"{_more(counts['scale'], 'multiplied')}{_more(counts['pad'], 'padded')}"
        f"{_more(counts['remap'], 'with new expert ids')}"
        f"{_more(counts['quantise'], 'quantised')}; "
        f"{counts['remove']:,} would leave",
        *(f"config.json: {'.'.join(p)} = {_short(v)}" for p, v in prepared.config_changes.items()),
        *_routing(prepared),
        *_layers(prepared),
        *quantised_text(prepared.quantised),
        *_size(prepared),
    ]
    sizes = prepared.contents.sizes
    shards = [shard.name for shard in prepared.contents.shards]
    others = [name for name in sizes if name not in shards]
    lines += [f"  {name}  {size(sizes[name])}" for name in shards[:_MOST_FILES]]
    if len(shards) > _MOST_FILES:
        lines.append(f"  … and {len(shards) - _MOST_FILES} more weight files")
    lines.append(f"  and {len(others)} other files  {size(sum(sizes[n] for n in others))}")
    downloads, free = prepared.downloads, prepared.bytes_free
    if downloads:
        lines.append(
            f"{len(downloads)} of {len(prepared.index.files)} weight files to download, "
            f"{size(sum(downloads.values()))}; the largest takes {size(max(downloads.values()))} "
            "while it is cut"
        )
    room = "" if prepared.bytes_needed <= free else ": too little"
    lines.append(
        f"{size(prepared.contents.total_bytes)} to write, {size(free)} free on that disk{room}"
    )
    lines += _warnings(prepared)
    lines.append("nothing was written (--dry-run)")
    return "\n".join(lines)


def _routing(prepared: PreparedExport) -> list[str]:
    policy, gain = prepared.policy, prepared.gain
    if gain is not None:
        run = "1 expert runs" if gain.k1 == 1 else f"{gain.k1} experts run"
        if not gain.changes_weights:
            return [f"{run} per token in any runtime; no weight is changed"]
        least, most = min(gain.gains), max(gain.gains)
        return [
            f"{run} per token in any runtime; what experts give is multiplied by {least:.4g} to "
            f"{most:.4g}, a constant a layer, which stands for k2 = {gain.k2}"
        ]
    if policy is None:
        return []
    run = "1 expert runs" if policy.k1 == 1 else f"{policy.k1} experts run"
    how = f"{run} per token, weighed by the top {policy.k2}"
    if len(set(prepared.kept)) > 1 and "bytes_padding" not in prepared.size:
        return [how]  # it loads in no other way
    slower = ", and no faster" if prepared.token.routed < prepared.token.native.routed else ""
    return [
        f"{how}, with trust_remote_code=True or vLLM's plugin",
        f"  without them it routes as the model does{slower}",
    ]


def _short(value: object) -> str:
    """A value of config.json; of a long one the beginning."""
    text = str(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"


def _more(count: int, what: str) -> str:
    return f", and {count:,} {what}" if count else ""


def _layers(prepared: PreparedExport) -> list[str]:
    found = prepared.next_token
    if not found["tensors"]:
        return []
    what = {
        "prune": "cut like layer {ids_of_layer}" if "ids_of_layer" in found else "have no experts",
        "drop": "left out",
        "keep": "kept whole",
    }[found["mode"]].format_map(found)
    return [f"next-token layers ({found['tensors']:,} tensors): {what}"]


def _size(prepared: PreparedExport) -> list[str]:
    before, after = prepared.size["bytes_before"], prepared.size["bytes_after"]
    change = f"{abs(1 - after / before):.1%} {'less' if after <= before else 'more'}"
    lines = [f"size {size(before)} -> {size(after)} ({change})"]
    if "bytes_padding" in prepared.size:
        lines.append(f"{size(prepared.size['bytes_padding'])} of it is padding")
    planned = prepared.size.get("bytes_planned")
    if isinstance(planned, int):
        more = after - planned
        lines.append(f"{size(abs(more))} {'more' if more > 0 else 'less'} than the plan stated")
    return [*lines, *cost_text(prepared.token)]


def _warnings(prepared: PreparedExport) -> list[str]:
    return [f"warning: {warning}" for warning in prepared.warnings]
