"""What the model card says of an export whose experts are stored in another way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from moeprune.hub.markdown import escape, size, table

_PARTS = {"expert": "routed experts", "attention": "attention", "shared": "shared experts"}
_MOST = 5


def quantised_title(quantisation: Mapping[str, Any]) -> str:
    """What follows the model's name."""
    return f"experts in {escape(quantisation['scheme'])}"


def quantised_section(quantisation: Mapping[str, Any] | None, notes: Sequence[str]) -> str:
    """What was quantised, and how far the numbers are from the source's; "" where nothing was.

    Args:
        quantisation: as moeprune.json has it; errors are in it once the weights are written.
        notes: one line each, of the export.
    """
    if quantisation is None:
        return ""
    told = "".join(f"\n\nNote: {escape(note)}" for note in notes)
    rows = [
        (
            _PARTS.get(part, "everything else"),
            f"{size(found['bytes_before'])} → {size(found['bytes_after'])}",
            f"{found['quantised']:,} of {found['parameters']:,}",
        )
        for part, found in quantisation["parts"].items()
    ]
    text = (
        f"## Quantisation\n\n{_stored(quantisation)}, rounded to nearest without calibration.\n\n"
        + table(("Part", "source → this model", "parameters of matrices quantised"), rows)
    )
    error = quantisation.get("error")
    if error is None:
        return text + told
    worst = ", ".join(
        f"layer {at['layer']} expert {at['expert']} ({at['relative']:.3g})"
        for at in error["worst"][:_MOST]
    )
    return (
        f"{text}\n\nRelative error of the routed experts' weights (Frobenius norm of the "
        f"difference over that of the source): {error['relative']:.3g}. Largest: {worst}. It says "
        "how far the numbers are, not what the model still can do: evaluate on your own task."
        + told
    )


def quantised_use(quantisation: Mapping[str, Any] | None) -> list[str]:
    """What loading such weights needs, a paragraph each."""
    if quantisation is None:
        return []
    code = quantisation.get("code", ())
    merged = "merging" in code
    if quantisation["scheme"] == "nf4" and merged:
        found = ["Experts are in bitsandbytes' 4 bits."]
    elif quantisation["scheme"] == "nf4":
        found = [
            "Experts are in bitsandbytes' 4 bits. transformers 4 reads them with bitsandbytes "
            "installed, and no code. transformers 5 reads them by the code of this folder, or "
            "without `trust_remote_code=True` after `import moeprune`; otherwise loading fails."
        ]
    elif quantisation["scheme"] == "fp8":
        found = [
            "transformers computes in 8 bits on GPUs that can; elsewhere it turns the experts into "
            "16-bit numbers when it loads them."
        ]
    elif len(set(quantisation.get("schemes", ()))) > 1:
        found = [
            "Layers are stored in different ways. transformers 5 reads them, with the package "
            "compressed-tensors, by the code of this folder, or without `trust_remote_code=True` "
            "after `import moeprune`; otherwise loading fails."
        ]
    else:
        found = [
            "transformers needs the package compressed-tensors to read the experts, and turns them "
            "into 16-bit numbers when it loads them: the file is small there, the memory is not. "
            "vLLM keeps them packed; its kernels want groups of 32, 64 or 128."
        ]
    if merged:
        found.append(
            "This family's experts are one tensor a layer in transformers, which has no words for "
            "single quantised ones: the code of this folder puts them together. Without "
            "`trust_remote_code=True` loading fails."
        )
    return found


def _stored(quantisation: Mapping[str, Any]) -> str:
    """In which schemes, in words."""
    if "schemes" not in quantisation:
        scheme, group = quantisation["scheme"], quantisation["group_size"]
        every = f"block of {group} × {group} numbers" if scheme == "fp8" else f"{group} inputs"
        return f"Stored as {escape(scheme)}, one scale for every {every}"
    each = []
    for scheme, count in sorted(Counter(quantisation["schemes"]).items()):
        group = quantisation["group_sizes"].get(scheme)
        told = "as the source has them" if group is None else f"{scheme} (groups of {group})"
        each.append(f"of {count} layer{'s' * (count > 1)} {told}")
    return f"Experts {', '.join(each)}"
