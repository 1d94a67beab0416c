"""What all schemes ask of a weight: a group size that divides it, and numbers that are finite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import torch

from moeprune.errors import UnsupportedModelError

Shape = tuple[int, ...]

# Numbers that are worked on at once: what is computed on the way then stays in the cache.
_AT_ONCE: Final = 1 << 16

TYPES: Final = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
NAMES: Final = {
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float32: "float32",
}


def dtype_of(dtype: str) -> torch.dtype:
    """The type in which the model computes; wider ones are float32.

    Args:
        dtype: as safetensors spells it.
    """
    return TYPES.get(dtype, torch.float32)


def first_that_fits(
    shapes: Collection[Shape],
    wanted: int | None,
    *,
    scheme: str,
    sizes: Iterable[int],
    fits: Callable[[Shape, int], bool],
) -> int:
    """``wanted``, or the first of ``sizes`` that fits all shapes.

    Args:
        shapes: (out, in) of every weight.
        wanted: what was asked for; None: nothing.
        scheme: its name, for the message.
        sizes: the default, then what is tried where that does not fit.
        fits: whether a weight of this shape can be written with this group size.

    Raises:
        UnsupportedModelError: none fits; the message names a shape that none does.
    """
    tried = [wanted] if wanted is not None else list(sizes)
    for size in tried:
        if all(fits(shape, size) for shape in shapes):
            return size
    odd = next((s for s in shapes if not any(fits(s, size) for size in tried)), None)
    shape = next(s for s in shapes if not fits(s, tried[0])) if odd is None else odd
    stated = f"group size {wanted}" if wanted is not None else f"group sizes {sorted(tried)}"
    raise UnsupportedModelError(
        f"a weight of {shape[0]} outputs and {shape[1]} inputs cannot be written as {scheme} with "
        f"{stated}. Pass another --group-size, or another scheme."
    )


def row_blocks(shape: Shape, multiple: int = 1) -> Iterator[slice]:
    """The rows of a matrix, as many at once as stay in the cache.

    Args:
        shape: (out, in).
        multiple: every block but the last is a multiple of so many rows.
    """
    rows = max(1, _AT_ONCE // max(1, shape[1] * multiple)) * multiple
    for start in range(0, shape[0], rows):
        yield slice(start, min(start + rows, shape[0]))


def check_finite(peaks: torch.Tensor) -> None:
    """Refuse what no scheme can hold.

    Args:
        peaks: largest absolute values, NaN where a number is NaN.

    Raises:
        UnsupportedModelError: one of them is not finite.
    """
    if not bool(torch.isfinite(peaks).all()):
        raise UnsupportedModelError(
            "it holds NaN or infinity, which no scheme can store. Check the checkpoint."
        )


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
