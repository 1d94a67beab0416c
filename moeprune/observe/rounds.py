"""A corpus in rounds: some documents of every domain, then some more.

After each round the sums are those of a smaller corpus of the same kind, so it can be asked whether
more text would change what is decided.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeprune.observe.domains import Corpus

_ROUNDS = 16
_LEAST = 4  # documents of a domain in a round: fewer make short batches


def rounds(corpora: Sequence[Corpus], seed: int) -> list[tuple[Corpus, ...]]:
    """Split every domain into parts, drawn by ``seed``; the r-th parts of all are round r.

    Documents are drawn because files are often sorted. They keep their numbers, and so their folds.
    A domain has as many parts as its number of documents allows, 16 at most.
    """
    parts = [_parts(corpus, seed) for corpus in corpora]
    return [
        tuple(own[number] for own in parts if number < len(own))
        for number in range(max(map(len, parts), default=0))
    ]


def _parts(corpus: Corpus, seed: int) -> list[Corpus]:
    total = len(corpus.documents)
    order = np.random.RandomState(seed).permutation(total)
    size = max(_LEAST, -(-total // _ROUNDS))
    return [
        corpus.rows(sorted(order[start : start + size].tolist()))
        for start in range(0, max(total, 1), size)
    ]
