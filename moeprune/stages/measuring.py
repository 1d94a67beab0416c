"""The long part of calibrate: domain by domain, saved on the way, stopped where it is asked to."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from moeprune.artefact import sha256_bytes
from moeprune.core.domain_stats import Array
from moeprune.core.progress import OnProgress, Progress
from moeprune.errors import StoppedError
from moeprune.stages.journal import Journal, Measured

if TYPE_CHECKING:
    from moeprune.observe.domains import Corpus
    from moeprune.observe.prefill import Step
    from moeprune.observe.sums import FoldedSums

Stop = Callable[[], bool]
"""Asked after every batch: whether to end now, with what is measured kept."""


def never() -> bool:
    """Go on to the end."""
    return False


def measured(
    corpora: Sequence[Corpus],
    *,
    passes: Callable[..., Generator[Step]],
    sums: Callable[[], FoldedSums],
    journal: Journal,
    on_progress: OnProgress,
    stop: Stop,
) -> list[Mapping[str, Array]]:
    """The sums of every domain.

    Args:
        corpora: the domains.
        passes: given a domain, sums and (``skip``) how many batches they hold, adds the others; see
            :func:`moeprune.observe.prefill.passes`.
        sums: makes empty ones.
        journal: what was measured before; it is kept up to date.
        on_progress: told of the tokens measured, of all domains.
        stop: asked after each step.

    Raises:
        StoppedError: ``stop`` said so; the journal is saved.
        MoePruneError: see ``passes``.
    """
    journal.settle("text", {corpus.name: _content(corpus) for corpus in corpora})
    total = sum(corpus.num_tokens for corpus in corpora)

    def report() -> int:
        done = sum(journal.domains[corpus.name].tokens for corpus in corpora)
        on_progress(Progress("calibrate", done, total, "tokens"))
        return done

    for corpus in corpora:
        journal.domains.setdefault(corpus.name, Measured())
    report()
    for corpus in corpora:
        domain = journal.domains[corpus.name]
        if domain.whole:
            continue
        own = sums()
        if domain.arrays:
            own.restore(domain.arrays)
        domain.arrays = own.arrays()
        with journal.sound(), closing(passes(corpus, own, skip=domain.batches)) as steps:
            for step in steps:
                domain.batches += step.batches
                domain.tokens += step.tokens
                domain.arrays = own.arrays()
                done = report()
                if stop():
                    raise _stopped(journal, done, total)
                if journal.due():
                    journal.save()
        domain.whole = True
    return [journal.domains[corpus.name].arrays for corpus in corpora]


def _stopped(journal: Journal, done: int, total: int) -> StoppedError:
    journal.save()
    kept = (
        f"{journal.path} holds it: the same command goes on from there"
        if journal.path is not None
        else "nothing is kept, as no output was named"
    )
    return StoppedError(f"stopped after {done:,} of {total:,} tokens; {kept}.")


def _content(corpus: Corpus) -> str:
    """All that decides what is measured of a domain: tokens, their numbers, what is counted."""
    from moeprune.observe.domains import sha256_of

    told: list[Any] = [sha256_of(corpus.documents), list(corpus.numbers), list(corpus.starts)]
    return sha256_bytes(repr(told).encode())
