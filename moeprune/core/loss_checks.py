"""What must hold of the sums of a loss, whoever wrote them: they are sums of the same numbers.

F folds, L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.errors import StatsError

Array = NDArray[Any]

_RELATIVE, _ABSOLUTE = 1e-6, 1e-300


def check_loss(
    arrays: Mapping[str, Array],
    documents: int,
    tokens_FL: Array,
    *,
    where: Callable[[int], str],
) -> None:
    """Check that the sums of one domain's loss fit each other, in every fold, layer and expert.

    With x the change that a token predicts and s its sum over a document: |Σ x| ≤ Σ |s| ≤ Σ |x|,
    Σ x² ≤ (Σ |x|)², Σ s² ≤ (Σ |s|)² ≤ D · Σ s². Where no token is a target there is neither loss
    nor change, and there are no more targets than tokens.

    Args:
        arrays: field -> (F, …), of which those of ``core.domain_stats.LOSS_FIELDS`` are checked.
        documents: D, of the domain.
        tokens_FL: tokens that the layers saw.
        where: name of the domain and of a layer by its row.

    Raises:
        StatsError: they do not; the message names the layer and both numbers.
    """
    targets_F = arrays["loss_tokens"]
    if np.any(targets_F > tokens_FL.min(axis=1)):
        raise StatsError(
            f"{where(0)}: the loss is of {targets_F.sum()} tokens (loss_tokens), and "
            f"{tokens_FL.min(axis=1).sum()} were measured; the file is damaged."
        )
    loss_F = arrays["loss_sum"]
    if np.any(loss_F[targets_F == 0]):
        raise StatsError(
            f"{where(0)}: a loss of {loss_F[targets_F == 0].sum():.6g} nats (loss_sum) of no "
            "token; the file is damaged."
        )
    change, each, token = (
        np.abs(arrays[name]) for name in ("cf_change_sum", "cf_change_abs_sum", "abs_cf_sum")
    )
    square, most = arrays["cf_change_sq_sum"], float(documents)
    _at_most("|cf_change_sum|", change, "cf_change_abs_sum", each, where)
    _at_most("cf_change_abs_sum", each, "abs_cf_sum", token, where)
    _at_most("fisher_cf_sum", arrays["fisher_cf_sum"], "abs_cf_sum squared", token**2, where)
    _at_most("cf_change_sq_sum", square, "cf_change_abs_sum squared", each**2, where)
    _at_most(
        "cf_change_abs_sum squared", each**2, "documents x cf_change_sq_sum", most * square, where
    )
    dropped, squared = arrays["drop_change_sum"] ** 2, arrays["drop_change_sq_sum"]
    _at_most(
        "drop_change_sum squared", dropped, "documents x drop_change_sq_sum", most * squared, where
    )
    for name in ("fisher_sum", "abs_cf_sum", "drop_change_sq_sum"):
        if np.any(arrays[name][targets_F == 0]):
            raise StatsError(f"{where(0)}: {name} is not 0 of no target token; it is damaged.")


def _at_most(
    name: str, found_FLE: Array, of: str, most_FLE: Array, where: Callable[[int], str]
) -> None:
    wrong = found_FLE > most_FLE * (1 + _RELATIVE) + _ABSOLUTE
    if not wrong.any():
        return
    fold, row, expert = (int(at[0]) for at in np.nonzero(wrong))
    found, most = found_FLE[fold, row, expert], most_FLE[fold, row, expert]
    raise StatsError(
        f"{where(row)}, expert {expert}: {name} is {found:.6g}, more than {of}, {most:.6g}; the "
        "file is damaged."
    )
