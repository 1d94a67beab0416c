"""How modules in memory hold all experts, of families of which transformers reads no single ones.

A file of single experts of such a family loads by code of its own (``loading/merging.py``), which
reads this from the file's config.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moeprune.core.layout import MoeLayout

_GATED, _DOWN = ("gate_proj", "up_proj"), ("down_proj",)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of a module: its maps, which way it is, and whether gate and up take turns."""

    name: str
    maps: tuple[str, ...]
    transposed: bool = False
    interleaved: bool = False


_KINDS: Mapping[str, tuple[_Tensor, ...]] = {
    "plain": (_Tensor("gate_up_proj", _GATED), _Tensor("down_proj", _DOWN)),
    "transposed": (
        _Tensor("gate_up_proj", _GATED, transposed=True),
        _Tensor("down_proj", _DOWN, transposed=True),
    ),
    "interleaved": (
        _Tensor("gate_up_proj", _GATED, transposed=True, interleaved=True),
        _Tensor("down_proj", _DOWN, transposed=True),
    ),
    "blocks": (
        _Tensor("mlp.w1", ("gate_proj",)),
        _Tensor("mlp.v1", ("up_proj",)),
        _Tensor("mlp.w2", _DOWN, transposed=True),
    ),
    "linear": (
        _Tensor("input_linear.weight", _GATED),
        _Tensor("output_linear.weight", _DOWN),
        _Tensor("input_linear.weight", ("input_linear",)),
        _Tensor("output_linear.weight", ("output_linear",)),
    ),
}


# transformers takes single experts in place of the module, under quantisers of these names.
_REPLACED = {"llama4_text": ("compressed-tensors", "bitsandbytes")}


# Models with conversions that transformers' quantisers of these names trip over: other weights than
# the experts' go through them (convolutions, experts of another part), or experts of two sets.
_COMPRESSED, _FP8 = "compressed-tensors", "fp8"
_TRIPPED = {
    "bailing_hybrid": (_COMPRESSED,),
    "dots3_note": (_COMPRESSED,),
    "ernie4_5_vl_moe": (_COMPRESSED, _FP8),
    "glm5_next": (_COMPRESSED,),
    "kimi_linear": (_COMPRESSED,),
    "minimax_m3_vl": (_COMPRESSED,),
    "qwen3_omni_moe": (_COMPRESSED,),
    "unlimited_ocr": (_COMPRESSED, _FP8),
}


def needs_merging(model_type: object, layout: MoeLayout, *, method: str, stacked: bool) -> bool:
    """Whether a file of quantised single experts needs code of its own in transformers.

    Args:
        model_type: as config.json states it at the top.
        layout: of the source.
        method: ``quant_method`` that the file states.
        stacked: whether experts are taken out of stacks.
    """
    if method in _TRIPPED.get(str(model_type), ()):
        return True
    return stacked and bool(layout.merged) and method not in _REPLACED.get(layout.model_type, ())


def keeps_no_stack(layout: MoeLayout, *, method: str) -> bool:
    """Whether single experts take the place of every layer's module, so that none may stay a stack.

    Args:
        layout: of the source.
        method: ``quant_method`` that the file states.
    """
    return bool(layout.splits) and method in _REPLACED.get(layout.model_type, ())


def merged_tensors(layout: MoeLayout) -> dict[str, dict[str, Any]]:
    """What becomes of single experts' weights in memory; empty: transformers reads them itself.

    Args:
        layout: of the checkpoint whose stacks of all experts ``layout.splits`` takes apart.

    Returns:
        Tensor in memory, after ``layers.<i>.`` -> ``of``: names of the single experts' weights,
        with ``*`` for the expert, in order; ``transposed`` and ``interleaved`` as
        :class:`~moeprune.core.split.Split` has them.
    """
    if not layout.merged:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for name, split in layout.splits.items():
        expert_set = layout.sets[layout.tensors[name].row] if layout.sets else ""
        module = layout.set_modules[expert_set][0] if expert_set else layout.experts_module
        inner = re.split(r"\.[0-9]+\.", split.module)[-1]
        maps = {
            one
            for other in layout.splits.values()
            if other.module == split.module
            for one in other.maps
        }
        for tensor in _KINDS[layout.merged]:
            if maps.issuperset(tensor.maps):
                found[f"{module}.{tensor.name}"] = {
                    "of": [f"{inner}.*.{one}.weight" for one in tensor.maps],
                    "transposed": tensor.transposed,
                    "interleaved": tensor.interleaved,
                }
    return found
