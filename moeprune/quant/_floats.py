"""Weights as float32 arrays, and rounded to the types of models: numpy, apart from torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from moeprune.quant._numbers import Raw, plain_weight
from moeprune.quant._plain import plain_tensor

Values = npt.NDArray[np.float32]


def weight_values(parts: Mapping[str, Raw], settings: Mapping[str, object]) -> Values | None:
    """The weight that the stored tensors of one linear map, or of a stack's expert, stand for.

    Args:
        parts: suffix -> tensor; of a plain weight ``weight`` alone.
        settings: the quantisation settings.

    Returns:
        float32, or None for a layout that this does not read.
    """
    weight = parts.get("weight")
    if len(parts) == 1 and weight is not None and weight.info.dtype in ("F64", "F32", "F16"):
        data = np.frombuffer(weight.data, f"<f{int(weight.info.dtype[1:]) // 8}")
        return data.astype(np.float32).reshape(weight.info.shape)
    if len(parts) == 1 and weight is not None and weight.info.dtype == "BF16":
        wide = np.frombuffer(weight.data, "<u2").astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32).reshape(weight.info.shape)
    made = plain_weight(parts, settings)
    if made is None:  # GPTQ, AWQ and NVFP4 of ModelOpt have one reader
        read = plain_tensor(parts, settings)
        return None if read is None else read.numpy()
    # Blocks of numbers (MXFP4) have an axis more than the matrix.
    return made.astype(np.float32).reshape(*made.shape[:1], -1)


def to_dtype(values: Values | npt.NDArray[np.float64], dtype: str) -> Values:
    """Values rounded to the type of a model, half to even, as float32.

    Args:
        values: the numbers; of float64 ones, such as are products, those of 24 bits or less are
            rounded once.
        dtype: as safetensors spells it: BF16, F16, or another, which is float32.
    """
    if dtype == "F16":
        return values.astype(np.float16).astype(np.float32)
    values = values.astype(np.float32)
    if dtype != "BF16":
        return values
    bits = np.ascontiguousarray(values).view(np.uint32)
    upper = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) & np.uint32(0xFFFF0000)
    rounded: Values = np.where(np.isnan(values), values, upper.view(np.float32))
    return rounded
