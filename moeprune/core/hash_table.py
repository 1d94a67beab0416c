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


def renumbered(table_VK: Table, keep: Sequence[int]) -> Table:
    """The table of the exported model: :func:`replaced`, in the experts' new numbers."""
    return np.searchsorted(np.asarray(keep, dtype=np.int64), replaced(table_VK, keep))
