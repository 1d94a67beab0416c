"""How long the completions of a domain were, and how many hit the budget: adds up over shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moeprune.errors import StatsError

_NEAR = 0.9  # of the budget: a longest per cent above it says that more was about to be cut
_MANY = 0.01  # completions cut, where the budget is not known


@dataclass(frozen=True, slots=True)
class Completions:
    """Lengths of the completions of one domain, in tokens.

    Attributes:
        lengths: (length, how many completions) pairs, lengths ascending.
        cut: completions that did not end by themselves.
    """

    lengths: tuple[tuple[int, int], ...]
    cut: int

    @classmethod
    def of(cls, completions: Iterable[tuple[int, bool]]) -> Completions:
        """From the length of each completion and whether it ended by itself."""
        found = list(completions)
        counts = Counter(length for length, _ in found)
        return cls(tuple(sorted(counts.items())), sum(not finished for _, finished in found))

    @property
    def number(self) -> int:
        """Completions."""
        return sum(count for _, count in self.lengths)

    @property
    def cut_share(self) -> float:
        """Share of the completions that did not end by themselves."""
        return self.cut / self.number if self.number else 0.0

    def percentile(self, percent: int) -> int:
        """The least length that ``percent`` % of the completions do not exceed; 0 of none."""
        due, seen = percent * self.number, 0
        for length, count in self.lengths:
            seen += 100 * count
            if seen >= due:
                return length
        return 0

    def plus(self, other: Completions) -> Completions:
        """Both together."""
        lengths = Counter(dict(self.lengths))
        lengths.update(dict(other.lengths))
        return Completions(tuple(sorted(lengths.items())), self.cut + other.cut)

    def warning(self, domain: str, budget: int | None) -> str | None:
        """One line where many completions were, or were about to be, cut.

        Args:
            domain: whose they are.
            budget: tokens that a completion could have; None: not known.
        """
        longest = self.percentile(99)
        near = self.cut_share >= _MANY if budget is None else longest >= _NEAR * budget
        if not self.number or not near:
            return None
        lost = "what the model writes later is not measured"
        if budget is None:
            return (
                f"domain {domain!r}: {self.cut_share:.1%} of the completions were cut, and 99 % "
                f"have up to {longest} tokens: {lost}. Generate with a larger budget."
            )
        return (
            f"domain {domain!r}: {self.cut_share:.1%} of the completions were cut, and 99 % have "
            f"up to {longest} tokens of {budget}: {lost}. Give a larger --max-new-tokens."
        )

    def to_json(self) -> dict[str, Any]:
        """As the stats keep it."""
        return {"cut": self.cut, "lengths": [list(pair) for pair in self.lengths]}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Completions:
        """The inverse of :meth:`to_json`.

        Raises:
            StatsError: it is nothing that :meth:`to_json` gives.
        """
        try:
            lengths = tuple((int(length), int(count)) for length, count in body["lengths"])
            return cls(tuple(sorted(lengths)), int(body["cut"]))
        except (KeyError, TypeError, ValueError) as problem:
            raise StatsError(
                f"the stats state completions {str(body)[:80]!r}; calibrate again."
            ) from problem


def completions_of(provenance: Mapping[str, Any]) -> dict[str, Completions]:
    """Domain -> its completions, of stats made in decode mode; of others nothing.

    Raises:
        StatsError: they are malformed.
    """
    body = provenance.get("completions", {})
    if not isinstance(body, Mapping):
        raise StatsError(f"the stats state completions {str(body)[:80]!r}; calibrate again.")
    return {name: Completions.from_json(entry) for name, entry in body.items()}


def completion_warnings(provenance: Mapping[str, Any]) -> tuple[str, ...]:
    """One line for each domain of which many completions were cut."""
    budget = provenance.get("max_new_tokens")
    found = completions_of(provenance)
    lines = (found[name].warning(name, budget) for name in sorted(found))
    return tuple(line for line in lines if line is not None)
