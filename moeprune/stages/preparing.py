"""Everything of an export that is decided before a byte is written. Never loads the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moeprune.checkpoint.config import edit_json_text
from moeprune.checkpoint.edits import edits_for
from moeprune.checkpoint.index import CONFIG_FILE
from moeprune.checkpoint.sidecars import sidecars_of
from moeprune.checkpoint.staging import check_output
from moeprune.checkpoint.writer import contents_of
from moeprune.core.plan import PrunePlan
from moeprune.core.plan_edits import EDITED
from moeprune.core.policy import RoutingPolicy
from moeprune.core.policy_words import PolicyWords, Rank
from moeprune.core.sizes import parse_bytes
from moeprune.core.stats import CalibrationStats
from moeprune.errors import UsageError
from moeprune.hub.card import model_card, read_readme
from moeprune.stages.costs import token_cost
from moeprune.stages.export_record import record_text, size_of
from moeprune.stages.exported import RECORD, kept
from moeprune.stages.folded import folded, needs_both
from moeprune.stages.folding import folded_gain, folding_warnings
from moeprune.stages.forms import (
    check_form,
    form_config,
    form_edits,
    form_of,
    form_texts,
    padding_size,
)
from moeprune.stages.identify import open_model
from moeprune.stages.next_token import NextToken
from moeprune.stages.prepared import PreparedExport
from moeprune.stages.rerouting import policy_of
from moeprune.stages.stored import settings_texts
from moeprune.stages.streaming import StreamedModel

CARD_FILE = "README.md"


def prepare(
    model: str | Path,
    *,
    plan: str | Path | PrunePlan | None = None,
    output: str | Path,
    k1: int | None = None,
    k2: Rank | None = None,
    fold_gain: str | Path | CalibrationStats | None = None,
    revision: str | None = None,
    mtp: str = "prune",
    shard_size: str | int | None = None,
    per_layer: bool = False,
    pad: bool = False,
    source: StreamedModel | None = None,
) -> PreparedExport:
    """Everything that export does before it writes; arguments and errors are its own.

    ``source`` comes from :func:`moeprune.stages.export.source_of`, whose block must last until the
    export is written.
    """
    output = Path(output).expanduser()
    shard_bytes = None if shard_size is None else parse_bytes(shard_size, option="--shard-size")
    needs_both(fold_gain, k1, k2)
    plan, words = loaded(plan), PolicyWords(k1=k1, k2=k2)
    if plan is None and not words.given:
        raise UsageError(
            "there is nothing to change: give --plan (which experts stay), --k1 and --k2 (how many "
            "run), or both."
        )
    form = form_of(plan, per_layer=per_layer, pad=pad)
    check_output(output, source=None)  # before a download
    opened = open_model(model, revision=revision, source=source)
    index = opened.index
    if plan is not None:
        plan.check_against(opened.facts)
    keep = kept(plan, opened.layout)
    check_form(form, index, opened.layout)
    policy, gain = None, None
    if fold_gain is None:
        policy = policy_of(words, form, index, opened.layout, keep)
    else:
        gain = folded_gain(fold_gain, words, layout=opened.layout, facts=opened.facts, keep=keep)
    runs = policy if gain is None else RoutingPolicy(k1=gain.k1, k2=gain.k2)
    count = max(map(len, keep))
    check_output(output, source=None if source else index.path)
    next_token = NextToken.of(index, opened.layout, mode=mtp)
    layout = next_token.layout
    staying = next_token.staying(index.tensors)
    plain = edits_for(staying, layout, dict(enumerate(keep)))
    edits = form_edits(form, plain, index, layout, keep)
    if gain is not None:
        edits = folded(edits, gain.factors(index, opened.layout, staying))
    changes = {
        **(dict.fromkeys(layout.count_keys, count) if plan is not None else {}),
        **next_token.config_changes,
        **(gain.config_changes(layout) if gain is not None else {}),
        **form_config(form, index, layout, keep, policy),
    }
    config_text = edit_json_text(index.config_text, changes)
    texts = settings_texts(index, layout, keep, config_text=config_text)
    notes = tuple(filter(None, [next_token.warning(count=count)]))
    inexact = () if gain is None else folding_warnings(gain, opened.layout, keep)
    warnings = ((EDITED,) if plan and plan.edited else ()) + notes + inexact
    current = plan.without_stale() if plan else None
    size = size_of(opened, current, edits) | padding_size(plain, edits)
    token = token_cost(opened, policy=runs, keep=keep)
    texts |= form_texts(form, policy) | {
        RECORD: record_text(
            opened=opened,
            plan=plan,
            form=form,
            policy=policy,
            gain=gain,
            changes=changes,
            next_token=next_token,
            size=size,
            warnings=warnings,
            left_out=sidecars_of(index, replaced=(CONFIG_FILE, RECORD, CARD_FILE)).left,
        ),
        CARD_FILE: model_card(
            current and replace(current, size=size),
            form=form,
            policy=runs,
            gains=None if gain is None else gain.gains,
            facts=opened.facts,
            native=opened.layout.native_policy,
            token=token,
            notes=notes + inexact[1:],  # of the first it has a paragraph
            source=opened.facts.name,
            source_readme=read_readme(index.path),
        ),
    }
    return PreparedExport(
        index=index,
        edits=tuple(edits),
        config_changes=changes,
        contents=contents_of(index, edits, texts=texts, shard_bytes=shard_bytes),
        output=output,
        next_token=next_token.record(),
        size=size,
        kept=tuple(map(len, keep)),
        policy=policy,
        token=token,
        gain=gain,
        warnings=warnings,
        source=source,
    )


def loaded(plan: str | Path | PrunePlan | None) -> PrunePlan | None:
    """The plan, read where a file is named."""
    return PrunePlan.load(Path(plan)) if isinstance(plan, str | Path) else plan
