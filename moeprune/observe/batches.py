"""Documents in padded batches.

B documents, S positions. Padding stands on the right by default: in a causal model nothing to the
right of a token can influence it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprune.core.stats import FOLDS
from moeprune.errors import UsageError
from moeprune.observe.domains import Corpus, Ids

# Documents are sorted by length inside windows of this many: little padding, and memory for the
# order of a corpus of any size stays small.
_WINDOW = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Documents side by side.

    Attributes:
        ids_BS: int64 token ids; what stands in the padding does not matter.
        mask_BS: int64, 1 = a token, 0 = padding.
        positions_BS: int64, 0.. from each document's first token.
        fold_BS: int64 fold of the document, −1 in the padding.
        counted_BS: whether the token is counted; the others are read, so that they are seen, no
            more.
        number_B: int64 number of each document in its domain.
        target_BS: whether the token's loss is taken: that with which the token before it, the
            document's, predicts it.
    """

    ids_BS: NDArray[np.int64]
    mask_BS: NDArray[np.int64]
    positions_BS: NDArray[np.int64]
    fold_BS: NDArray[np.int64]
    counted_BS: NDArray[np.bool_]
    number_B: NDArray[np.int64]
    target_BS: NDArray[np.bool_]

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""
        return int(self.mask_BS.sum())


@dataclass(frozen=True, slots=True)
class Share:
    """The batches of one process: dealt like cards, so that all have about as many.

    Whole batches and not documents: what a model computes depends on the batch in its last bits, in
    half precision in more than these, and so the sums are those of a process that runs all.

    Attributes:
        index: of the process.
        of: processes.
        first: of the batches dealt before, for other domains.
    """

    index: int = 0
    of: int = 1
    first: int = 0

    def holds(self, number: int) -> bool:
        """Whether a batch, by its number in the domain, is run by this process."""
        return (self.first + number) % self.of == self.index


WHOLE = Share()


def check_batch_tokens(max_tokens: int) -> None:
    """Check that a batch can hold something.

    Raises:
        UsageError: it cannot.
    """
    if max_tokens < 1:
        raise UsageError(f"a batch of {max_tokens} tokens is empty; allow at least 1.")


def batches(
    corpus: Corpus, *, max_tokens: int, padding_side: str = "right", share: Share = WHOLE
) -> Iterator[Batch]:
    """Every document once, in batches of at most ``max_tokens`` positions (or one document).

    Args:
        corpus: the documents.
        max_tokens: of a batch.
        padding_side: ``"right"`` or ``"left"``.
        share: which of the batches; the others' documents are left out.

    Raises:
        UsageError: ``max_tokens`` below 1.
    """
    check_batch_tokens(max_tokens)
    assert padding_side in ("left", "right")
    for number, rows in enumerate(_groups(corpus, max_tokens)):
        if share.holds(number):
            yield _batch(corpus, rows, padding_side)


def num_batches(corpus: Corpus, *, max_tokens: int) -> int:
    """How many batches all of a corpus makes."""
    return sum(1 for _ in _groups(corpus, max_tokens))


def batch_sizes(corpus: Corpus, *, max_tokens: int, share: Share = WHOLE) -> list[int]:
    """Positions of each batch that :func:`batches` gives, padding included."""
    return [
        len(rows) * max(corpus.documents[row].size for row in rows)
        for number, rows in enumerate(_groups(corpus, max_tokens))
        if share.holds(number)
    ]


def _groups(corpus: Corpus, max_tokens: int) -> Iterator[list[int]]:
    """Rows of the documents of each batch."""
    for start in range(0, len(corpus.documents), _WINDOW):
        window = range(start, min(start + _WINDOW, len(corpus.documents)))
        rows: list[int] = []
        # Longest first: the largest batch comes early, so memory that does not suffice shows early.
        for row in sorted(window, key=lambda row: (-corpus.documents[row].size, row)):
            longest = corpus.documents[rows[0] if rows else row].size
            if rows and longest * (len(rows) + 1) > max_tokens:
                yield rows
                rows = []
            rows.append(row)
        if rows:
            yield rows


def _batch(corpus: Corpus, rows: Sequence[int], padding_side: str) -> Batch:
    documents: list[Ids] = [corpus.documents[row] for row in rows]
    width = max(ids.size for ids in documents)
    ids_BS = np.zeros((len(rows), width), np.int64)
    mask_BS = np.zeros_like(ids_BS)
    positions_BS = np.zeros_like(ids_BS)
    fold_BS = np.full_like(ids_BS, -1)
    counted_BS = np.zeros(ids_BS.shape, np.bool_)
    target_BS = np.zeros(ids_BS.shape, np.bool_)
    for line, (row, ids) in enumerate(zip(rows, documents, strict=True)):
        first = 0 if padding_side == "right" else width - ids.size
        place = slice(first, first + ids.size)
        ids_BS[line, place] = ids
        mask_BS[line, place] = 1
        positions_BS[line, place] = np.arange(ids.size)
        fold_BS[line, place] = corpus.numbers[row] % FOLDS
        start = corpus.starts[row] if corpus.starts else 0
        counted_BS[line, first + start : first + ids.size] = True
        target_BS[line, place] = corpus.targets[row] if corpus.targets else counted_BS[line, place]
        target_BS[line, first] = False
    return Batch(
        ids_BS=ids_BS,
        mask_BS=mask_BS,
        positions_BS=positions_BS,
        fold_BS=fold_BS,
        counted_BS=counted_BS,
        number_B=np.array([corpus.numbers[row] for row in rows], np.int64),
        target_BS=target_BS,
    )
