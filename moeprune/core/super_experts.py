"""Super-experts: the few whose outputs are so large that a model falls apart without them.

REAP's rule: the largest output norm of an expert lies above the 99.5th percentile of all experts'
and above a tenth of the largest of all; only the first three quarters of the MoE layers count,
since norms grow towards the end of any model. REAP's code takes the place of a layer among the MoE
layers for its number in the checkpoint and so protects the wrong layers of a model that begins
with dense ones; here places are compared with places.

L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

import numpy as np

from moeprune.core.choice import real_LE
from moeprune.core.pooling import pool
from moeprune.core.stats import CalibrationStats

_PERCENTILE = 99.5
_SHARE_OF_LARGEST = 0.1
# of the MoE layers, rounded down: 3 of 4, 36 of 48
_FIRST_LAYERS = (3, 4)


def super_experts(stats: CalibrationStats) -> tuple[tuple[int, ...], ...]:
    """The super-experts of a model by what calibration saw of it.

    Args:
        stats: any domains; ``norm_max`` is pooled by maximum.

    Returns:
        (L,) ids, ascending; empty where a layer has none.

    Raises:
        StatsError: a domain holds no token.
    """
    model = stats.model
    norm_LE = pool(stats, ["norm_max"])["norm_max"]
    real = real_LE(model.num_experts)
    threshold = max(
        float(np.percentile(norm_LE[real], _PERCENTILE)),
        _SHARE_OF_LARGEST * float(norm_LE[real].max()),
    )
    layers = list(dict.fromkeys(model.layer_ids))
    part, of = _FIRST_LAYERS
    early = set(layers[: len(layers) * part // of])
    above_LE = real & (norm_LE > threshold)
    return tuple(
        tuple(int(e) for e in np.flatnonzero(above_E)) if layer in early else ()
        for layer, above_E in zip(model.layer_ids, above_LE, strict=True)
    )
