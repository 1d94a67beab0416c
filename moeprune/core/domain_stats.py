"""The folded sums of one domain, and which fields there are.

F = 4 folds, L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.errors import StatsError

FOLDS = 4

Array = NDArray[Any]

# field -> (axes after the fold axis, dtype, unit)
FIELDS: Mapping[str, tuple[str, str, str]] = {
    "tokens": ("L", "int64", "tokens seen, padding excluded"),
    "count": ("LE", "int64", "tokens routed to the expert"),
    "prob_sum": ("LE", "float64", "sum of router probability over all tokens: router mass"),
    "gate_sum": ("LE", "float64", "sum of gate weights over routed tokens"),
    "norm_sum": ("LE", "float64", "sum of output norms over routed tokens"),
    "norm_sq_sum": ("LE", "float64", "sum of squared output norms"),
    "gate_norm_sum": ("LE", "float64", "sum of gate x norm: the numerator of REAP"),
    "gate_norm_sq_sum": ("LE", "float64", "sum of (gate x norm) squared"),
    "prob_norm_sum": ("LE", "float64", "sum of router probability x norm over routed tokens"),
    "norm_max": ("LE", "float32", "largest output norm"),
    "entropy_sum": ("L", "float64", "sum of router entropy, bits"),
    "entropy_sq_sum": ("L", "float64", "sum of squared router entropy, bits squared"),
    "rank_prob_sum": ("LE", "float64", "sum of the r-th largest router probability"),
}
MAXIMA = frozenset({"norm_max"})
# A group that stats hold as a whole or not at all: what a loss, in nats and summed over the target
# tokens, says of leaving out an expert e. For each token t that chose e, with y_t what the block
# gives and γ_t the gradient of the loss by it: drop_t = −g_e f_e · γ_t, and cf_t = δ_{t,e} · γ_t,
# where y_t + δ_{t,e} is what the block would give could e not be selected. s is the sum of either
# over the tokens of one document.
LOSS_FIELDS: Mapping[str, tuple[str, str, str]] = {
    "fisher_sum": ("LE", "float64", "sum of drop_t squared over tokens"),
    "fisher_cf_sum": ("LE", "float64", "sum of cf_t squared over tokens"),
    "abs_cf_sum": ("LE", "float64", "sum of |cf_t| over tokens"),
    "drop_change_sum": ("LE", "float64", "sum of drop_t: first-order change of the loss, nats"),
    "drop_change_sq_sum": ("LE", "float64", "sum over documents of s squared, s of drop_t"),
    "cf_change_sum": ("LE", "float64", "sum of cf_t: first-order change of the loss, nats"),
    "cf_change_sq_sum": ("LE", "float64", "sum over documents of s squared, s of cf_t"),
    "cf_change_abs_sum": ("LE", "float64", "sum over documents of |s|, s of cf_t"),
    "loss_sum": ("", "float64", "loss summed over target tokens, nats"),
    "loss_tokens": ("", "int64", "target tokens"),
}
SIGNED = frozenset({"drop_change_sum", "cf_change_sum"})
ALL_FIELDS: Mapping[str, tuple[str, str, str]] = {**FIELDS, **LOSS_FIELDS}


def fields(*, loss: bool) -> Mapping[str, tuple[str, str, str]]:
    """The fields of stats, with those of a loss or without."""
    return ALL_FIELDS if loss else FIELDS


def has_loss(arrays: Iterable[str]) -> bool:
    """Whether one of these names is a field of a loss."""
    return any(name in LOSS_FIELDS for name in arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainStats:
    """Folded sums of one domain.

    Attributes:
        name: the domain.
        source: where its text came from, e.g. ``builtin:math`` or a file name.
        corpus_sha256: hash of the documents' token ids, in document order.
        documents: documents of the whole domain (before sharding).
        shards: parts of the domain that the sums cover, each ``(index, of)``; ``((0, 1),)`` is
            the whole.
        duplicates: documents of the source left out, being equal to an earlier one.
        read: documents that were measured, where calibration stopped before the last; else None.
        arrays: field -> array with a leading fold axis; see ``ALL_FIELDS``.
    """

    name: str
    source: str
    corpus_sha256: str
    documents: int
    shards: tuple[tuple[int, int], ...] = ((0, 1),)
    duplicates: int = 0
    read: int | None = None
    arrays: Mapping[str, Array] = field(default_factory=dict, repr=False)

    @property
    def has_loss(self) -> bool:
        """Whether the sums say what a loss says of each expert: ``LOSS_FIELDS``."""
        return has_loss(self.arrays)

    def total(self, name: str, *, folds: Sequence[int] | None = None) -> Array:
        """One field summed (or maximised) over all folds, or over the given ones.

        Raises:
            StatsError: the stats do not hold the field.
        """
        if name not in self.arrays:
            how = " with --loss-aware" if name in LOSS_FIELDS else ""
            raise StatsError(
                f"domain {self.name!r} has no field {name!r}; calibrate again{how} to collect it."
            )
        array = self.arrays[name]
        chosen = array if folds is None else array[list(folds)]
        return np.asarray(chosen.max(axis=0) if name in MAXIMA else chosen.sum(axis=0))

    def mean_loss(self) -> float | None:
        """Loss of a target token, nats; None where none was measured."""
        tokens = int(self.total("loss_tokens")) if self.has_loss else 0
        return float(self.total("loss_sum")) / tokens if tokens else None

    def num_tokens(self, *, folds: Sequence[int] | None = None) -> int:
        """Tokens of the domain: of any layer that a forward pass runs once."""
        return int(self.total("tokens", folds=folds).min())


def domain_of(entry: Mapping[str, Any], arrays: Mapping[str, Array]) -> DomainStats:
    """One domain of the metadata, with its arrays.

    Raises:
        KeyError, TypeError, ValueError: an entry of another form.
        StatsError: a field is missing.
    """
    texts = {key: entry[key] for key in ("name", "source", "corpus_sha256")}
    documents, shards = entry["documents"], entry["shards"]
    for key, value in texts.items():
        if not isinstance(value, str):
            raise TypeError(f"{key} of a domain is {value!r}")
    name = texts["name"]
    if type(documents) is not int or documents < 1:
        raise ValueError(f"domain {name!r} has {documents!r} documents")
    for index, of in shards:
        if type(index) is not int or type(of) is not int or not 0 <= index < of:
            raise ValueError(f"domain {name!r} has a shard {index!r}/{of!r}")
    if not shards:
        raise ValueError(f"domain {name!r} has no shard")
    duplicates = entry.get("duplicates", 0)  # older stats do not state it
    if type(duplicates) is not int or duplicates < 0:
        raise ValueError(f"domain {name!r} has {duplicates!r} duplicates")
    read = entry.get("read")
    if read is not None and (type(read) is not int or not 0 < read <= documents):
        raise ValueError(f"domain {name!r} has {read!r} documents read of {documents}")
    return DomainStats(
        **texts,
        documents=documents,
        shards=tuple((index, of) for index, of in shards),
        duplicates=duplicates,
        read=read,
        arrays=_fields_of(name, arrays),
    )


def _fields_of(domain: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    loss = any(f"{domain}/{name}" in arrays for name in LOSS_FIELDS)
    found = {}
    for name in fields(loss=loss):
        key = f"{domain}/{name}"
        if key not in arrays:
            raise StatsError(f"domain {domain!r} lacks the field {name!r}; calibrate again.")
        found[name] = arrays[key]
    return found
