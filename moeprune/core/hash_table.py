"""Routing by a table: which experts a token runs is looked up by its id, not computed.

Where experts leave, each entry that names one of them gets a kept expert in its place: spread
evenly over the kept ones, never one that the same token has already.

V tokens, K experts run per token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.int64]


def replaced(table_VK: Table, keep: Sequence[int]) -> Table:
    """The table with a kept expert in every place, by the experts' original ids.

    Args:
        table_VK: int64 original ids.
        keep: original ids of the experts that stay, ascending; at least K.
    """
    keep_N = np.asarray(keep, dtype=np.int64)
    rows_V, top_k = np.arange(len(table_VK)), table_VK.shape[1]
    assert len(keep_N) >= top_k
    out_VK = np.array(table_VK, dtype=np.int64)
    for place in range(top_k):
        open_R = rows_V[~np.isin(table_VK[:, place], keep_N)]
        at_R = (open_R + place * (len(keep_N) // top_k)) % len(keep_N)
        # A row holds fewer than K others, so at most K steps find one that it does not hold.
        while len(open_R):
            others_RK = np.delete(out_VK[open_R], place, axis=1)
            taken_R = (others_RK == keep_N[at_R][:, None]).any(axis=1)
            out_VK[open_R[~taken_R], place] = keep_N[at_R[~taken_R]]
            open_R, at_R = open_R[taken_R], (at_R[taken_R] + 1) % len(keep_N)
    return out_VK


def without_one(
    ids_NK: Table, row_N: NDArray[np.int64], gone_N: NDArray[np.int64], *, num_experts: int
) -> Table:
    """Entries of a table of which each loses one expert of its own, as :func:`replaced` by itself.

    Args:
        ids_NK: int64 entries.
        row_N: int64 row of the table that each is.
        gone_N: int64 expert that leaves; −1: none.
        num_experts: E. Where fewer than K would stay, nothing is replaced.
    """
    out_NK, (_, top_k) = ids_NK.copy(), ids_NK.shape
    stay = num_experts - 1
    if stay < top_k:
        return out_NK
    for place in range(top_k):
        open_R = np.flatnonzero(ids_NK[:, place] == gone_N)
        at_R = (row_N[open_R] + place * (stay // top_k)) % stay
        while len(open_R):
            found_R = at_R + (at_R >= gone_N[open_R])
            others_RK = np.delete(out_NK[open_R], place, axis=1)
            taken_R = (others_RK == found_R[:, None]).any(axis=1)
            out_NK[open_R[~taken_R], place] = found_R[~taken_R]
            open_R, at_R = open_R[taken_R], (at_R[taken_R] + 1) % stay
    return out_NK


def renumbered(table_VK: Table, keep: Sequence[int]) -> Table:
    """The table of the exported model: :func:`replaced`, in the experts' new numbers."""
    return np.searchsorted(np.asarray(keep, dtype=np.int64), replaced(table_VK, keep))
