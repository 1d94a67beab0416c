"""What all schemes ask of a weight: a group size that divides it, and numbers that are finite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import torch

from moeprune.errors import UnsupportedModelError

Shape = tuple[int, ...]

_POWERS: Final = tuple(2**power for power in range(8, 2, -1))

# Numbers that are worked on at once: what is computed on the way then stays in the cache.
_AT_ONCE: Final = 1 << 17

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
    odd = [shape for shape in sorted(shapes) if not any(fits(shape, size) for size in tried)]
    shape = odd[0] if odd else next(s for s in sorted(shapes) if not fits(s, tried[0]))
    possible = [str(size) for size in _POWERS if all(fits(shape, size) for shape in shapes)]
    stated = f"group size {wanted}" if wanted is not None else f"group sizes {sorted(tried)}"
    raise UnsupportedModelError(
        f"a weight of {shape[0]} outputs and {shape[1]} inputs cannot be written as {scheme} with "
        f"{stated}. Pass "
        + (f"--group-size {' or '.join(possible)}." if possible else "another scheme.")
    )


def in_groups(weight: torch.Tensor, size: int) -> torch.Tensor:
    """A weight as (groups, size), in the order of its numbers; a transposed one is copied."""
    return weight.contiguous().view(-1, size)


def runs(groups: int, size: int) -> Iterator[slice]:
    """Consecutive groups, as many at once as stay in the cache.

    Args:
        groups: how many there are.
        size: numbers of a group.
    """
    step = max(1, _AT_ONCE // size)
    for start in range(0, groups, step):
        yield slice(start, min(start + step, groups))


def scratch(groups: int, size: int) -> torch.Tensor:
    """Room for the longest of :func:`runs`, float32."""
    return torch.empty((min(groups, max(1, _AT_ONCE // size)), size))


def peaks_of(groups: torch.Tensor) -> torch.Tensor:
    """The largest absolute value of each group, (groups,) float32.

    Args:
        groups: (groups, size) of a floating type.

    Raises:
        UnsupportedModelError: a number is NaN or infinite, which no scheme can hold.
    """
    count, size = groups.shape
    peaks = torch.empty(count)
    room = scratch(count, size)
    for run in runs(count, size):
        values = room[: run.stop - run.start].copy_(groups[run]).abs_()
        torch.amax(values, -1, out=peaks[run])
    if not bool(torch.isfinite(peaks).all()):
        raise UnsupportedModelError(
            "it holds NaN or infinity, which no scheme can store. Check the checkpoint."
        )
    return peaks


def whole(numbers: Iterable[torch.Tensor], shape: Shape) -> torch.Tensor:
    """A weight of the runs of its numbers: float32, of this shape."""
    values = torch.empty(tuple(shape))
    flat, start = values.view(-1), 0
    for run in numbers:
        flat[start : start + run.numel()] = run.reshape(-1)
        start += run.numel()
    return values


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
