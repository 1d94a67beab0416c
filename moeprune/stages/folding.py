"""The gain of k₁ and k₂ in the weights themselves, for runtimes that know one number of experts.

Exact k₁ and k₂ divide a token's k₁ weights by the mass of its own top k₂. A runtime that divides by
the mass of the k₁ chosen makes them larger by the token's m_k₂ / m_k₁. A constant a layer takes the
mean of that back: every output of its routed experts is multiplied by Σ m_k₁ / Σ m_k₂. Where a
router does not renormalise, k₂ = E changes no weight, and another k₂ divides by its mean mass.

L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moeprune.artefact import sha256_file
from moeprune.checkpoint.scaling import as_factor
from moeprune.core.facts import ModelFacts
from moeprune.core.gains import rank_profile
from moeprune.core.layout import MoeLayout
from moeprune.core.policy_checks import check_policy
from moeprune.core.policy_words import PolicyWords
from moeprune.core.stats import CalibrationStats
from moeprune.errors import MismatchError, UnsupportedModelError, UsageError
from moeprune.stages.folded import FoldedGain

# What routers add to what they sort, and not to what they weigh by.
_SELECTION_BIASES = ("e_score_correction_bias", "expert_bias", "router_bias", "balancing_biases")


def folded_gain(
    stats: str | Path | CalibrationStats,
    words: PolicyWords,
    *,
    layout: MoeLayout,
    facts: ModelFacts,
    keep: Sequence[Sequence[int]],
) -> FoldedGain:
    """The gains that stand for k₁ and k₂.

    Args:
        stats: of this model, unpruned.
        words: k₁ and k₂ as they were asked for.
        layout: of the model.
        facts: of the model.
        keep: L sequences of the ids that stay.

    Raises:
        UsageError: k₁ and k₂ are how the model routes by itself, or no router can take them.
        StatsError: the stats cannot be read.
        MismatchError: they are of another model.
        UnsupportedModelError: no constant can stand for k₂ in this family.
    """
    native, whole = layout.native_policy, max(layout.num_experts)
    policy = words.policy(native=native, experts=whole)
    check_policy(policy, layout, keep)
    most = max(map(len, keep))
    if policy.k1 == native.k1 and min(policy.k2, most) == min(native.k2, most):
        raise UsageError(
            f"--fold-gain: --k1 {policy.k1} --k2 {words.k2} is how {layout.model_type} routes by "
            "itself. Leave all three out."
        )
    sha256 = None
    if not isinstance(stats, CalibrationStats):
        path = Path(stats)
        stats, sha256 = CalibrationStats.load(path), sha256_file(path)
    _check_same(stats.model, facts)
    _check_family(layout)
    k1, k2 = policy.k1, policy.k2
    profile = rank_profile(stats)
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
    made = FoldedGain(k1=k1, k2=k2, gains=tuple(found), stats_sha256=sha256)
    if layout.renormalises and layout.extra_rows and made.changes_weights:
        raise UnsupportedModelError(
            f"--fold-gain cannot stand for --k2 {k2}: routers of {layout.model_type} divide shared "
            "experts by the same sum, and those have weights of their own. Leave --fold-gain out."
        )
    return made


def folding_warnings(
    gain: FoldedGain, layout: MoeLayout, keep: Sequence[Sequence[int]]
) -> tuple[str, ...]:
    """What is not exact about it, one line each; the first says what was done at all."""
    if not gain.changes_weights:
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
    if mine.top_k != facts.top_k:  # a folded export has the routers and headers of its source
        raise MismatchError(
            f"--fold-gain: the stats are of a model that runs {mine.top_k} experts per token, "
            f"{facts.name} runs {facts.top_k}. Give stats of this model."
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
