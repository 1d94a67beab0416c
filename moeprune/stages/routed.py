"""What an export's routers do: the source's own, k₁ and k₂ by code, or gains in weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprune.core.layout import MoeLayout
from moeprune.core.policy import RoutingPolicy
from moeprune.core.policy_words import PolicyWords
from moeprune.core.stats import CalibrationStats
from moeprune.stages.folded import FoldedGain
from moeprune.stages.folding import folded_gain, folding_warnings
from moeprune.stages.identify import OpenModel
from moeprune.stages.rerouting import policy_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """How many experts of an export run, and what their weights are divided by.

    Attributes:
        policy: k₁ and k₂ that code of the folder applies; None: none does.
        gain: what stands for k₁ and k₂ in config.json and in the weights; None: nothing.
    """

    policy: RoutingPolicy | None
    gain: FoldedGain | None

    @classmethod
    def of(
        cls,
        words: PolicyWords,
        *,
        fold_gain: str | Path | CalibrationStats | None,
        form: str,
        opened: OpenModel,
        keep: Sequence[Sequence[int]],
    ) -> Routed:
        """From k₁ and k₂ as they were asked for; errors are those of the two ways to have them."""
        layout = opened.layout
        if fold_gain is None:
            policy = policy_of(words, form, opened.index, layout, keep)
            return cls(policy=policy, gain=None)
        gain = folded_gain(fold_gain, words, layout=layout, facts=opened.facts, keep=keep)
        return cls(policy=None, gain=gain)

    @property
    def runs(self) -> RoutingPolicy | None:
        """k₁ and k₂ of the export, however they got into it; None: the source's own."""
        if self.gain is None:
            return self.policy
        return RoutingPolicy(k1=self.gain.k1, k2=self.gain.k2)

    def config_changes(self, layout: MoeLayout) -> dict[tuple[str, ...], Any]:
        """The keys of config.json that a gain brings; those of a policy belong to the form."""
        return {} if self.gain is None else {**self.gain.config_changes(layout)}

    def warnings(self, layout: MoeLayout, keep: Sequence[Sequence[int]]) -> tuple[str, ...]:
        """What is not exact about gains, one line each; the first says what was done at all."""
        return () if self.gain is None else folding_warnings(self.gain, layout, keep)
