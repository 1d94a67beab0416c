"""The stats of what was measured: checked, and with what is to be known of how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import moeprune
from moeprune.architectures import attention_kinds
from moeprune.artefact import sha256_bytes
from moeprune.core.stats import Array, CalibrationStats, DomainStats
from moeprune.errors import StatsError
from moeprune.stages.identify import OpenModel
from moeprune.stages.runnable import check_passes

if TYPE_CHECKING:
    from moeprune.observe.domains import Corpus


def assembled(
    opened: OpenModel,
    corpora: Sequence[Corpus],
    arrays: Mapping[str, Mapping[str, Array]],
    provenance: Mapping[str, Any],
    *,
    read: Mapping[str, Corpus] | None = None,
) -> CalibrationStats:
    """The stats of a model.

    Args:
        opened: the model.
        corpora: the domains.
        arrays: domain -> field -> sums.
        provenance: how; model, versions and kinds of attention are added.
        read: domain -> what was measured of it, where that is not all.

    Raises:
        StatsError: the sums do not add up.
        UnsupportedModelError: a family that is not listed did not run as was assumed.
    """
    stats = CalibrationStats(
        model=opened.facts,
        domains=tuple(
            domain_stats(
                corpus,
                arrays[corpus.name],
                read=None if read is None else len(read[corpus.name].documents),
            )
            for corpus in corpora
        ),
        provenance={
            **provenance,
            "family": opened.origin,
            "config_sha256": sha256_bytes(opened.index.config_text.encode()),
            "versions": versions(),
            **_attention(opened),
        },
    )
    whole = {corpus.name: corpus for corpus in corpora} if read is None else read
    counted = {name: corpus.num_counted for name, corpus in whole.items()}
    check_passes(stats, counted, opened.origin)
    stats.check_counts()
    if stats.has_loss:
        _check_targets(stats, {name: corpus.num_targets for name, corpus in whole.items()})
    return stats


def _check_targets(stats: CalibrationStats, num_targets: Mapping[str, int]) -> None:
    """The loss is that of the text's target tokens: all of them, each once."""
    for domain in stats.domains:
        found, due = int(domain.total("loss_tokens")), num_targets[domain.name]
        if found != due:
            raise StatsError(
                f"domain {domain.name!r}: the loss was taken of {found:,} tokens, and {due:,} are "
                "targets; this model reads a text in a way that --loss-aware cannot follow."
            )


def domain_stats(
    corpus: Corpus, arrays: Mapping[str, Array], *, read: int | None = None
) -> DomainStats:
    """The sums of a domain, and of what.

    Args:
        corpus: the domain.
        arrays: field -> sums.
        read: documents that were measured, where those are not all.
    """
    return DomainStats(
        name=corpus.name,
        source=corpus.source,
        corpus_sha256=corpus.sha256,
        documents=corpus.total,
        shards=(corpus.shard,),
        duplicates=corpus.duplicates,
        read=None if read == corpus.total else read,
        arrays=arrays,
    )


def _attention(opened: OpenModel) -> dict[str, list[str]]:
    """The kind of attention of each MoE layer: analyse groups layers by it."""
    kinds = attention_kinds(opened.index.config, opened.facts.layer_ids)
    return {} if kinds is None else {"attention": kinds}


def versions() -> dict[str, str]:
    """Program -> its version, of those that decide the sums."""
    return {
        "moeprune": moeprune.__version__,
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
