"""How many experts run per token, and what their weights are divided by: k₁ and k₂.

k₁ experts run; their weights are π_i / Σ_{top k₂} π_j. The native model is (k, k), or (k, E) where
its family does not renormalise. After "Halving the Activated Experts of a MoE Without Training",
section 4; the ablations are those of section 3, the gain is that of section 7.1.

L MoE layers, E routed experts of a layer, k experts that the native model runs per token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from moeprune.errors import UsageError

ABLATIONS = ("uniform", "sampled", "random")
"""uniform: the k₁ experts get equal weights; sampled: k₁ experts are drawn by their probabilities;
random: any k₁ are drawn. The weights of a token keep their sum, and drawn experts their ratios."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPolicy:
    """What routers do in place of their native top-k.

    Attributes:
        k1: experts that run per token.
        k2: the weights are divided by the probability of the top k₂; at least a layer's E: by that
            of all of them.
        gain: factor of every weight, or (L,) one for each MoE layer.
        ablation: None, or one of ``ABLATIONS``.
        seed: of what an ablation draws.

    Raises:
        UsageError: a value that no router can take.
    """

    k1: int
    k2: int
    gain: float | tuple[float, ...] = 1.0
    ablation: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("k1", self.k1), ("k2", self.k2)):
            if type(value) is not int or value < 1:
                raise UsageError(f"--{name} cannot be {value!r}: give a whole number from 1.")
        numbers = all(isinstance(gain, int | float) for gain in self.gains)
        if not (numbers and all(0 < gain < math.inf for gain in self.gains)):
            raise UsageError(f"--gain cannot be {self.gain!r}: give a number above 0.")
        if self.ablation is not None and self.ablation not in ABLATIONS:
            raise UsageError(
                f"there is no ablation {self.ablation!r}: give one of {', '.join(ABLATIONS)}."
            )

    @property
    def gains(self) -> tuple[float, ...]:
        """The factors: one for all layers, or (L,)."""
        return self.gain if isinstance(self.gain, tuple) else (self.gain,)

    @property
    def label(self) -> str:
        """For tables: ``k1=4 k2=16``."""
        parts = [f"k1={self.k1}", f"k2={self.k2}"]
        if isinstance(self.gain, tuple):
            parts.append("gain per layer")
        elif self.gain != 1.0:
            parts.append(f"gain={self.gain:g}")
        return " ".join([*parts, *filter(None, [self.ablation])])

    def to_json(self) -> dict[str, Any]:
        """Plain types; what is as usual is left out."""
        body: dict[str, Any] = {"k1": self.k1, "k2": self.k2}
        if self.gain != 1.0:
            body["gain"] = list(self.gain) if isinstance(self.gain, tuple) else self.gain
        if self.ablation is not None:
            body |= {"ablation": self.ablation, "seed": self.seed}
        return body
