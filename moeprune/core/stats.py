"""Sufficient statistics of routing, per domain: sums and counts, never scores.

D domains, F = 4 folds (document i of a domain goes to fold i mod F), L MoE layers, E experts of the
widest layer. Every field is a sum (or a maximum) over tokens, so stats of different documents,
hosts or domains merge exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.artefact import atomic_path, canonical_json, check_schema
from moeprune.core.layout import ModelFacts
from moeprune.errors import MismatchError, StatsError, UsageError

SCHEMA = "moeprune.stats/1"
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
        arrays: field -> array with a leading fold axis; see ``FIELDS``.
    """

    name: str
    source: str
    corpus_sha256: str
    documents: int
    shards: tuple[tuple[int, int], ...] = ((0, 1),)
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def total(self, name: str, *, folds: Sequence[int] | None = None) -> Array:
        """One field summed (or maximised) over all folds, or over the given ones.

        Raises:
            StatsError: the stats do not hold the field.
        """
        if name not in self.arrays:
            raise StatsError(
                f"domain {self.name!r} has no field {name!r}; calibrate again to collect it."
            )
        array = self.arrays[name]
        chosen = array if folds is None else array[list(folds)]
        return np.asarray(chosen.max(axis=0) if name in MAXIMA else chosen.sum(axis=0))

    def num_tokens(self, *, folds: Sequence[int] | None = None) -> int:
        """Tokens of the domain, the same in every layer."""
        return int(self.total("tokens", folds=folds)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationStats:
    """Everything calibration measured, and on what.

    Attributes:
        model: the model that was measured.
        domains: in the order they were asked for.
        provenance: mode, dtype, length, seed, samples, versions: plain JSON values.
    """

    model: ModelFacts
    domains: tuple[DomainStats, ...]
    provenance: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.domains:
            raise StatsError("stats hold no domain; calibrate at least one.")
        names = [domain.name for domain in self.domains]
        if len(set(names)) != len(names):
            raise StatsError(f"stats hold a domain twice: {', '.join(names)}.")
        shape = {"L": self.model.num_layers, "E": self.model.width}
        for domain in self.domains:
            for name, array in domain.arrays.items():
                axes, dtype, _ = FIELDS[name]
                want = (FOLDS, *(shape[axis] for axis in axes))
                if array.shape != want or array.dtype != np.dtype(dtype):
                    raise StatsError(
                        f"{domain.name}/{name} is {array.dtype}{list(array.shape)}, "
                        f"expected {dtype}{list(want)}; the stats file is damaged."
                    )

    def check_counts(self) -> None:
        """Check that routing adds up in every domain, fold and layer.

        Σ_e count = K · tokens; Σ_e π_e = tokens, both of a normalised distribution and sorted by
        rank; every sum finite and not negative.

        Raises:
            StatsError: it does not; the message names domain, layer and both numbers.
        """
        for domain in self.domains:
            for name, array in domain.arrays.items():
                if not np.all(np.isfinite(array)) or np.any(array < 0):
                    raise StatsError(
                        f"{domain.name}/{name} holds a negative or non-finite number: the model's "
                        "forward pass overflowed, or the file is damaged. Try --dtype float32."
                    )
            tokens_FL = domain.arrays["tokens"]
            if np.any(tokens_FL != tokens_FL[:, :1]):
                raise StatsError(f"{domain.name}: layers did not all see the same tokens.")
            counted_FL = domain.arrays["count"].sum(axis=2)
            mass_FL = domain.arrays["prob_sum"].sum(axis=2)
            for layer, column in zip(self.model.layer_ids, range(tokens_FL.shape[1]), strict=True):
                tokens = int(tokens_FL[:, column].sum())
                count = int(counted_FL[:, column].sum())
                if np.any(counted_FL[:, column] != self.model.top_k * tokens_FL[:, column]):
                    raise StatsError(
                        f"{domain.name}, layer {layer}: {count} routed tokens for {tokens} tokens, "
                        f"expected {self.model.top_k} x {tokens} = {self.model.top_k * tokens}."
                    )
                if not np.allclose(mass_FL[:, column], tokens_FL[:, column], rtol=1e-3, atol=1e-6):
                    raise StatsError(
                        f"{domain.name}, layer {layer}: router probabilities sum to "
                        f"{mass_FL[:, column].sum():.6g} over {tokens} tokens, expected {tokens}."
                    )

    def domain(self, name: str) -> DomainStats:
        """The stats of one domain.

        Raises:
            UsageError: no such domain.
        """
        for domain in self.domains:
            if domain.name == name:
                return domain
        have = ", ".join(domain.name for domain in self.domains)
        raise UsageError(f"the stats hold no domain {name!r}; they hold {have}.")

    def save(self, path: Path) -> None:
        """Write ``stats.safetensors``: same stats, same bytes; complete or not at all.

        Raises:
            OutputError: the path cannot be written.
        """
        from safetensors.numpy import save_file

        tensors = {
            f"{domain.name}/{name}": np.ascontiguousarray(array)
            for domain in self.domains
            for name, array in sorted(domain.arrays.items())
        }
        body = {
            "schema": SCHEMA,
            "model": self.model.to_json(),
            "provenance": dict(self.provenance),
            "domains": [
                {
                    "name": domain.name,
                    "source": domain.source,
                    "corpus_sha256": domain.corpus_sha256,
                    "documents": domain.documents,
                    "tokens": domain.num_tokens(),
                    "shards": [list(shard) for shard in domain.shards],
                }
                for domain in self.domains
            ],
        }
        # One metadata key only: with several, safetensors' order changes from run to run.
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, metadata={"moeprune": canonical_json(body)})

    @classmethod
    def load(cls, path: Path) -> CalibrationStats:
        """Read a stats file and check it.

        Raises:
            StatsError: not a stats file, damaged, or of an unknown schema.
        """
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            raise StatsError(f"{path} does not exist; make it with 'moeprune calibrate'.")
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, TypeError) as problem:
            raise StatsError(f"{path} is not a stats file: {problem}.") from problem
        if "moeprune" not in metadata:
            raise StatsError(f"{path} is a safetensors file, but not one that calibrate wrote.")
        try:
            body = json.loads(metadata["moeprune"])
            check_schema(body, schema=SCHEMA, path=path, error=StatsError)
            domains = tuple(
                DomainStats(
                    name=str(entry["name"]),
                    source=str(entry["source"]),
                    corpus_sha256=str(entry["corpus_sha256"]),
                    documents=int(entry["documents"]),
                    shards=tuple((int(index), int(of)) for index, of in entry["shards"]),
                    arrays=_fields_of(str(entry["name"]), arrays),
                )
                for entry in body["domains"]
            )
            stats = cls(
                model=ModelFacts.from_json(body["model"]),
                domains=domains,
                provenance=dict(body["provenance"]),
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise StatsError(f"{path} has malformed metadata: {problem!r}.") from problem
        stats.check_counts()
        return stats


def _fields_of(domain: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    found = {}
    for name in FIELDS:
        key = f"{domain}/{name}"
        if key not in arrays:
            raise StatsError(f"domain {domain!r} lacks the field {name!r}; calibrate again.")
        found[name] = arrays[key]
    return found


def merge(parts: Sequence[CalibrationStats]) -> CalibrationStats:
    """Add up stats of the same model: other domains, or other shards of the same domain.

    The order of ``parts`` does not change a count; float sums are added in shard order, so any
    order gives the same bytes.

    Raises:
        MismatchError: different models, settings, or corpora under one domain name.
        StatsError: the same shard twice.
    """
    if not parts:
        raise UsageError("nothing to merge: name at least one stats file.")
    first = parts[0]
    for other in parts[1:]:
        if other.model.fingerprint != first.model.fingerprint:
            raise MismatchError(
                f"stats of two models: {first.model.name} ({first.model.fingerprint[:12]}) and "
                f"{other.model.name} ({other.model.fingerprint[:12]}). Merge stats of one model."
            )
        for key in sorted(set(first.provenance) | set(other.provenance)):
            mine, theirs = first.provenance.get(key), other.provenance.get(key)
            if mine != theirs and key != "versions":
                raise MismatchError(
                    f"stats made with {key} {mine!r} and {theirs!r} cannot be added up."
                )
    names = list(dict.fromkeys(domain.name for part in parts for domain in part.domains))
    merged = tuple(
        _merge_domain([d for part in parts for d in part.domains if d.name == name])
        for name in names
    )
    return replace(first, domains=merged)


def _merge_domain(parts: Sequence[DomainStats]) -> DomainStats:
    first = parts[0]
    for other in parts[1:]:
        mine = (first.source, first.corpus_sha256, first.documents)
        if mine != (other.source, other.corpus_sha256, other.documents):
            raise MismatchError(
                f"domain {first.name!r} was measured on two corpora ({first.source} and "
                f"{other.source}). Give them different names with --domain."
            )
    shards = [shard for part in parts for shard in part.shards]
    seen: set[tuple[int, int]] = set()
    for index, of in shards:
        for other_index, other_of in seen:
            # Shard i of n holds documents ≡ i (mod n): two meet iff i ≡ j modulo gcd(n, m).
            if (index - other_index) % np.gcd(of, other_of) == 0:
                raise StatsError(
                    f"domain {first.name!r}: shard {index}/{of} overlaps {other_index}/{other_of}; "
                    "its tokens would count twice."
                )
        seen.add((index, of))
    ordered = sorted(parts, key=lambda part: part.shards)
    arrays = {
        name: (np.maximum if name in MAXIMA else np.add).reduce(
            [part.arrays[name] for part in ordered]
        )
        for name in FIELDS
    }
    shard_set = tuple(sorted(_simplify(shards)))
    return replace(first, arrays=arrays, shards=shard_set)


def _simplify(shards: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """All shards of one split together are the whole."""
    whole = len({of for _, of in shards}) == 1 and len(shards) == shards[0][1]
    return [(0, 1)] if whole else list(shards)
