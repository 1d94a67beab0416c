"""Read a file of quantised weights as plain numbers, whatever else transformers does to names.

Its own readers take every weight that a family's conversions touch for a quantised one, which fails
where some are not (convolutions, experts of another part of the model), and know one number of bits
for all experts. Here each weight is read as it is stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from safetensors import safe_open
from transformers import core_model_loading
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

_COMPANIONS = {
    "compressed-tensors": ("weight_packed", "weight_scale", "weight_shape"),
    "fp8": ("weight_scale_inv",),
}


class DecodeWeights(core_model_loading.ConversionOps):
    """Plain numbers of stored weights, and then what the family's own converter does to them."""

    supports_many_to_many = True

    def __init__(
        self, companions: tuple[str, ...], converter: core_model_loading.WeightConverter | None
    ) -> None:
        self.companions, self.converter = companions, converter

    @torch.no_grad()
    def convert(  # type: ignore[no-untyped-def]
        self, input_dict, source_patterns, target_patterns, *, model, full_layer_name, **kwargs
    ):
        """The tensors that the converter makes; without one, the weight of one module."""
        dtype = model.get_parameter(full_layer_name).dtype
        collected = {}
        for pattern in [name for name in source_patterns if re.search(r"\bweight$", name)]:
            names = [re.sub(r"weight$", name, pattern) for name in self.companions]
            stored = [input_dict.pop(name, None) for name in (pattern, *names)]
            if any(one is not None for one in stored):
                collected[pattern] = _decoded(*stored, dtype=dtype)
        if self.converter is None:
            (weights,) = collected.values()
            return {full_layer_name: weights[0]}
        for operation in self.converter.operations:
            collected = operation.convert(
                collected,
                source_patterns=list(collected),
                target_patterns=target_patterns,
                model=model,
                full_layer_name=full_layer_name,
                **kwargs,
            )
        return collected

    @property
    def reverse_op(self) -> core_model_loading.ConversionOps:
        """Refused: the numbers are not written as they were read."""
        raise ValueError("weights that became plain numbers while loading are saved as such.")


def _decoded(
    weights: list[torch.Tensor] | None,
    *companions: list[torch.Tensor] | None,
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    if len(companions) == 3:
        packed, scales, shapes = companions
        if packed is None or scales is None or shapes is None:
            return list(weights or ())
        return [_unpacked(*one).to(dtype) for one in zip(packed, scales, shapes, strict=True)]
    (scales,) = companions
    if scales is None:
        return list(weights or ())
    return [_scaled(*one).to(dtype) for one in zip(weights or (), scales, strict=True)]


def _unpacked(packed: torch.Tensor, scale: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    """Integers of as many bits as fill the row, lowest first, times a scale a group of inputs."""
    rows, columns = shape.tolist()
    each = columns // packed.shape[1]  # in an int32
    bits = 32 // each
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
    codes = (packed[:, :, None] >> shifts) & ((1 << bits) - 1)
    numbers = (codes.reshape(rows, columns) - (1 << (bits - 1))).to(torch.float32)
    groups = numbers.reshape(rows, scale.shape[1], -1)
    plain: torch.Tensor = (groups * scale.to(torch.float32)[:, :, None]).reshape(rows, columns)
    return plain


def _scaled(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Numbers times a scale a block."""
    (rows, columns), (above, beside) = weight.shape, scale.shape
    blocks = weight.to(torch.float32).reshape(above, rows // above, beside, columns // beside)
    plain: torch.Tensor = (blocks * scale.to(torch.float32)[:, None, :, None]).reshape(
        rows, columns
    )
    return plain


class _Decoding:
    """What both quantisers do: the model stays plain, and weights are decoded for it."""

    quantization_config: Any
    _method: str
    _stored: tuple[str, ...] = ()

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Iterable[str] = (), **kwargs: Any
    ) -> None:
        mark = f".{_COMPANIONS[self._method][0]}"
        found = []
        for path in checkpoint_files:
            with safe_open(path, framework="pt") as file:
                found += [name for name in file.keys() if name.endswith(mark)]  # noqa: SIM118
        self._stored = tuple(f"{name.removesuffix(mark)}.weight" for name in found)

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        """Decode first, in every converter that a stored weight of this kind goes through."""
        companions = _COMPANIONS[self._method]
        renamings = [
            one for one in weight_conversions if isinstance(one, core_model_loading.WeightRenaming)
        ]
        converters = [
            one for one in weight_conversions if isinstance(one, core_model_loading.WeightConverter)
        ]
        left = set(self._stored)
        decoding = {}
        for converter in converters:
            mine = {
                name
                for name in left
                if core_model_loading.rename_source_key(name, renamings, [converter])[1]
            }
            left -= mine
            if mine:
                sources = _with(companions, converter._original_source_patterns)
                decoding[id(converter)] = converter.copy(
                    sources,
                    list(converter._original_target_patterns),
                    operations=[DecodeWeights(companions, converter)],
                )
        updated = [decoding.get(id(one), one) for one in weight_conversions]
        if left:  # linear modules by themselves
            sources = _with(companions, ["weight"])
            updated.append(
                core_model_loading.WeightConverter(
                    sources, "weight", [DecodeWeights(companions, None)]
                )
            )
        return updated


def _with(companions: tuple[str, ...], patterns: Iterable[str]) -> list[str]:
    return [
        re.sub(r"weight$", name, pattern)
        for pattern in patterns
        for name in ("weight", *companions)
    ]


class DecodingCompressed(_Decoding, CompressedTensorsHfQuantizer):
    """Of ``compressed-tensors``."""

    _method = "compressed-tensors"


class DecodingFp8(_Decoding, FineGrainedFP8HfQuantizer):
    """Of ``fp8``."""

    _method = "fp8"


DECODING = {one._method: one for one in (DecodingCompressed, DecodingFp8)}
