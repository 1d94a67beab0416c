"""What must hold of calibration sums, whoever wrote them: counts add up, nothing overflowed.

F folds, L MoE layers, E experts of the widest layer, K experts run per token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from moeprune.core.domain_stats import SIGNED, has_loss
from moeprune.core.facts import ModelFacts
from moeprune.core.loss_checks import check_loss
from moeprune.core.rows import row_name
from moeprune.errors import StatsError

Array = NDArray[Any]

_RELATIVE, _ABSOLUTE = 1e-3, 1e-6


class Sums(Protocol):
    """The part of ``DomainStats`` that is checked."""

    @property
    def name(self) -> str:
        """Of the domain."""

    @property
    def documents(self) -> int:
        """Of the whole domain."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Field -> array with a leading fold axis."""


def check_sums(model: ModelFacts, domains: Sequence[Sums]) -> None:
    """Check that routing adds up in every domain, fold and layer.

    Σ_e count = K · tokens and no expert was visited more often than there were tokens; Σ_e π_e =
    tokens, also when sorted by rank; entropy is at most log2 E a token; every sum is finite and not
    negative, over all folds too; nothing lies beyond the experts of a narrow layer. Where tokens
    may choose idle experts, the first two are upper bounds, and E counts the idle ones too. Where a
    forward pass runs a layer several times, its tokens count as often. For what holds of the sums
    of a loss see :mod:`moeprune.core.loss_checks`.

    Raises:
        StatsError: it does not; the message names domain, layer and both numbers.
    """
    experts_L = np.array(model.num_experts)
    for domain in domains:
        for name, array in domain.arrays.items():
            _check_range(domain.name, name, array, experts_L)
        tokens_FL = domain.arrays["tokens"]
        passes_L = np.array(model.passes or (1,) * model.num_layers)
        if np.any(tokens_FL * passes_L[0] != tokens_FL[:, :1] * passes_L):
            raise StatsError(f"{domain.name}: layers did not all see the same tokens.")
        _check_routing(model, domain, tokens_FL)
        if has_loss(domain.arrays):
            where = partial(_where, model, domain.name)
            check_loss(domain.arrays, domain.documents, tokens_FL // passes_L, where=where)


def _where(model: ModelFacts, domain: str, row: int) -> str:
    return f"{domain}, {row_name(*model.rows[row])}"


def _check_range(domain: str, name: str, array: Array, experts_L: Array) -> None:
    with np.errstate(over="ignore"):
        # In float64 the total of int64 counts cannot wrap round.
        total = array.sum(dtype=np.float64)
    if not np.isfinite(total) or (name not in SIGNED and np.any(array < 0)):
        raise StatsError(
            f"{domain}/{name} holds a negative or non-finite number: the model's forward pass "
            "overflowed, or the file is damaged. Try --dtype float32."
        )
    if array.dtype == np.int64 and total >= 2**62:
        raise StatsError(f"{domain}/{name} counts {total:.3g} tokens; the file is damaged.")
    if array.ndim == 3 and np.any(array[:, np.arange(array.shape[2]) >= experts_L[:, None]]):
        raise StatsError(
            f"{domain}/{name} is not 0 beyond the experts of a narrow layer; the file is damaged."
        )


def _check_routing(model: ModelFacts, domain: Sums, tokens_FL: Array) -> None:
    count_FLE, rank_FLE = domain.arrays["count"], domain.arrays["rank_prob_sum"]
    idle = model.idle_experts
    for row in range(model.num_layers):
        where = _where(model, domain.name, row)
        tokens_F = tokens_FL[:, row]
        tokens, count = int(tokens_F.sum()), int(count_FLE[:, row].sum())
        count_F, due_F = count_FLE[:, row].sum(axis=1), model.top_k * tokens_F
        wrong = np.any(count_F > due_F) if idle else np.any(count_F != due_F)
        if wrong or np.any(count_FLE[:, row] > tokens_F[:, None]):
            raise StatsError(
                f"{where}: {count} routed tokens for {tokens} tokens, expected {model.top_k} x "
                f"{tokens} = {model.top_k * tokens}, at most {tokens} of one expert."
            )
        for name in ("prob_sum", "rank_prob_sum"):
            mass_F = domain.arrays[name][:, row].sum(axis=1)
            due_F = np.minimum(mass_F, tokens_F) if idle else tokens_F
            if not np.allclose(mass_F, due_F, rtol=_RELATIVE, atol=_ABSOLUTE):
                raise StatsError(
                    f"{where}: router probabilities ({name}) sum to {mass_F.sum():.6g} over "
                    f"{tokens} tokens, expected {tokens}."
                )
        slack_F1 = _ABSOLUTE + _RELATIVE * tokens_F[:, None]
        if np.any(np.diff(rank_FLE[:, row], axis=1) > slack_F1):
            raise StatsError(f"{where}: rank_prob_sum does not fall from rank to rank.")
        bits_F = tokens_F * np.log2(model.num_experts[row] + idle)
        entropy_F = domain.arrays["entropy_sum"][:, row]
        if np.any(entropy_F > bits_F * (1 + _RELATIVE) + _ABSOLUTE):
            raise StatsError(
                f"{where}: router entropy sums to {entropy_F.sum():.6g} bits over {tokens} tokens, "
                f"at most {bits_F.sum():.6g} are possible."
            )
