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
    from moeprune.observe.batches import Share
    from moeprune.observe.domains import Corpus
    from moeprune.observe.prefill import Due, Step
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
    passes: Callable[[Sequence[Due]], Generator[Mapping[int, Step]]],
    share: Callable[[Corpus], Share],
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
        passes: adds to the sums of the parts that are due; see
            :func:`moeprune.observe.prefill.one_by_one`.
        share: says which batches of a part are run here.
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
    from moeprune.observe.prefill import Due

    parts = [corpus for each in rounds for corpus in each]
    journal.settle("text", {name: _content(parts, name) for name in _names(parts)})
    total = sum(corpus.num_tokens for corpus in parts)
    for name in _names(parts):
        journal.domains.setdefault(name, Measured())

    def arrays() -> dict[str, Mapping[str, Array]]:
        return {name: domain.arrays for name, domain in journal.domains.items() if domain.arrays}

    def report(within: int = 0) -> int:
        done = sum(domain.tokens for domain in journal.domains.values())
        said = note(arrays()) if note is not None and done else ""
        on_progress(Progress("calibrate", done + within, total, "tokens", said))
        return done

    report()
    for number, each in enumerate(rounds):
        due = [
            Due(
                corpus=corpus,
                sums=_resumed(sums(), domain),
                skip=domain.batches,
                share=share(corpus),
            )
            for corpus in each
            if (domain := journal.domains[corpus.name]).rounds <= number
        ]
        with journal.sound(), closing(passes(due)) as steps:
            for added in steps:
                for place, step in added.items():
                    domain = journal.domains[due[place].corpus.name]
                    domain.batches += step.batches
                    domain.tokens += step.tokens
                    domain.arrays = due[place].sums.arrays()
                done = report(sum(step.within for step in added.values()))
                if not any(step.batches for step in added.values()):
                    continue
                if stop():
                    raise _stopped(journal, done, total)
                journal.keep()
        for item in due:
            domain = journal.domains[item.corpus.name]
            domain.rounds, domain.batches = number + 1, 0
            domain.arrays = item.sums.arrays()
        if look is not None:
            if len(journal.curve) <= number:
                journal.curve.append(look(arrays()))
            if journal.curve[number]["enough"]:
                break
    return arrays()


def _resumed(sums: FoldedSums, domain: Measured) -> FoldedSums:
    """Sums that go on from those of the journal."""
    if domain.arrays:
        sums.restore(domain.arrays)
    return sums


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
        (sha256_of(corpus.documents, corpus.targets), corpus.numbers, corpus.starts)
        for corpus in parts
        if corpus.name == name
    ]
    return sha256_bytes(repr(told).encode())
