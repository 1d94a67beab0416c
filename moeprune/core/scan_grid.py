"""Which (k₁, k₂) a scan tries: those that are asked for, and those without which it says nothing.

After "Halving the Activated Experts of a MoE Without Training", sections 6.2 and 9: the control
k₂ = k₁ is always there, and k₂ from k₁ over k to 2k.

E routed experts of the widest layer, k experts that the native model runs per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moeprune.core.policy import ABLATIONS, RoutingPolicy
from moeprune.core.policy_words import Rank, rank
from moeprune.errors import UsageError

NATIVE, CONTROL, GRID, GAIN, FOLDED, ABLATION = (
    "native",
    "control",
    "grid",
    "gain",
    "folded",
    "ablation",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One row of a scan.

    Attributes:
        name: of its run and folder.
        kind: ``native``: the model's own routing; ``control``: k₂ = k₁; ``grid``: another k₂;
            ``gain``: k₂ = k₁ and a stated gain; ``folded``: what ``export --fold-gain`` writes for
            this (k₁, k₂); ``ablation``.
        k1: experts that run.
        k2: ranks in the denominator.
        policy: that is applied; None: none, the model's own routing.
        default: whether it is what lowering the native top-k does by itself.
    """

    name: str
    kind: str
    k1: int
    k2: int
    policy: RoutingPolicy | None
    default: bool = False

    @property
    def compared(self) -> bool:
        """Whether it is one of those among which the best k₂ is looked for."""
        return self.kind in (CONTROL, GRID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What limits and what spans a grid.

    Attributes:
        native: the model's own k₁ and k₂.
        renormalises: whether its router divides by the sum of the k; else its own k₂ is E.
        experts: E of the widest layer, of those that stay.
        reach: the largest k₂ below E that has a meaning: what the groups of a token hold.
        least: the smallest k₁ that the family's experts can run.
        k1: that are asked for; none: k / 2.
        k2: that are asked for.
        gains: that are asked for, at k₂ = k₁.
        ablations: whether to try them too, at the native k₁ and k₂.
    """

    native: RoutingPolicy
    renormalises: bool
    experts: int
    reach: int
    least: int = 1
    k1: Sequence[int] = ()
    k2: Sequence[Rank] = ()
    gains: Sequence[float] = ()
    ablations: bool = False

    def clipped(self, k2: int) -> int:
        """k₂ as the routers can take it: beyond what the groups hold only all of them."""
        if k2 >= self.experts:
            return self.experts
        return min(k2, self.reach)

    def ranks(self, k1: int) -> list[int]:
        """The k₂ of one k₁: the control first, the others ascending."""
        k = self.native.k1
        wanted = {k1 + 1, k, 2 * k, *(rank(k2, experts=self.experts) for k2 in self.k2)}
        if not self.renormalises:
            wanted.add(self.experts)  # there lowering k leaves every weight as it is
        rest = {self.clipped(k2) for k2 in wanted} - {k1}
        return [k1, *sorted(rest)]


def grid(axes: Axes) -> tuple[Point, ...]:
    """All points but the folded ones: the native model first, then each k₁ with its control first.

    Raises:
        UsageError: a k₁ or a k₂ is no whole number from 1, or a k₁ more than there are experts.
    """
    native = axes.native
    own = axes.experts if not axes.renormalises else axes.clipped(native.k2)
    points = [Point(name=NATIVE, kind=NATIVE, k1=native.k1, k2=own, policy=None)]
    for k1 in dict.fromkeys(axes.k1 or [max(axes.least, native.k1 // 2)]):
        RoutingPolicy(k1=k1, k2=own)  # refuses what is no number
        if k1 > axes.experts:
            raise UsageError(
                f"--k1 {k1} is more than the {axes.experts} experts of a layer. Give at most that."
            )
        points += _of(axes, k1, own)
    if axes.ablations:
        points += [
            _point(ABLATION, RoutingPolicy(k1=native.k1, k2=own, ablation=ablation))
            for ablation in ABLATIONS
        ]
    return tuple({point.name: point for point in points}.values())


def folded(point: Point, policy: RoutingPolicy) -> Point:
    """What ``export --fold-gain`` makes of a point.

    Args:
        point: of the grid.
        policy: that is the folded export: the default reduction, and a gain a layer.
    """
    return Point(name=f"{point.name}_folded", kind=FOLDED, k1=point.k1, k2=point.k2, policy=policy)


def _default_k2(axes: Axes, k1: int) -> int:
    """k₂ of what lowering the native top-k to ``k1`` does by itself."""
    return k1 if axes.renormalises else axes.experts


def _of(axes: Axes, k1: int, own: int) -> Iterator[Point]:
    for k2 in axes.ranks(k1):
        policy = RoutingPolicy(k1=k1, k2=k2)
        if (k1, k2) == (axes.native.k1, own):
            continue  # the native model itself, which is there
        default = k2 == _default_k2(axes, k1)
        yield _point(CONTROL if k2 == k1 else GRID, policy, default=default)
    for gain in axes.gains:
        yield _point(GAIN, RoutingPolicy(k1=k1, k2=k1, gain=gain))


def _point(kind: str, policy: RoutingPolicy, *, default: bool = False) -> Point:
    name = f"k1-{policy.k1}_k2-{policy.k2}"
    if kind == GAIN:
        name += f"_gain-{float(policy.gains[0])}"
    elif kind == ABLATION:
        name = f"ablation-{policy.ablation}"
    return Point(name=name, kind=kind, k1=policy.k1, k2=policy.k2, policy=policy, default=default)
