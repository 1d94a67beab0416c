"""Text that calibration did not measure, of the same source, or other text that was named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moeprune.errors import DomainError, UsageError
from moeprune.observe.domains import Corpus, read_corpus
from moeprune.observe.sources import named_again, read_source, streamed


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
        chat_template: chats were written as the tokenizer's template does.
        answers: it took the loss of answers.
    """

    source: str
    sha256: str
    documents: int
    samples: int | None
    length: int
    seed: int
    chat_template: bool = True
    answers: bool = False


def held_out(
    name: str,
    source: str,
    *,
    tokenizer: Any,
    length: int,
    samples: int,
    seed: int,
    calibrated: Mapping[str, Calibrated],
) -> tuple[Corpus, bool]:
    """Documents of a named source, without those that calibration drew from it.

    Whether it drew from this source at all is seen by the corpus that this makes with the same
    draw. It is looked for under the same domain name, and under any other whose source was called
    the same.

    Args:
        name: the domain.
        source: see :func:`moeprune.observe.sources.read_source`.
        tokenizer: of the model.
        length: a document's tokens after that many are left out.
        samples: at most that many documents.
        seed: of their draw, where calibration did not draw from the source.
        calibrated: domain -> how calibration read it.

    Returns:
        The documents, and whether calibration has not seen them: it has where nothing else is left.

    Raises:
        DomainError: no document, or no token in any of them.
        UsageError: a number out of range, a source of another kind, or a running text that
            calibration cut into shorter documents.
    """
    chats = all(used.chat_template for used in calibrated.values())

    def read(tokens: int, **draw: Any) -> Corpus:
        how = {"tokenizer": tokenizer, "length": tokens, "chat_template": chats}
        return read_corpus(name, source, **how, **draw)

    found = None if streamed(source) else read_source(source)
    known_as = source if found is None else found.name
    for domain, used in calibrated.items():
        if domain != name and used.source != known_as:
            continue
        if found is None and used.samples is None:
            continue  # it read something else: of a stream a number of documents is drawn
        same = read(used.length, samples=used.samples, seed=used.seed, answers=used.answers)
        if same.sha256 == used.sha256:
            break
    else:
        return read(length, samples=samples, seed=seed), True
    if found is None:
        if same.total < (used.samples or 0):  # calibration read the stream to its end
            return read(length, samples=samples, seed=seed), False
        return read(length, samples=samples, seed=used.seed, skip=used.samples), True
    # A running text is cut into documents of that length, so no other finds the same ones.
    own = used.length if found.running else length
    if length > own:
        raise UsageError(
            f"--search-length {length}: calibration cut {source} into documents of {own} tokens, "
            f"which cannot be told apart in longer ones. Use {own} or less, or name other text."
        )
    if used.samples is None or read(own).total <= used.documents:
        return read(own, samples=samples, seed=seed).cut(length), False
    return read(own, samples=samples, seed=used.seed, skip=used.samples).cut(length), True


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
    if not named_again(calibrated.source):
        raise DomainError(
            f"the stats say of domain {name!r} that its text came from {calibrated.source}, not "
            f"where that lies. {way_out}; documents that calibration used are left out."
        )
    corpus, unseen = held_out(name, calibrated.source, calibrated={name: calibrated}, **how)
    if not unseen:
        raise DomainError(
            f"calibration drew all {calibrated.documents} documents of domain {name!r} "
            f"({calibrated.source}), so none is left to search by. {way_out}, or calibrate with "
            f"--samples {max(1, calibrated.documents // 2)}."
        )
    return corpus
