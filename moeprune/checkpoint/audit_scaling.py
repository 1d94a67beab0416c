"""Whether stored values are the nearest to a product, apart from the code that multiplies.

Nothing is rounded here: a value passes if neither of its two neighbours in the stored type lies
nearer to the exact product, and of two equally near ones it is the even one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Codes = npt.NDArray[np.unsignedinteger]

_UNSIGNED = {"BF16": "<u2", "F16": "<u2", "F32": "<u4", "F64": "<u8"}
_FLOAT = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


def is_product(mine: bytes, theirs: bytes, dtype: str, factor: float) -> bool:
    """Whether every value of ``theirs`` is that of ``mine`` times ``factor``, correctly rounded.

    Args:
        mine: values of the source.
        theirs: values of the export.
        dtype: of both: BF16, F16, F32 or F64.
        factor: a float32 number. Its product with a BF16, F16 or F32 value is exact in float64; of
            F64 values the float64 product itself is wanted.
    """
    if len(mine) != len(theirs):
        return False
    source, made = (np.frombuffer(data, _UNSIGNED[dtype]) for data in (mine, theirs))
    if source.itemsize == 2:
        # One product a code: each code of the source is judged once.
        found = np.zeros(1 << 16, source.dtype)
        found[source] = made
        if not np.array_equal(found[source], made):
            return False
        used = np.bincount(source, minlength=1 << 16).nonzero()[0]
        source, made = used.astype(source.dtype), found[used]
    return _are_products(source, made, dtype, factor)


def _are_products(source: Codes, made: Codes, dtype: str, factor: float) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        due = _values(source, dtype) * factor
        if dtype == "F64":
            return bool(np.array_equal(due, _values(made, dtype), equal_nan=True))
        top = source.dtype.type(1 << (8 * source.dtype.itemsize - 1))
        size = made & ~top
        have = _values(size, dtype)
        below = _values(np.where(size > 0, size - 1, size).astype(size.dtype), dtype)
        above = _values((size + 1).astype(size.dtype), dtype)
        wanted = np.abs(due)
        off = np.abs(have - wanted)
        nearest = (off <= np.abs(below - wanted)) & (off <= np.abs(above - wanted))
        # Half way between two values, the one whose code is even.
        tie = (off > 0) & ((off == np.abs(below - wanted)) | (off == np.abs(above - wanted)))
        good = nearest & (~tie | (size & 1 == 0)) & ((made & top) == (source & top))
        same = (
            ~np.isfinite(due)
            & (np.isnan(due) == np.isnan(have))
            & (np.isinf(due) == np.isinf(have))
        )
    return bool((good | same).all())


def _values(codes: Codes, dtype: str) -> Values:
    if dtype == "BF16":
        return (codes.astype("<u4") << np.uint32(16)).view("<f4").astype(np.float64)
    return codes.view(_FLOAT[dtype]).astype(np.float64)
