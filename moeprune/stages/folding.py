"""The gain of k₁ and k₂ in the weights themselves, for runtimes that know one number of experts.

Exact k₁ and k₂ divide a token's k₁ weights by the mass of its own top k₂. A runtime that divides by
the mass of the k₁ chosen makes them larger by the token's m_k₂ / m_k₁. A constant a layer takes the
mean of that back: every output of its routed experts is multiplied by Σ m_k₁ / Σ m_k₂. Where a
router does not renormalise, k₂ = E changes no weight, and another k₂ divides by its mean mass.

L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moeprune.architectures import output_maps
from moeprune.artefact import sha256_file
from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.scaling import as_factor
from moeprune.core.facts import ModelFacts
from moeprune.core.gains import rank_profile
from moeprune.core.layout import MoeLayout, TensorInfo
from moeprune.core.policy import RoutingPolicy
from moeprune.core.stats import CalibrationStats
from moeprune.errors import CheckpointError, MismatchError, UnsupportedModelError
from moeprune.quant import multipliers, stored_format

# What routers add to what they sort, and not to what they weigh by.
_SELECTION_BIASES = ("e_score_correction_bias", "expert_bias", "router_bias", "balancing_biases")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedGain:
    """k₁, and a factor of each layer's experts in place of k₂.

    Attributes:
        k1: experts that run, which config.json states.
        k2: what the factors stand for.
        gains: (L,) float32 numbers.
        stats_sha256: of the stats file that they are from; None: stats in memory.
    """

    k1: int
    k2: int
    gains: tuple[float, ...]
    stats_sha256: str | None

    def policy(self, layout: MoeLayout) -> RoutingPolicy:
        """What routers with these gains do to the weights: the same as the folded export."""
        k2 = self.k1 if layout.renormalises else max(layout.num_experts)
        return RoutingPolicy(k1=self.k1, k2=k2, gain=self.gains)

    def config_changes(self, layout: MoeLayout) -> dict[tuple[str, ...], int]:
        """Path in config.json -> k₁, of every key that states how many experts run."""
        return dict.fromkeys(layout.top_k_keys, self.k1)

    def factors(
        self, index: CheckpointIndex, layout: MoeLayout, staying: Mapping[str, TensorInfo]
    ) -> dict[str, float]:
        """Stored tensor -> what its values are multiplied by; others stay as they are.

        Args:
            index: the source.
            layout: of the source, next-token layers included: they follow the last layer.
            staying: its tensors that the export has in some form.

        Raises:
            UnsupportedModelError: experts are stored so that a gain has no place to go.
        """
        stored = stored_format(index.config)
        found: dict[str, float] = {}
        for linear in output_maps(layout, staying):
            gain = self.gains[linear.row]
            if gain == 1.0:
                continue
            for name, power in multipliers(stored, linear.parts, staying).items():
                found[name] = gain if power > 0 else as_factor(1 / gain)
        return found

    def to_json(self) -> dict[str, Any]:
        """What moeprune.json says under ``folded_gain``."""
        return {
            "k1": self.k1,
            "k2": self.k2,
            "gains": list(self.gains),
            "stats": self.stats_sha256,
            "approximation": "a constant a layer stands for each token's own m_k1 / m_k2",
        }

    @classmethod
    def from_json(cls, body: Any, *, path: Path) -> FoldedGain:
        """Rebuild from :meth:`to_json`'s object.

        Raises:
            CheckpointError: it is malformed.
        """
        try:
            made = cls(
                k1=body["k1"],
                k2=body["k2"],
                gains=tuple(body["gains"]),
                stats_sha256=body["stats"],
            )
            good = all(type(k) is int and k > 0 for k in (made.k1, made.k2)) and all(
                type(gain) is float and as_factor(gain) == gain for gain in made.gains
            )
        except (KeyError, TypeError, UnsupportedModelError):
            good = False
        if not good:
            raise CheckpointError(f"{path}: folded_gain is malformed. Export again.")
        return made


def folded_gain(
    stats: str | Path | CalibrationStats,
    policy: RoutingPolicy,
    *,
    layout: MoeLayout,
    facts: ModelFacts,
    keep: Sequence[Sequence[int]],
) -> FoldedGain:
    """The gains that stand for ``policy``.

    Args:
        stats: of this model, unpruned.
        policy: k₁ and k₂, checked against the model.
        layout: of the model.
        facts: of the model.
        keep: L sequences of the ids that stay.

    Raises:
        StatsError: the stats cannot be read.
        MismatchError: they are of another model.
        UnsupportedModelError: no constant can stand for k₂ in this family.
    """
    sha256 = None
    if not isinstance(stats, CalibrationStats):
        path = Path(stats)
        stats, sha256 = CalibrationStats.load(path), sha256_file(path)
    _check_same(stats.model, facts)
    _check_family(layout)
    k1, k2 = policy.k1, policy.k2
    profile = rank_profile(stats)
    whole = max(layout.num_experts)
    found = []
    for row, ids in enumerate(keep):
        rank = whole if k2 >= len(ids) else k2
        if layout.renormalises:
            gain = float(profile.gain_L(k1, rank)[row])
        elif rank == whole:
            gain = 1.0
        else:
            _check_scores(layout, k2)
            gain = 1 / float(profile.top_mass_L(rank)[row])
        found.append(as_factor(gain))
    if layout.renormalises and layout.extra_rows and any(gain != 1.0 for gain in found):
        raise UnsupportedModelError(
            f"--fold-gain cannot stand for --k2 {k2}: routers of {layout.model_type} divide shared "
            "experts by the same sum, and those have weights of their own. Leave --fold-gain out."
        )
    return FoldedGain(k1=k1, k2=k2, gains=tuple(found), stats_sha256=sha256)


def folded(edits: Sequence[TensorEdit], factors: Mapping[str, float]) -> list[TensorEdit]:
    """The edits with their factors; experts of padding, which are zero, have none."""
    return [
        edit
        if edit.source not in factors or edit.ids == ()
        else replace(edit, factor=factors[edit.source])
        for edit in edits
    ]


def folding_warnings(
    gain: FoldedGain, layout: MoeLayout, keep: Sequence[Sequence[int]]
) -> tuple[str, ...]:
    """What is not exact about it, one line each."""
    if all(one == 1.0 for one in gain.gains):
        return ()
    least, most = min(gain.gains), max(gain.gains)
    lines = [
        f"--fold-gain: weights are multiplied by {least:.3f} to {most:.3f}, a constant a layer, in "
        f"place of each token's own ratio for k2 = {gain.k2}. Measure what it costs."
    ]
    biased = any(
        rule.role == "router" and name.rpartition(".")[2] in _SELECTION_BIASES
        for name, rule in layout.tensors.items()
    )
    if biased or layout.num_groups > 1:
        lines.append(
            "the gains are of the likeliest experts; this router chooses by "
            f"{'groups' if layout.num_groups > 1 else 'biased scores'}, so its own ratio is "
            "another one."
        )
    if any(len(ids) < count for ids, count in zip(keep, layout.num_experts, strict=True)):
        lines.append(
            "the gains are those of the unpruned model: stats by rank do not say which ranks the "
            "removed experts held."
        )
    return tuple(lines)


def _check_same(mine: ModelFacts, facts: ModelFacts) -> None:
    if mine.fingerprint != facts.fingerprint or mine.num_experts != facts.num_experts:
        raise MismatchError(
            f"--fold-gain: the stats are of {mine.name} (fingerprint {mine.fingerprint[:12]}), "
            f"this is {facts.name} ({facts.fingerprint[:12]}). Give stats of this model."
        )


def _check_family(layout: MoeLayout) -> None:
    table = next((name for name, rule in layout.tensors.items() if rule.role == "table"), None)
    if table is not None:
        raise UnsupportedModelError(
            f"--fold-gain cannot change how many experts {layout.model_type} runs: {table} looks "
            f"up {layout.top_k} of them for each token. Leave --fold-gain out."
        )


def _check_scores(layout: MoeLayout, k2: int) -> None:
    """A router that does not renormalise, and is asked to."""
    if layout.gating == "softmax" and not layout.idle_experts:
        return
    why = "tokens may choose no expert" if layout.idle_experts else "its scores have no common sum"
    raise UnsupportedModelError(
        f"--fold-gain cannot stand for --k2 {k2}: {layout.model_type} does not renormalise, and "
        f"{why}. Give --k2 E, or leave --fold-gain out."
    )
