"""Principal components of an accuracy matrix: along which tasks do the variants differ.

V variants (observations), T tasks (features), C components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeprune.core.stats import Array
from moeprune.errors import UsageError
from moeprune.evaluate.paired.checks import finite


@dataclass(frozen=True, slots=True, eq=False)
class Components:
    """Principal components, C = min(V - 1, T) of them, the largest first.

    Attributes:
        loading_CT: (C, T) float64, unit vectors over tasks. The entry of largest size is positive
            (of nearly equal ones, the first), so that the same table always gives the same signs.
        score_VC: (V, C) float64, where each variant lies along them.
        share_C: (C,) float64, share of the variance explained; all 0 where nothing varies.
    """

    loading_CT: Array
    score_VC: Array
    share_C: Array


def principal_components(accuracy_VT: Array, *, standardise: bool) -> Components:
    """PCA by the singular value decomposition of the centred matrix, X = U S Vᵀ.

    Loadings are the rows of Vᵀ, scores are U S, shares are S² / Σ S².

    Args:
        accuracy_VT: (V, T) finite numbers, V >= 2.
        standardise: divide each task by its standard deviation too, so that a task with a wide
            range (AIME) counts no more than others; one on which nothing varies stays 0.

    Raises:
        UsageError: fewer than two variants, no task, or numbers that are not finite.
    """
    accuracy_VT = finite(accuracy_VT, name="accuracies", ndim=2)
    if accuracy_VT.shape[0] < 2 or not accuracy_VT.shape[1]:
        raise UsageError(
            f"principal components need two variants and one task; got {accuracy_VT.shape}."
        )
    centred_VT = accuracy_VT - accuracy_VT.mean(axis=0)
    # What rounding leaves of a column of equal numbers is not variance.
    constant_T = accuracy_VT.max(axis=0) == accuracy_VT.min(axis=0)
    centred_VT[:, constant_T] = 0
    if standardise:
        centred_VT = centred_VT / np.where(constant_T, 1.0, accuracy_VT.std(axis=0, ddof=1))
    left_VC, size_C, right_CT = np.linalg.svd(centred_VT, full_matrices=False)
    kept = min(accuracy_VT.shape[0] - 1, accuracy_VT.shape[1])
    left_VC, size_C, right_CT = left_VC[:, :kept], size_C[:kept], right_CT[:kept]
    sign_C = _signs(right_CT)
    total = float((size_C**2).sum())
    return Components(
        loading_CT=right_CT * sign_C[:, None],
        score_VC=left_VC * size_C * sign_C,
        share_C=size_C**2 / total if total else np.zeros_like(size_C),
    )


def _signs(loading_CT: Array) -> Array:
    weight_CT = np.abs(loading_CT)
    nearly_CT = weight_CT >= weight_CT.max(axis=1, keepdims=True) * (1 - 1e-9)
    first_C = nearly_CT.argmax(axis=1)
    return np.where(loading_CT[np.arange(len(loading_CT)), first_C] < 0, -1.0, 1.0)
