"""Sufficient statistics of routing, per domain: sums and counts, never scores.

D domains, F = 4 folds (document i of a domain goes to fold i mod F), L MoE layers, E experts of the
widest layer. Every field is a sum (or a maximum) over tokens, so stats of different documents,
hosts or domains merge exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moeprune.artefact import canonical_json, check_schema, parse_json, write_bytes
from moeprune.core.domain_stats import (
    ALL_FIELDS,
    FIELDS,
    FOLDS,
    LOSS_FIELDS,
    MAXIMA,
    Array,
    DomainStats,
    domain_of,
)
from moeprune.core.facts import ModelFacts
from moeprune.core.stats_checks import check_sums
from moeprune.errors import StatsError, UsageError
from moeprune.kinds import kind_of, wanted

__all__ = [
    "ALL_FIELDS",
    "FIELDS",
    "FOLDS",
    "LOSS_FIELDS",
    "MAXIMA",
    "SCHEMA",
    "Array",
    "CalibrationStats",
    "DomainStats",
]

SCHEMA = "moeprune.stats/1"
SCHEMA_LOSS = "moeprune.stats/1.1"  # with LOSS_FIELDS, which readers of 1 leave aside


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
        self._check_loss()
        shape = {"L": self.model.num_layers, "E": self.model.width}
        for domain in self.domains:
            for name, array in domain.arrays.items():
                axes, dtype, _ = ALL_FIELDS[name]
                want = (FOLDS, *(shape[axis] for axis in axes))
                if array.shape != want or array.dtype != np.dtype(dtype):
                    raise StatsError(
                        f"{domain.name}/{name} is {array.dtype}{list(array.shape)}, "
                        f"expected {dtype}{list(want)}; the stats file is damaged."
                    )

    @property
    def has_loss(self) -> bool:
        """Whether the sums say what a loss says of each expert: ``LOSS_FIELDS``."""
        return self.domains[0].has_loss

    def _check_loss(self) -> None:
        """The fields of a loss are there as a group and in all domains, or in none."""
        for domain in self.domains:
            lacks = [name for name in LOSS_FIELDS if name not in domain.arrays]
            if domain.has_loss and lacks:
                raise StatsError(
                    f"domain {domain.name!r} has fields of a loss and lacks {lacks[0]!r}; the "
                    "stats file is damaged."
                )
            if domain.has_loss != self.has_loss:
                names = [one.name for one in (self.domains[0], domain)]
                yes, no = names if self.has_loss else names[::-1]
                raise StatsError(
                    f"domain {yes!r} was measured with --loss-aware and {no!r} without it. "
                    "Calibrate both with it, or both without."
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
            "schema": SCHEMA_LOSS if self.has_loss else SCHEMA,
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
                    **({} if domain.read is None else {"read": domain.read}),
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
                kind = kind_of(path) or "no regular file"
                raise StatsError(f"{path} is {kind}; it should be {wanted(SCHEMA)}.")
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # AttributeError: a type that numpy lacks; ValueError: no path at all.
        except (SafetensorError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise StatsError(_not_stats(path, error)) from error
        if "moeprune" not in metadata:
            raise StatsError(_not_stats(path))
        try:
            body = parse_json(metadata["moeprune"])
        except ValueError as problem:
            raise StatsError(f"{path} has malformed metadata: {problem}.") from problem
        check_schema(body, schema=SCHEMA, path=path, error=StatsError)
        try:
            stats = cls(
                model=ModelFacts.from_json(body["model"]),
                domains=tuple(domain_of(entry, arrays) for entry in body["domains"]),
                provenance=dict(body["provenance"]),
            )
            stats.check_counts()
        except (KeyError, TypeError, ValueError) as problem:
            raise StatsError(f"{path} has malformed metadata: {problem!r}.") from problem
        except StatsError as problem:
            raise StatsError(f"{path}: {problem}") from problem
        return stats


def _not_stats(path: Path, error: Exception | None = None) -> str:
    """What lies there instead; of stats themselves, what the reader says."""
    kind = kind_of(path)
    if kind is None:
        return f"{path} cannot be read: {error}; it should be {wanted(SCHEMA)}."
    if kind.startswith("stats"):
        said = "" if "cut short" in kind or error is None else f" that are damaged ({error})"
        return f"{path} is {kind}{said}. Copy the file again, or calibrate again."
    shown = " 'moeprune plan show' prints a plan." if kind == "a plan" else ""
    return f"{path} is {kind}; it should be {wanted(SCHEMA)}.{shown}"
