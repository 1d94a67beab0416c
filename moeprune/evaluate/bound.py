"""Expected acceptance from sums over batches, and when a genome can be given up.

A batch b of domain d contributes the acceptance of its tokens, between 0 and the probability mass
kept for them. Before a batch has run, its kept mass is the most it can add. Both objectives rise
with every batch's sum, so the same formula over what is known and what is possible is an upper
bound: a genome whose bound is below what is asked for is below it.

B batches, D domains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from math import fsum

MEAN = "mean"
WORST = "worst-domain"
OBJECTIVES: Mapping[str, str] = {
    MEAN: "the mean over the domains",
    WORST: "the domain with the lowest",
}

# Sums of different kinds are compared: rounding must never make a bound of an equal value.
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What sums over batches mean.

    Attributes:
        domain_B: index of each batch's domain.
        mass_B: probability mass kept for the batch's tokens: the most it can be accepted.
        tokens_D: scored tokens of each domain, none 0.
        objective: of ``OBJECTIVES``.
    """

    domain_B: tuple[int, ...]
    mass_B: tuple[float, ...]
    tokens_D: tuple[int, ...]
    objective: str

    def __post_init__(self) -> None:
        assert self.objective in OBJECTIVES
        assert all(tokens > 0 for tokens in self.tokens_D)
        assert set(self.domain_B) == set(range(len(self.tokens_D)))

    def by_domain(self, sum_B: Sequence[float]) -> tuple[float, ...]:
        """(D,) mean acceptance of each domain's tokens; the order of batches changes no bit."""
        parts: list[list[float]] = [[] for _ in self.tokens_D]
        for domain, value in zip(self.domain_B, sum_B, strict=True):
            parts[domain].append(value)
        return tuple(fsum(part) / tokens for part, tokens in zip(parts, self.tokens_D, strict=True))

    def value(self, sum_B: Sequence[float]) -> float:
        """The objective."""
        domain_D = self.by_domain(sum_B)
        if self.objective == WORST:
            return min(domain_D)
        return fsum(domain_D) / len(domain_D)

    def upper(self, known: Mapping[int, float]) -> float:
        """The most the objective can be, given the sums of some batches."""
        return self.value([known.get(b, mass) for b, mass in enumerate(self.mass_B)])

    def order(self, sum_B: Sequence[float]) -> tuple[int, ...]:
        """Batches in the order in which a genome like this one is given up soonest.

        Every batch costs the same layers, so those that lose most come first; of the worst domain,
        whose bound alone decides, all before the next domain's. Equal ones: the earlier batch.
        """
        domain_D = self.by_domain(sum_B)

        def key(batch: int) -> tuple[float, float, int]:
            domain = self.domain_B[batch]
            lost = (self.mass_B[batch] - sum_B[batch]) / self.tokens_D[domain]
            return (domain_D[domain] if self.objective == WORST else 0.0, -lost, batch)

        return tuple(sorted(range(len(sum_B)), key=key))


def race(
    ledger: Ledger,
    known: MutableMapping[int, float],
    *,
    order: Sequence[int],
    run: Callable[[int], float],
    at_least: float,
) -> float | None:
    """Run batches until the value is known, or known to be below ``at_least``.

    Args:
        ledger: what the sums mean.
        known: batch -> sum, of batches that have run; filled.
        order: every batch once.
        run: gives the sum of a batch.
        at_least: what the value must reach.

    Returns:
        The value, which depends on neither ``order`` nor ``at_least``; or None: it is below.
    """
    for batch in order:
        if batch in known:
            continue
        if ledger.upper(known) < at_least - _SLACK:
            return None
        known[batch] = run(batch)
    return ledger.value([known[batch] for batch in range(len(order))])
