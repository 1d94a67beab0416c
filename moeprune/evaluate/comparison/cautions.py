"""What is to be known before a comparison is believed; one line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from moeprune.core.guard import WARN, Answered
from moeprune.core.run import Run
from moeprune.evaluate.comparison.beside import Beside
from moeprune.evaluate.comparison.joining import Joined
from moeprune.evaluate.comparison.variants import VariantComparison
from moeprune.evaluate.guards import budget, near_chance, unbalanced_letters

_OWN = {"identical", "resolution"}  # a comparison says better itself, with the flips that were seen
_SEEN = (near_chance, unbalanced_letters, budget)  # need nothing but the answers
_AGAIN = {"near-chance", "unbalanced-letters", "budget"}  # so are asked again, of these runs alone


def cautions(
    base: Run,
    variants: Sequence[Run],
    joined: Sequence[Joined],
    compared: Sequence[VariantComparison],
    *,
    same: Sequence[bool],
    ranks: Sequence[Beside],
) -> tuple[str, ...]:
    """Everything there is to warn of, the base first, then by variant."""
    found = [*_guards((base, *variants), {task for pairs in joined for task in pairs.pairs})]
    for variant, pairs, itself in zip(variants, joined, same, strict=False):
        found += _left_out(base, variant, pairs)
        found += _lacking_seeds(base, pairs)
        found += _same(base, variant, pairs, itself=itself)
        found += _other_numbers(base, variant)
    found += _not_compared(joined, compared)
    found += _disagree(ranks, base, compared)
    return tuple(dict.fromkeys(found))


def _not_compared(joined: Sequence[Joined], compared: Sequence[VariantComparison]) -> Iterator[str]:
    """Tasks without right and wrong, metric or likelihood that both runs have."""
    for pairs, variant in zip(joined, compared, strict=True):
        for task, own in pairs.pairs.items():
            if task not in variant.tasks and task not in variant.perplexity:
                have = sorted({name for pair in own for name in pair[0].metrics})
                way_out = f"; --metric names one of {', '.join(have)}" if have else ""
                yield f"task {task} has no right and wrong, and is not compared{way_out}."


def _left_out(base: Run, variant: Run, joined: Joined) -> Iterator[str]:
    for task, count in joined.only_base.items():
        if task not in joined.pairs:
            yield f"{variant.name} was not asked task {task}."
        elif count:
            yield _lacks(task, count, base, variant)
    for task, count in joined.only_variant.items():
        if count:
            yield _lacks(task, count, variant, base)


def _lacks(task: str, count: int, one: Run, other: Run) -> str:
    whose = f"{count} answers of {one.name} have" if count > 1 else f"an answer of {one.name} has"
    left = "are" if count > 1 else "is"
    return f"task {task}: {whose} no counterpart in {other.name}, and {left} left out."


def _lacking_seeds(base: Run, joined: Joined) -> Iterator[str]:
    """Questions that were asked fewer times than others: they cannot be compared with them."""
    for task, pairs in joined.pairs.items():
        times = Counter(one.id for one, _ in pairs)
        seeds = len({one.seed for one, _ in pairs})
        short = sum(count < seeds for count in times.values())
        if short:
            yield (
                f"task {task}: {short} of {len(times)} questions of {base.name} were asked fewer "
                f"than {seeds} times, and are left out."
            )


def _same(base: Run, variant: Run, joined: Joined, *, itself: bool) -> Iterator[str]:
    """A patch that was never applied answers everything as the base does."""
    if itself:
        yield f"{variant.name} is the base itself; every difference is 0."
        return
    pairs = [pair for task in joined.pairs.values() for pair in task]
    if not all(one == other for one, other in pairs):
        return
    probes = [run.probe for run in (base, variant)]
    comparable = all(probe.get("logits") for probe in probes)
    comparable = comparable and probes[0].get("inputs") == probes[1].get("inputs")
    if not comparable:
        yield (
            f"{variant.name} answers every question ({len(pairs)}) exactly as {base.name} does: "
            "check that it is another model, and that the plan was applied."
        )
    elif probes[0]["logits"] == probes[1]["logits"]:
        yield (
            f"{variant.name} gives the same answers and the same logits as {base.name}, bit for "
            "bit: nothing was changed in the model that was evaluated."
        )


def _other_numbers(base: Run, variant: Run) -> Iterator[str]:
    one, other = (run.provenance.get("dtype") for run in (base, variant))
    if one and other and one != other:
        yield (
            f"{variant.name} was run in {other} and {base.name} in {one}: part of the difference "
            "may be the number type's."
        )


def _guards(runs: Sequence[Run], tasks: Collection[str]) -> Iterator[str]:
    """What guards found when the runs were made, and what can be seen in any answers.

    Of one guard and task one line, the base's where it is the base's too: the protocol is shared.
    """
    lines: dict[tuple[str, str], dict[str, None]] = {}
    for run in runs:
        for guard in run.guards:
            name, task, text = (guard.get(key) for key in ("name", "task", "text"))
            told = isinstance(text, str) and guard.get("level") == WARN
            if told and name not in _OWN | _AGAIN and (not task or task in tasks):
                lines.setdefault((str(name), str(task)), {})[" ".join(str(text).split())] = None
    seen = Answered(base=runs[0], variants=tuple(runs[1:]))
    for guard_of in _SEEN:
        for finding in guard_of.after(seen):
            if finding.task in tasks:
                lines.setdefault((finding.name, finding.task), {})[finding.text] = None
    for texts in lines.values():
        first, *others = texts
        yield first + (f" ({len(others)} more of this kind.)" if others else "")


def _disagree(
    ranks: Sequence[Beside], base: Run, compared: Sequence[VariantComparison]
) -> Iterator[str]:
    """Perplexity one way and accuracy the other: over all questions, or surely on a task."""
    for variant in compared:
        for texts, perplexity in variant.perplexity.items():
            own = [one for one in ranks if one.texts == texts]
            told = [
                one
                for one in own
                # Of several tasks, a change that may be chance counts in all of them together only.
                if variant.name in (one.disagree if one in own[:1] else one.surely)
            ]
            if not told:
                continue
            ratio = perplexity.ratio - 1
            yield (
                f"{variant.name}: perplexity of {texts} is {abs(ratio):.2%} "
                f"{'higher' if ratio > 0 else 'lower'} than {base.name}'s, and accuracy is "
                f"{'higher' if ratio > 0 else 'lower'} too: "
                f"{', '.join(_moved(variant, one.task) for one in told)}. Do not choose by "
                "perplexity."
            )


def _moved(variant: VariantComparison, task: str | None) -> str:
    part = variant.pooled if task is None else variant.tasks[task].overall
    assert part is not None
    return f"{part.points:+.2f} points on {task or 'all tasks'}"
