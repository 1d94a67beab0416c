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


Look = Callable[[Mapping[str, Mapping[str, Array]]], dict[str, Any]]
"""What is noted of the sums after a round; ``enough``: whether to read no more."""


def never() -> bool:
    """Go on to the end."""
    return False


def measured(
    rounds: Sequence[Sequence[Corpus]],
    *,
    passes: Callable[..., Generator[Step]],
    sums: Callable[[], FoldedSums],
    journal: Journal,
    on_progress: OnProgress,
    stop: Stop,
    look: Look | None = None,
    note: Callable[[Mapping[str, Mapping[str, Array]]], str] | None = None,
) -> dict[str, Mapping[str, Array]]:
    """The sums of every domain.

    Args:
        rounds: parts of the domains; those of one round are measured before those of the next.
        passes: given a part, sums and (``skip``) how many of its batches they hold, adds the
            others; see :func:`moeprune.observe.prefill.passes`.
        sums: makes empty ones.
        journal: what was measured before; it is kept up to date.
        on_progress: told of the tokens measured, of all domains.
        stop: asked after each step.
        look: given domain -> sums after each round, says what is to be noted of them, and whether
            that is enough.
        note: of domain -> sums, for people, at each report.

    Returns:
        Domain -> field -> sums, of the rounds that were measured.

    Raises:
        StoppedError: ``stop`` said so; the journal is saved.
        MoePruneError: see ``passes``.
    """
    parts = [corpus for each in rounds for corpus in each]
    journal.settle("text", {name: _content(parts, name) for name in _names(parts)})
    total = sum(corpus.num_tokens for corpus in parts)
    for name in _names(parts):
        journal.domains.setdefault(name, Measured())

    def arrays() -> dict[str, Mapping[str, Array]]:
        return {name: domain.arrays for name, domain in journal.domains.items() if domain.arrays}

    def report() -> int:
        done = sum(domain.tokens for domain in journal.domains.values())
        said = note(arrays()) if note is not None and done else ""
        on_progress(Progress("calibrate", done, total, "tokens", said))
        return done

    report()
    for number, each in enumerate(rounds):
        for corpus in each:
            domain = journal.domains[corpus.name]
            if domain.rounds > number:
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
            domain.rounds, domain.batches = number + 1, 0
        if look is not None:
            if len(journal.curve) <= number:
                journal.curve.append(look(arrays()))
            if journal.curve[number]["enough"]:
                break
    return arrays()


def _names(parts: Sequence[Corpus]) -> list[str]:
    return list(dict.fromkeys(corpus.name for corpus in parts))


def _stopped(journal: Journal, done: int, total: int) -> StoppedError:
    journal.save()
    kept = (
        f"{journal.path} holds it: the same command goes on from there"
        if journal.path is not None
        else "nothing is kept, as no output was named"
    )
    return StoppedError(f"stopped after {done:,} of {total:,} tokens; {kept}.")


def _content(parts: Sequence[Corpus], name: str) -> str:
    """All that decides what is measured of a domain: tokens, their numbers, what is counted."""
    from moeprune.observe.domains import sha256_of

    told = [
        (sha256_of(corpus.documents), corpus.numbers, corpus.starts)
        for corpus in parts
        if corpus.name == name
    ]
    return sha256_bytes(repr(told).encode())
