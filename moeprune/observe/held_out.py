"""Text that calibration did not measure, of the same source, or other text that was named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moeprune.errors import DomainError
from moeprune.observe.domains import Corpus, read_corpus
from moeprune.observe.sources import BUILTIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """How calibration read one domain.

    Attributes:
        source: its name, see :class:`moeprune.observe.sources.Source`.
        sha256: of the corpus it made.
        documents: of that corpus.
        samples: documents it drew at most, None = all.
        length: tokens of a document.
        seed: of the draw.
    """

    source: str
    sha256: str
    documents: int
    samples: int | None
    length: int
    seed: int


def held_out(
    name: str,
    source: str,
    *,
    tokenizer: Any,
    length: int,
    samples: int,
    seed: int,
    calibrated: Calibrated | None,
) -> tuple[Corpus, bool]:
    """Documents of a named source, without those that calibration drew from it.

    Whether it drew from this source at all is seen by the corpus that this makes with the same
    draw.

    Args:
        name: the domain.
        source: see :func:`moeprune.observe.sources.read_source`.
        tokenizer: of the model.
        length: a document's tokens after that many are left out.
        samples: at most that many documents.
        seed: of their draw, where calibration did not draw from the source.
        calibrated: how calibration read the domain of that name, None = it has none.

    Returns:
        The documents, and whether calibration has not seen them: it has where nothing else is left.

    Raises:
        DomainError: no document, or no token in any of them.
        UsageError: a number out of range, or a source of another kind.
    """

    def read(tokens: int, **draw: Any) -> Corpus:
        return read_corpus(name, source, tokenizer=tokenizer, length=tokens, **draw)

    if calibrated is None:
        return read(length, samples=samples, seed=seed), True
    # A running text is cut into documents of that length, so no other finds the same ones.
    own, drawn = calibrated.length, calibrated.samples
    if read(own, samples=drawn, seed=calibrated.seed).sha256 != calibrated.sha256:
        return read(length, samples=samples, seed=seed), True
    if drawn is None or read(own).total <= calibrated.documents:
        return read(own, samples=samples, seed=seed).cut(length), False
    return read(own, samples=samples, seed=calibrated.seed, skip=drawn).cut(length), True


def own_held_out(name: str, calibrated: Calibrated, **how: Any) -> Corpus:
    """What calibration left of its own source of a domain.

    Args:
        name: the domain.
        calibrated: how calibration read it.
        how: the other arguments of :func:`held_out`.

    Raises:
        DomainError: it left nothing, or its source is a file, of which only the name is known.
    """
    way_out = f"Name text with --search-text {name}=SOURCE"
    if not calibrated.source.startswith(BUILTIN):
        raise DomainError(
            f"the stats say of domain {name!r} that its text came from {calibrated.source}, not "
            f"where that lies. {way_out}; documents that calibration used are left out."
        )
    corpus, unseen = held_out(name, calibrated.source, calibrated=calibrated, **how)
    if not unseen:
        raise DomainError(
            f"calibration used all {calibrated.documents} documents of domain {name!r} "
            f"({calibrated.source}), so none is left to search by. {way_out}, or calibrate with "
            f"--samples {max(1, calibrated.documents // 2)}."
        )
    return corpus
