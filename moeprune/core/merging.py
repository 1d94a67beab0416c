"""Add up statistics of one model: sums of other domains, or of other shards of one domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moeprune.core.completions import Completions, completions_of
from moeprune.core.stats import MAXIMA, CalibrationStats, DomainStats
from moeprune.errors import MismatchError, StatsError, UsageError

# Of one model the kinds of attention are the same, but older stats do not state them.
_MAY_DIFFER = frozenset({"versions", "attention", "completions", "stable"})

_MOST = 10**8  # shards of a split


def merge(parts: Sequence[CalibrationStats]) -> CalibrationStats:
    """Add up stats of the same model: other domains, or other shards of the same domain.

    The sums of a domain are added in the order of its shards, so the order of ``parts`` does not
    change them. Domains stand in the order they are met; model name and versions are the first's.

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
        if other.has_loss != first.has_loss:
            raise MismatchError(
                "stats made with --loss-aware and without it cannot be added up. Calibrate both "
                "with it, or both without."
            )
        keys = set(first.provenance) | set(other.provenance)
        # The mode first: stats of another mode also differ in what only that mode states.
        for key in sorted(keys, key=lambda key: (key != "mode", key)):
            mine, theirs = first.provenance.get(key), other.provenance.get(key)
            if mine != theirs and key not in _MAY_DIFFER:
                raise MismatchError(
                    f"stats made with {key} {mine!r} and {theirs!r} cannot be added up. "
                    "Calibrate both with the same options."
                )
    names = list(dict.fromkeys(domain.name for part in parts for domain in part.domains))
    merged = tuple(
        _merge_domain([d for part in parts for d in part.domains if d.name == name])
        for name in names
    )
    # Stats of an older version do not say it.
    k2 = max(part.model.native_k2 for part in parts)
    model = replace(first.model, native_k2=k2)
    return replace(first, model=model, domains=merged, provenance=_provenance(parts))


def _provenance(parts: Sequence[CalibrationStats]) -> dict[str, Any]:
    """The first's, but completions of all."""
    provenance = dict(parts[0].provenance)
    if any(part.provenance.get("stable") != provenance.get("stable") for part in parts):
        provenance.pop("stable", None)  # of some of the domains only
    added: dict[str, Completions] = {}
    for part in parts:
        for name, found in completions_of(part.provenance).items():
            added[name] = added[name].plus(found) if name in added else found
    if added:
        provenance["completions"] = {name: found.to_json() for name, found in added.items()}
    return provenance


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
            if (index - other_index) % math.gcd(of, other_of) == 0:
                raise StatsError(
                    f"domain {first.name!r}: shard {index}/{of} overlaps {other_index}/{other_of}; "
                    "its tokens would count twice. Leave one of the files out."
                )
        seen.add((index, of))
    ordered = sorted(parts, key=lambda part: part.shards)
    arrays = {
        name: (np.maximum if name in MAXIMA else np.add).reduce(
            [part.arrays[name] for part in ordered]
        )
        for name in first.arrays
    }
    whole = replace(first, arrays=arrays, shards=tuple(sorted(shards)))
    return whole if missing_shards(whole) else replace(whole, shards=((0, 1),))


def missing_shards(domain: DomainStats) -> tuple[tuple[int, int], ...]:
    """Shards that hold the documents of a domain which its sums do not cover.

    Where shards of several splits were added up, they are named by the finest split that all fit.

    Raises:
        StatsError: that split has more parts than anybody makes.
    """
    of = math.lcm(*(of for _, of in domain.shards))
    if min(of, domain.documents) > _MOST:
        raise StatsError(
            f"domain {domain.name!r}: its shards are of splits that do not fit together "
            f"({of} parts). Calibrate with one split."
        )
    # Of more shards than documents, the later ones are empty.
    left = np.ones(min(of, domain.documents), np.bool_)
    for index, step in domain.shards:
        left[index::step] = False
    return tuple((int(index), of) for index in np.flatnonzero(left))
