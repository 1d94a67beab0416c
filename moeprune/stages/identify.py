"""Open a model: resolve its name, read its headers, lay out its experts, take its fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moeprune.architectures import layout_of
from moeprune.checkpoint.index import CheckpointIndex, fingerprint
from moeprune.checkpoint.per_layer import has_own_counts
from moeprune.core.layout import ModelFacts, MoeLayout
from moeprune.errors import UnsupportedModelError
from moeprune.hub.resolve import resolve_model, source_name


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A checkpoint by its headers: nothing is loaded.

    Attributes:
        index: files and tensors.
        layout: where its experts lie.
        facts: what travels with stats and plans.
    """

    index: CheckpointIndex
    layout: MoeLayout
    facts: ModelFacts


def open_model(model: str | Path, *, revision: str | None = None) -> OpenModel:
    """Open a local folder or a Hub id.

    Raises:
        CheckpointError: it cannot be read.
        UnsupportedModelError: it is no MoE that moeprune can prune.
        HubError: the Hub refused.
    """
    folder = resolve_model(model, revision=revision)
    index = CheckpointIndex.open(folder)
    if has_own_counts(index.config):
        raise UnsupportedModelError(
            f"{folder} was exported with --per-layer: its layers have different numbers of "
            "experts. Use the model that it was made from (moeprune.json names it)."
        )
    layout = layout_of(index.config, index.tensors)
    routers = [name for name, rule in layout.tensors.items() if rule.role == "router"]
    facts = layout.facts(
        name=source_name(model),
        fingerprint=fingerprint(index, routers),
        total_bytes=index.total_bytes,
    )
    return OpenModel(index, layout, facts)
