"""A routing policy as users state it: k₁ and k₂ together, k₂ also as ``E``, a gain, an ablation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moeprune.core.policy import RoutingPolicy
from moeprune.errors import UsageError

ALL = "E"
"""The word for all experts of a layer, as k₂."""

Rank = int | str
Gain = float | Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyWords:
    """What is stated of a policy; None: not stated.

    Attributes:
        k1: experts that run per token.
        k2: ranks in the denominator, or ``"E"``.
        gain: factor of every weight, or one a layer.
        ablation: its name.
        seed: of what an ablation draws.
    """

    k1: int | None = None
    k2: Rank | None = None
    gain: Gain | None = None
    ablation: str | None = None
    seed: int | None = None

    @property
    def given(self) -> bool:
        """Whether anything is stated."""
        values = (self.k1, self.k2, self.gain, self.ablation, self.seed)
        return any(value is not None for value in values)

    def policy(self, *, native: RoutingPolicy, experts: int) -> RoutingPolicy:
        """The policy; a gain or an ablation alone is of the native k₁ and k₂.

        Args:
            native: of the model.
            experts: E of the widest layer.

        Raises:
            UsageError: one of k₁ and k₂ is stated alone, a seed draws nothing, or no router takes
                a value.
        """
        k1, k2 = self.k1, self.k2
        if k1 is None and k2 is not None:
            raise UsageError(
                f"--k2 {k2} says what the weights are divided by, not how many experts run. Give "
                f"--k1 too (the model runs {native.k1})."
            )
        if k1 is not None and k2 is None:
            raise UsageError(
                f"--k1 {k1} says how many experts run, not what their weights are divided by. Give "
                f"--k2 too: {_choices(k1, native, experts)}; 'moeprune scan' tells which is best."
            )
        if self.seed is not None and self.ablation is None:
            raise UsageError(f"a seed ({self.seed}) is for an ablation, and none is named.")
        stated = {"gain": _gain(self.gain), "ablation": self.ablation, "seed": self.seed}
        return RoutingPolicy(
            k1=native.k1 if k1 is None else k1,
            k2=native.k2 if k2 is None else rank(k2, experts=experts),
            **{name: value for name, value in stated.items() if value is not None},
        )


def rank(k2: Rank, *, experts: int) -> int:
    """k₂ as a number.

    Args:
        k2: a number, or ``"E"``.
        experts: what ``"E"`` is.

    Raises:
        UsageError: another word.
    """
    if k2 == ALL:
        return experts
    if type(k2) is not int:
        raise UsageError(f"--k2 cannot be {k2!r}: give a whole number from 1, or {ALL} for all.")
    return k2


def _choices(k1: int, native: RoutingPolicy, experts: int) -> str:
    """Which k₂ a k₁ alone may have meant."""
    raw = native.k1 < experts <= native.k2  # the router does not renormalise
    own = ALL if raw else native.k2
    if k1 == native.k1:
        return f"with {own} that is the model's own routing"
    how = "lowering" if k1 < native.k1 else "raising"
    if raw:
        return f"{own} is what {how} k does by default, and leaves every weight as it is"
    return f"{k1} is what {how} k does by default, {own} keeps the model's own denominator"


def _gain(gain: Gain | None) -> Any:
    """As a policy holds it."""
    values = [gain] if gain is None or isinstance(gain, int | float) else list(gain)
    for value in values:
        if value is not None and type(value) not in (int, float):
            raise UsageError(f"--gain cannot be {value!r}: give a number above 0.")
    if gain is None or isinstance(gain, int | float):
        return None if gain is None else float(gain)
    return tuple(float(value) for value in gain)
