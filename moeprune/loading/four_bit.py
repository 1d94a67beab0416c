"""Numbers stored in four bits as bitsandbytes stores them (NF4, FP4), and what they stand for.

Every number is one of 16 values (``code``) times the largest magnitude of its block of consecutive
numbers; two numbers share a byte, the first in its upper half. Double quantisation stores those
magnitudes in 8 bits: one of 256 values times that of a block of them, plus an offset.

Products are float32, rounded once to the type that the weight had: bit for bit what
``bitsandbytes.functional.dequantize_4bit`` gives. Its kernels run where it is installed.

G packed bytes, N numbers (at most 2 G), B blocks.
"""

import functools
import importlib.util
from typing import Any

import torch

_FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def four_bit_numbers(
    packed_G: torch.Tensor,
    absmax_B: torch.Tensor,
    code: torch.Tensor,
    *,
    kind: str,
    block: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> torch.Tensor:
    """The numbers of one weight.

    Args:
        packed_G: (G,) uint8, contiguous.
        absmax_B: (B,) float32, the largest magnitude of every block.
        code: (16,) float32, what each half of a byte stands for.
        kind: ``"nf4"`` or ``"fp4"``.
        block: consecutive numbers that share a magnitude.
        shape: of the weight, N numbers in all.
        dtype: of the result.
    """
    count = 1
    for length in shape:
        count *= length
    if count % block == 0 and _kernels():
        # As rows of a block each: of others its kernel for CPUs takes the wrong magnitudes.
        rows = [count // block, block]
        found: torch.Tensor = torch.ops.bitsandbytes.dequantize_4bit.default(
            packed_G.view(-1, 1), absmax_B, block, kind, rows, dtype
        )
        return found.view(shape)
    # Both halves of a byte at once: of 256 pairs of float32, seen as 256 int64, each byte's.
    pairs = torch.stack([code.repeat_interleave(16), code.repeat(16)], 1).view(torch.int64)
    values = pairs.view(-1).index_select(0, packed_G.int()).view(torch.float32)[:count]
    whole = count // block * block
    out = torch.empty(count, dtype=dtype, device=packed_G.device)
    torch.mul(
        values[:whole].view(-1, block),
        absmax_B[: count // block, None],
        out=out[:whole].view(-1, block),
    )
    if whole < count:
        out[whole:] = (values[whole:] * absmax_B[-1]).to(dtype)
    return out.view(shape)


def nested_absmax(
    stored_B: torch.Tensor,
    absmax: torch.Tensor,
    code: torch.Tensor,
    offset: torch.Tensor,
    *,
    block: int,
) -> torch.Tensor:
    """The magnitudes of blocks that are quantised themselves: (B,) float32.

    Args:
        stored_B: (B,) uint8.
        absmax: (⌈B / block⌉,) float32.
        code: (256,) float32.
        offset: a single float32.
        block: consecutive magnitudes that share one of their own.
    """
    values = code.index_select(0, stored_B.int())
    scale = absmax.repeat_interleave(block)[: len(values)]
    return values.mul_(scale).add_(offset)


def float_type(name: str) -> torch.dtype:
    """The type that bitsandbytes notes by name.

    Raises:
        ValueError: another one.
    """
    if name not in _FLOATS:
        raise ValueError(f"quant_state: dtype {name!r} is none of {', '.join(_FLOATS)}.")
    return _FLOATS[name]


@functools.cache
def _kernels() -> Any:
    """Whether bitsandbytes is there; importing it registers its kernels for every device."""
    if importlib.util.find_spec("bitsandbytes") is None:
        return False
    importlib.import_module("bitsandbytes")
    return hasattr(torch.ops.bitsandbytes, "dequantize_4bit")
