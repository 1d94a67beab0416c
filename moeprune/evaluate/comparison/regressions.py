"""A limit for CI: which variants lost more than is allowed, and where."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moeprune.errors import MismatchError, UsageError
from moeprune.evaluate.comparison.differences import Difference
from moeprune.evaluate.comparison.variants import VariantComparison
from moeprune.plugins import known

BY = ("task", "domain", "overall")
_ROUNDING = 1e-9  # points: a loss of exactly the limit is allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What is allowed.

    Attributes:
        points: loss of accuracy, in points, that is still allowed.
        by: what is looked at: each task, each domain of each task, or all questions together.
        significant: a loss counts only where its corrected p is below 1 - level.
    """

    points: float
    by: str = "task"
    significant: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.points < math.inf:
            raise UsageError(f"a regression of {self.points} points is no limit; give 0 or more.")
        known(self.by, BY, kind="way to look for regressions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """One loss that is larger than allowed."""

    variant: str
    task: str | None
    domain: str | None
    points: float
    p: float
    p_holm: float | None

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        return asdict(self)


def regressions(variants: Sequence[VariantComparison], limit: Limit) -> tuple[Regression, ...]:
    """The losses beyond the limit, by variant, the largest first.

    Raises:
        MismatchError: a variant left questions of the base unanswered, so that it could pass by
            leaving out what it gets wrong.
        UsageError: nothing is measured in points.
    """
    for variant in variants:
        for task, missing in variant.joined.only_base.items():
            if missing:
                raise MismatchError(
                    f"{variant.name} has no answer to {missing} of the base's questions of task "
                    f"{task}, so no regression can be ruled out. Evaluate it on all of them."
                )
        if not any(True for _ in _parts(variant, limit.by)):
            raise UsageError(
                f"{variant.name} has no accuracy to compare, so no regression can be ruled out. "
                "Evaluate it on a task with right and wrong."
            )
    return tuple(
        Regression(
            variant=variant.name,
            task=task,
            domain=domain,
            points=part.points,
            p=part.p,
            p_holm=part.p_holm,
        )
        for variant in variants
        for task, domain, part in sorted(
            _parts(variant, limit.by), key=lambda found: found[2].points
        )
        if part.points < -limit.points - _ROUNDING and (part.significant or not limit.significant)
    )


def _parts(
    variant: VariantComparison, by: str
) -> Iterator[tuple[str | None, str | None, Difference]]:
    if by == "domain":
        yield from variant.parts()
    elif by == "task":
        for name, task in variant.tasks.items():
            if task.overall.scale != 1:
                yield name, None, task.overall
    elif variant.pooled is not None:
        yield None, None, variant.pooled
