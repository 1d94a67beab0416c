"""Documents too short for routing to settle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeprune.observe.domains import Corpus

# From this many tokens on, plans of MESA no longer changed with the length: its paper, table 11b.
SETTLED = 1024

_FINDING = (
    f"MESA's paper (D.1) found plans stable from {SETTLED} tokens a document on, and the length to "
    "matter more than the number of documents"
)


def length_warning(corpora: Sequence[Corpus], length: int) -> str | None:
    """One line where documents are cut below, or mostly are shorter than, ``SETTLED`` tokens.

    Args:
        corpora: of the domains.
        length: tokens kept of a document.
    """
    if length < SETTLED:
        return (
            f"documents are cut to {length} tokens; {_FINDING}. "
            "A larger --length serves better, where the model has positions for it."
        )
    # Half of them, not one: in any real text some documents are short.
    medians = {
        corpus.name: int(np.median([ids.size for ids in corpus.documents]))
        for corpus in corpora
        if corpus.documents
    }
    short = [f"{name} {median}" for name, median in medians.items() if median < SETTLED]
    if not short:
        return None
    return (
        f"documents are short (median tokens: {', '.join(short)}); {_FINDING}. "
        "Give longer documents."
    )
