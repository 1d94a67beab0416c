"""Products with an expert's weights, by the library that is fastest on this CPU.

torch multiplies float32 matrices with MKL, which uses AVX-512 on Intel's CPUs only; oneDNN uses it
wherever it is. On a Zen 5 core that is 230 instead of 105 GFLOP/s. 16-bit products are oneDNN's
anyway. oneDNN prepares a kernel for every number of rows, in about the time of a product of 200
rows, and keeps a thousand of them: experts would ask for more, and for new ones in every batch.

N tokens of one expert, H input and O output size.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear

SPARE_ROWS = 31
"""How many rows :func:`round_rows` adds at most."""


def linear(rows_NH: Tensor, weight_OH: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """(N, O) rows · weightᵀ + bias, as ``torch.nn.functional.linear``.

    It has a derivative, by rows alone where neither weight nor bias asks for one.
    """
    product = _onednn() if _is_plain(rows_NH) and _is_plain(weight_OH) else None
    if product is None:
        return torch_linear(rows_NH, weight_OH, bias_O)
    if torch.is_grad_enabled():
        if weight_OH.requires_grad or (bias_O is not None and bias_O.requires_grad):
            return torch_linear(rows_NH, weight_OH, bias_O)
        if rows_NH.requires_grad:
            traced: Tensor = _Product.apply(rows_NH, weight_OH, bias_O)
            return traced
    found: Tensor = product(rows_NH, weight_OH, bias_O, "none", [], "")
    return found


class _Product(torch.autograd.Function):
    """oneDNN's product, which has no derivative of its own, and the gradient of its rows."""

    @staticmethod
    def forward(ctx: Any, rows_NH: Tensor, weight_OH: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight_OH)
        return linear(rows_NH, weight_OH, bias_O)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor, None, None]:
        (weight_OH,) = ctx.saved_tensors
        return linear(grad_NO, weight_OH.T), None, None


def round_rows(rows: int, like: Tensor) -> int:
    """How many rows to multiply in place of ``rows``, so that few different numbers occur.

    Args:
        rows: those that are needed.
        like: of their kind.
    """
    unprepared = like.dtype in (torch.float32, torch.float64) and _onednn() is None
    if like.device.type != "cpu" or unprepared or rows <= 32:
        return rows
    unit = 16 if rows <= 512 else 32
    return -(-rows // unit) * unit


def _is_plain(values: Tensor) -> bool:
    return values.dtype == torch.float32 and values.device.type == "cpu"


@functools.cache
def _onednn() -> Any | None:
    """The float32 product of oneDNN, None where torch's own is as fast or this torch has none."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and _is_amd()
    if not (wide and torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return None
    # What torch's compiler calls; it is not promised to stay, so it is tried.
    rows, weight = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(0, 1, 8).reshape(2, 4)
    bias = torch.ones(2)
    try:
        product = torch.ops.mkldnn._linear_pointwise
        with torch.inference_mode():
            found = product(rows, weight, bias, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return None
    return product if torch.allclose(found, torch_linear(rows, weight, bias)) else None


def _is_amd() -> bool:
    try:
        words = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        words = platform.processor()
    return "AuthenticAMD" in words
