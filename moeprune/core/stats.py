"""Sufficient statistics of routing, per domain: sums and counts, never scores.

D domains, F = 4 folds (document i of a domain goes to fold i mod F), L MoE layers, E experts of the
widest layer. Every field is a sum (or a maximum) over tokens, so stats of different documents,
hosts or domains merge exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.artefact import canonical_json, check_schema, parse_json, write_bytes
from moeprune.core.facts import ModelFacts
from moeprune.core.stats_checks import check_sums
from moeprune.errors import StatsError, UsageError

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
        duplicates: documents of the source left out, being equal to an earlier one.
        arrays: field -> array with a leading fold axis; see ``FIELDS``.
    """

    name: str
    source: str
    corpus_sha256: str
    documents: int
    shards: tuple[tuple[int, int], ...] = ((0, 1),)
    duplicates: int = 0
    arrays: Mapping[str, Array] = field(default_factory=dict, repr=False)

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
        """Tokens of the domain: of any layer that a forward pass runs once."""
        return int(self.total("tokens", folds=folds).min())


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
        for name in names:
            if not name.strip() or "/" in name or not name.isprintable():
                raise StatsError(
                    f"stats hold a domain called {name!r}; a name is printable and without '/'."
                )
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

        Raises:
            StatsError: it does not; see :func:`moeprune.core.stats_checks.check_sums`.
        """
        check_sums(self.model, self.domains)

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
        from safetensors.numpy import save

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
                    "duplicates": domain.duplicates,
                }
                for domain in self.domains
            ],
        }
        # One metadata key only: with several, safetensors' order changes from run to run.
        write_bytes(path, save(tensors, metadata={"moeprune": canonical_json(body)}))

    @classmethod
    def load(cls, path: Path) -> CalibrationStats:
        """Read a stats file and check it.

        Raises:
            StatsError: not a stats file, damaged, or of an unknown schema.
        """
        from safetensors import SafetensorError, safe_open

        try:
            if not path.exists():
                raise StatsError(f"{path} does not exist; make it with 'moeprune calibrate'.")
            if not path.is_file():
                raise StatsError(f"{path} is no regular file; name a stats file.")
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # AttributeError: a type that numpy lacks; ValueError: no path at all.
        except (SafetensorError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise StatsError(f"{path} is not a stats file: {error}.") from error
        if "moeprune" not in metadata:
            raise StatsError(f"{path} is a safetensors file, but not one that calibrate wrote.")
        try:
            body = parse_json(metadata["moeprune"])
        except ValueError as problem:
            raise StatsError(f"{path} has malformed metadata: {problem}.") from problem
        check_schema(body, schema=SCHEMA, path=path, error=StatsError)
        try:
            stats = cls(
                model=ModelFacts.from_json(body["model"]),
                domains=tuple(_domain(entry, arrays) for entry in body["domains"]),
                provenance=dict(body["provenance"]),
            )
            stats.check_counts()
        except (KeyError, TypeError, ValueError) as problem:
            raise StatsError(f"{path} has malformed metadata: {problem!r}.") from problem
        except StatsError as problem:
            raise StatsError(f"{path}: {problem}") from problem
        return stats


def _domain(entry: Mapping[str, Any], arrays: Mapping[str, Array]) -> DomainStats:
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
    return DomainStats(
        **texts,
        documents=documents,
        shards=tuple((index, of) for index, of in shards),
        duplicates=duplicates,
        arrays=_fields_of(name, arrays),
    )


def _fields_of(domain: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    found = {}
    for name in FIELDS:
        key = f"{domain}/{name}"
        if key not in arrays:
            raise StatsError(f"domain {domain!r} lacks the field {name!r}; calibrate again.")
        found[name] = arrays[key]
    return found
