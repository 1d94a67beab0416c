"""One set of sums out of several domains: every domain weighs the same, however long its texts.

D domains, L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from moeprune.core.stats import LOSS_FIELDS, MAXIMA, Array, CalibrationStats, DomainStats
from moeprune.errors import StatsError, UsageError

BY_TOKENS = "tokens"

DomainWeights = Mapping[str, float] | str | None


def weights_D(
    stats: CalibrationStats, domain_weights: DomainWeights, *, folds: Sequence[int] | None = None
) -> Array:
    """The factor w_d / tokens_d of each domain's sums.

    Args:
        stats: the domains.
        domain_weights: ``{"math": 2.0}`` (others weigh 1), ``"tokens"`` (plain tokens are
            pooled), or None (every domain weighs 1).
        folds: count only the tokens of these folds.

    Returns:
        (D,) float64; scaled so that the pooled sums are means over tokens.

    Raises:
        UsageError: an unknown domain, or a weight that is not a number from 0 up.
        StatsError: a domain has no token.
    """
    tokens_D = np.array([d.num_tokens(folds=folds) for d in stats.domains], dtype=np.float64)
    for domain, tokens in zip(stats.domains, tokens_D, strict=True):
        if not tokens:
            raise StatsError(
                f"domain {domain.name!r} has no token; calibrate again with text for it, "
                "or without it."
            )
    if domain_weights == BY_TOKENS:
        weight_D = tokens_D
    elif isinstance(domain_weights, str):
        raise UsageError(
            f"--domain-weight {domain_weights} is neither 'tokens' nor NAME=WEIGHT, e.g. math=2."
        )
    else:
        weight_D = np.ones(len(stats.domains))
        for name, weight in (domain_weights or {}).items():
            domain = stats.domain(name)
            if not (math.isfinite(weight) and weight >= 0):
                raise UsageError(
                    f"--domain-weight {name}={weight}: a weight is a number from 0 up."
                )
            weight_D[stats.domains.index(domain)] = weight
        if not weight_D.any():
            raise UsageError("every --domain-weight is 0; leave at least one domain above 0.")
        weight_D = weight_D / weight_D.max()  # the sum of weights of 1e308 would overflow
    return np.asarray(weight_D / tokens_D / weight_D.sum())


def counted_D(stats: CalibrationStats, domain_weights: DomainWeights) -> Array:
    """Which domains count: those that weigh more than 0. Nothing protects the others.

    Args:
        stats: the domains.
        domain_weights: see :func:`weights_D`.

    Returns:
        (D,) bool, at least one True.

    Raises:
        UsageError, StatsError: see :func:`weights_D`.
    """
    return np.asarray(weights_D(stats, domain_weights) > 0)


def pool(
    stats: CalibrationStats,
    names: Iterable[str],
    *,
    domain_weights: DomainWeights = None,
    folds: Sequence[int] | None = None,
) -> dict[str, Array]:
    """Sums over all domains, Σ_d (w_d / tokens_d) · sums_d; maxima are pooled by maximum.

    Of the fields of a loss, tokens are target tokens: those that the loss was taken of.

    Args:
        stats: the domains.
        names: which fields, see ``core.stats.FIELDS``.
        domain_weights: see :func:`weights_D`. A domain that weighs 0 takes no part.
        folds: pool only these folds.

    Returns:
        field -> (L, E) or (L,) float64; scaled by 1 / Σ_d w_d, i.e. means over tokens.

    Raises:
        UsageError, StatsError: see :func:`weights_D`; or a field is missing.
    """
    own_D = weights_D(stats, domain_weights, folds=folds)
    pooled = {}
    for name in names:
        parts = [domain.total(name, folds=folds).astype(np.float64) for domain in stats.domains]
        factor_D = own_D
        if name in LOSS_FIELDS:
            factor_D = _per_target_D(stats, own_D, domain_weights, folds=folds)
        if name in MAXIMA:
            used = [part for part, factor in zip(parts, factor_D, strict=True) if factor > 0]
            pooled[name] = np.asarray(np.maximum.reduce(used))
        else:
            total = np.zeros_like(parts[0])
            for part, factor in zip(parts, factor_D, strict=True):
                total += factor * part
            pooled[name] = total
    return pooled


def domain_sums(
    stats: CalibrationStats, names: Iterable[str], *, folds: Sequence[int] | None = None
) -> list[dict[str, Array]]:
    """Sums of each domain by itself, as :func:`pool` gives them of all together.

    Returns:
        (D,) field -> (L, E) or (L,) float64: means over the domain's tokens.

    Raises:
        StatsError: a domain has no token, or a field is missing.
    """
    weights_D(stats, None, folds=folds)
    asked = list(names)
    return [
        {
            name: domain.total(name, folds=folds).astype(np.float64) / _tokens(domain, name, folds)
            for name in asked
        }
        for domain in stats.domains
    ]


def _per_target_D(
    stats: CalibrationStats,
    factor_D: Array,
    domain_weights: DomainWeights,
    *,
    folds: Sequence[int] | None,
) -> Array:
    """The factors of sums of a loss: w_d / target tokens_d, scaled like ``factor_D``."""
    targets_D = np.array([_tokens(d, "loss_tokens", folds) for d in stats.domains], np.float64)
    tokens_D = np.array([domain.num_tokens(folds=folds) for domain in stats.domains])
    weight_D = targets_D if domain_weights == BY_TOKENS else factor_D * tokens_D
    total = weight_D.sum() or 1.0
    return np.asarray(weight_D / total / targets_D)


def _tokens(domain: DomainStats, name: str, folds: Sequence[int] | None) -> int:
    """What a mean of this field is over: 1 where it is none.

    Some folds alone may hold no target token of a domain: their sums of a loss are 0 then.
    """
    if name in MAXIMA:
        return 1
    if name not in LOSS_FIELDS:
        return domain.num_tokens(folds=folds)
    targets = int(domain.total("loss_tokens", folds=folds))
    if not targets and folds is None:
        raise StatsError(
            f"domain {domain.name!r} has no target token, so the loss says nothing of it; "
            "calibrate again with answers for it, with --loss all, or without it."
        )
    return targets or 1


def domain_mass_DLE(stats: CalibrationStats, *, folds: Sequence[int] | None = None) -> Array:
    """Router mass of every domain, rows normalised to 1: the D_d of MESA.

    Returns:
        (D, L, E) float64; experts beyond a narrow layer's own hold 0.

    Raises:
        StatsError: a domain has no token.
    """
    weights_D(stats, None, folds=folds)
    return np.stack([row_norm(d.total("prob_sum", folds=folds)) for d in stats.domains])


def row_norm(values_LE: Array) -> Array:
    """Divide each row (the last axis) by its sum; a row of zeros stays zeros."""
    total = values_LE.sum(axis=-1, keepdims=True)
    out = np.zeros(values_LE.shape, dtype=np.float64)
    return np.asarray(np.divide(values_LE, total, out=out, where=total > 0))
