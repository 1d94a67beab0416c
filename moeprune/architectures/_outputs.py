"""The linear maps from which routed experts' outputs come: where a factor of all of them can go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from moeprune.architectures._match import block_path
from moeprune.core.layout import ExpertTensor, MoeLayout, TensorInfo
from moeprune.errors import UnsupportedModelError

_OUTPUT = re.compile(r"(?P<map>.+\.(?:down_proj|w2|fc2|output_linear))(?:[._](?P<part>.+))?")
_EXPERT = re.compile(r".+\bexperts\.[0-9]+(?=\.)")
_CONTAINER = re.compile(r"(?P<container>.+\bexperts)\..+")


@dataclass(frozen=True, slots=True)
class OutputMap:
    """The last linear map of one expert, or of all experts of a layer.

    Attributes:
        name: of the map, without what a stored format puts behind it.
        row: the MoE layer, as an index into ``MoeLayout.layer_ids``.
        parts: what follows the name (``weight``, ``bias``, ``weight_scale``, …; ``""`` for nothing)
            -> stored tensor.
    """

    name: str
    row: int
    parts: Mapping[str, str]


def output_maps(layout: MoeLayout, tensors: Mapping[str, TensorInfo]) -> list[OutputMap]:
    """Every map whose output is what the router weighs, in the order of ``tensors``.

    Multiplied by a factor, these maps do what a router does whose weights are multiplied by it.

    Args:
        layout: of the checkpoint; of rules whose tensors are not in ``tensors`` nothing is asked.
        tensors: all tensors of the checkpoint that stay.

    Raises:
        UnsupportedModelError: which tensors of an expert make its output cannot be told.
    """
    rows = _apart(layout, tensors) if layout.routed_output else _of_experts(layout, tensors)
    found: dict[str, dict[str, str]] = {name: {} for name in rows}
    for name in tensors:
        match = _OUTPUT.fullmatch(name)
        stem, part = (match["map"], match["part"] or "") if match else ("", "")
        if stem not in rows:
            stem, _, part = name.rpartition(".")
        if stem in rows:
            found[stem][part] = name
    return [OutputMap(name, rows[name], parts) for name, parts in found.items()]


def _of_experts(layout: MoeLayout, tensors: Mapping[str, TensorInfo]) -> dict[str, int]:
    """Name of each expert's output map -> its row."""
    rows: dict[str, int] = {}
    owners: dict[str, str] = {}  # one that has no map yet -> one of its tensors
    mapped: set[str] = set()
    for name, rule in layout.tensors.items():
        if rule.role != "expert" or name not in tensors:
            continue
        owner = _owner(name, rule)
        match = _OUTPUT.fullmatch(name)
        if match is None:
            owners.setdefault(owner, name)
        else:
            rows.setdefault(match["map"], rule.row)
            mapped.add(owner)
    lacking = next((name for owner, name in owners.items() if owner not in mapped), None)
    if lacking is not None:
        raise UnsupportedModelError(
            f"{lacking!r}: no tensor of this expert is named as one that makes its output "
            "(down_proj, w2, fc2, output_linear), so a gain has no place to go. Use --k1 and --k2 "
            "without --fold-gain."
        )
    return rows


def _owner(name: str, rule: ExpertTensor) -> str:
    found = _EXPERT.match(name) if rule.expert is not None else None
    return found[0] if found else f"layer {rule.row}, {'next token' if rule.follows else 'main'}"


def _apart(layout: MoeLayout, tensors: Mapping[str, TensorInfo]) -> dict[str, int]:
    """Of a family whose experts' outputs are normalised: the map that takes their sum."""
    rows: dict[str, int] = {}
    for name, rule in layout.tensors.items():
        match = _CONTAINER.fullmatch(name)
        if rule.role != "expert" or name not in tensors or match is None:
            continue
        stem = f"{block_path(match['container'])}.{layout.routed_output}"
        if f"{stem}.weight" not in tensors:
            raise UnsupportedModelError(
                f"{layout.model_type} normalises what experts give, and there is no {stem}.weight "
                "that could take a gain. Use --k1 and --k2 without --fold-gain."
            )
        rows[stem] = rule.row
    return rows
