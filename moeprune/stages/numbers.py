"""A quantised model runs on the numbers that its files mean: compared, before anything is measured.

A loader that leaves a scale out goes on with codes in place of weights, hundreds of times too
large, and nothing fails. So a few experts are read here from their bytes, apart from any loader,
and must have the size that they have in memory. The sum of squares does not depend on how a loader
stacks, transposes or interleaves them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.reader import chunks
from moeprune.core.layout import ExpertTensor, MoeLayout, TensorInfo
from moeprune.errors import CheckpointError
from moeprune.quant import Raw, StoredFormat, plain_weight, stored_format

_LAYERS = 4  # read from all of a model's: a format is one for all of them, or refused before
_TOLERANCE = 0.02  # bfloat16 rounds each weight by less than 0.4 %


def check_numbers(index: CheckpointIndex, layout: MoeLayout, live: Any) -> None:
    """Compare experts in memory with what their stored bytes mean.

    Args:
        index: the checkpoint.
        layout: of it.
        live: the loaded model.

    Raises:
        CheckpointError: they differ in size.
    """
    stored = stored_format(index.config)
    if stored is None:
        return
    from moeprune.observe.layers import moe_layers
    from moeprune.observe.quantised import expert_square

    layers = moe_layers(live, layout)
    for place in np.unique(np.linspace(0, len(layers) - 1, _LAYERS).round().astype(int)).tolist():
        layer = layers[place]
        expert = layer.row % layer.num_experts
        have = expert_square(layer.experts, expert)
        if have is None:  # not in memory, or not yet
            continue
        due = stored_square(index, layout, stored, row=layer.row, expert=expert)
        if due is None or abs(have - due) <= _TOLERANCE * due:
            continue
        raise CheckpointError(
            f"layer {layer.layer}, expert {expert}: transformers loads weights of norm "
            f"{have**0.5:.4g}, the stored ones ({stored.method}) have {due**0.5:.4g}; it does not "
            "read this format rightly. Run the unquantised checkpoint."
        )


def stored_square(
    index: CheckpointIndex, layout: MoeLayout, stored: StoredFormat, *, row: int, expert: int
) -> float | None:
    """Sum of the squares of one expert's weights as the files hold them; None if not readable."""
    modules: dict[str, dict[str, Raw]] = {}
    for name, rule in layout.tensors.items():
        # Further sets of experts (those for images) lie in modules of their own.
        if rule.role != "expert" or rule.row != row or rule.follows or rule.shift:
            continue
        if rule.expert is not None and rule.expert != expert:
            continue
        module, part = _split(name, rule)
        if part != "bias":
            modules.setdefault(module, {})[part] = _raw(index, name, rule, expert)
    total = 0.0
    for parts in modules.values():
        weight = plain_weight(parts, stored.settings)
        if weight is None:
            return None
        total += float(np.square(weight).sum())
    return total if modules else None


def _split(name: str, rule: ExpertTensor) -> tuple[str, str]:
    """(linear map, part): ``….up_proj`` and ``weight_scale``; ``….down_proj`` and ``blocks``."""
    stem, _, last = name.rpartition(".")
    if rule.expert is not None:
        owner, found, state = name.rpartition(".weight.")  # bitsandbytes: weight.absmax
        return (owner, f"weight.{state}") if found else (stem, last)
    for part in ("blocks", "scales", "bias"):
        if last.endswith(f"_{part}"):
            return f"{stem}.{last.removesuffix(f'_{part}')}", part
    return name, "weight"


def _raw(index: CheckpointIndex, name: str, rule: ExpertTensor, expert: int) -> Raw:
    entry = index.entries[name]
    start, end, info = entry.start, entry.end, entry.info
    if rule.axis == 0 and info.shape[0] % rule.block == 0:
        share = (end - start) // (info.shape[0] // rule.block)
        start, end = start + expert * share, start + (expert + 1) * share
        shape = info.shape[1:] if rule.block == 1 else (rule.block, *info.shape[1:])
        info = TensorInfo(info.dtype, shape, share)
    return Raw(info, b"".join(chunks(index.path / entry.file, start, end)))
