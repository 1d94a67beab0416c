"""Open a model: resolve its name, read its headers, lay out its experts, take its fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moeprune.checkpoint.index import CheckpointIndex, fingerprint
from moeprune.checkpoint.own_code import has_own_counts, own_policy
from moeprune.core.facts import ModelFacts
from moeprune.core.layout import MoeLayout
from moeprune.errors import CheckpointError, UnsupportedModelError
from moeprune.hub.resolve import resolve_model, source_name
from moeprune.stages.forms import with_refusals
from moeprune.stages.streaming import StreamedModel
from moeprune.stages.unlisted import lay_out


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A checkpoint by its headers: nothing is loaded.

    Attributes:
        index: files and tensors.
        layout: where its experts lie.
        facts: what travels with stats and plans.
        origin: how its family is known: ``"listed"``, ``"inferred"`` or ``"by the rule set"``.
    """

    index: CheckpointIndex
    layout: MoeLayout
    facts: ModelFacts
    origin: str


def open_model(
    model: str | Path,
    *,
    revision: str | None = None,
    gating: str | None = None,
    source: StreamedModel | None = None,
    rerouted: bool = False,
) -> OpenModel:
    """Open a local folder or a Hub id.

    Args:
        model: the folder or the id.
        revision: of a Hub model.
        gating: from router logits to scores, where only the model's own code says so.
        source: of a Hub model that is not to be downloaded whole.
        rerouted: the caller knows what to do with an export whose code runs other k₁ and k₂ than
            its config.json states.

    Raises:
        CheckpointError: it cannot be read.
        UnsupportedModelError: it is no MoE that moeprune can prune, or ... an export that runs
            other k₁ and k₂.
        HubError: the Hub refused.
        UsageError: ``gating`` is given for a family that is known.
    """
    if source is not None:
        index = source.open()
    else:
        index = CheckpointIndex.open(resolve_model(model, revision=revision))
    if has_own_counts(index.config):
        raise UnsupportedModelError(
            f"{index.path} was exported with --per-layer: its layers have different numbers of "
            "experts. Use the model that it was made from (moeprune.json names it)."
        )
    policy = own_policy(index.config)
    if policy is not None and not rerouted:
        raise UnsupportedModelError(
            f"{index.path} was exported with --k1 {policy.k1} --k2 {policy.k2}, and its routers "
            "run so by code of the folder. Use the model that it was made from (moeprune.json "
            "names it), and give --k1 and --k2 to the export."
        )
    layout, origin = lay_out(index.config, index.tensors, gating=gating)
    if source is not None:
        source.fill(index, _routers(layout))
    facts = layout.facts(
        name=source_name(model),
        fingerprint=routed_fingerprint(index, layout),
        total_bytes=index.total_bytes,
    )
    return OpenModel(index, layout, with_refusals(facts, index, layout), origin)


def routed_fingerprint(index: CheckpointIndex, layout: MoeLayout) -> str:
    """Fingerprint of a checkpoint: all headers, and the bytes of what ``layout`` calls routers.

    Raises:
        CheckpointError: a router cannot be read.
    """
    return fingerprint(index, _routers(layout))


def _routers(layout: MoeLayout) -> list[str]:
    return [name for name, rule in layout.tensors.items() if rule.role != "expert"]


def check_unchanged(opened: OpenModel) -> None:
    """Fail where the files were replaced between their fingerprint and their loading.

    Raises:
        CheckpointError: they were.
    """
    now = CheckpointIndex.open(opened.index.path)
    if (
        now.config_text != opened.index.config_text
        or routed_fingerprint(now, opened.layout) != opened.facts.fingerprint
    ):
        raise CheckpointError(
            f"{now.path} was changed while it was being loaded, so it is not known which model "
            "would be measured. Start again when its files are complete."
        )
