"""Everything of an export that is decided before a byte is written. Never loads the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moeprune.checkpoint.config import edit_json_text
from moeprune.checkpoint.edits import edits_for
from moeprune.checkpoint.index import CONFIG_FILE
from moeprune.checkpoint.sources import check_together
from moeprune.checkpoint.staging import check_output
from moeprune.checkpoint.writer import contents_of
from moeprune.core.plan import PrunePlan
from moeprune.core.plan_edits import EDITED
from moeprune.core.policy_words import PolicyWords, Rank
from moeprune.core.quantisation import QuantOptions
from moeprune.core.sizes import parse_bytes
from moeprune.core.stats import CalibrationStats
from moeprune.errors import UsageError
from moeprune.stages.costs import token_cost
from moeprune.stages.export_record import size_of
from moeprune.stages.export_texts import Telling
from moeprune.stages.exported import kept
from moeprune.stages.folded import folded, needs_both
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
from moeprune.stages.quantising import quantised
from moeprune.stages.requantising import Requantised
from moeprune.stages.routed import Routed
from moeprune.stages.schemes_of import check_within, mixed_options
from moeprune.stages.stored import settings_texts
from moeprune.stages.streaming import StreamedModel


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
    quantize: str | QuantOptions | None = None,
    source: StreamedModel | None = None,
    check_budget: bool = True,
) -> PreparedExport:
    """Everything that export does before it writes; arguments and errors are its own.

    ``source`` comes from :func:`moeprune.stages.export.source_of`, whose block must last until the
    export is written. ``check_budget``: whether a plan's budget of bytes must be met.
    """
    output = Path(output).expanduser()
    shard_bytes = None if shard_size is None else parse_bytes(shard_size, option="--shard-size")
    needs_both(fold_gain, k1, k2)
    plan, words = loaded(plan), PolicyWords(k1=k1, k2=k2)
    options = quantize
    if options is not None and not isinstance(options, QuantOptions):
        options = QuantOptions(scheme=options)
    layers = plan.quantize if plan is not None else None
    options = mixed_options(options, layers)
    if (plan is None or not plan.num_removed) and not words.given and options is None:
        raise UsageError(
            "there is nothing to change: give --plan (which experts stay), --k1 and --k2 (how many "
            "run), --quantize (how they are stored), or several of them."
        )
    form = form_of(plan, per_layer=per_layer, pad=pad)
    check_output(output, source=None)  # before a download
    opened = open_model(model, revision=revision, source=source)
    index = opened.index
    if plan is not None:
        plan.check_against(opened.facts)
    keep = kept(plan, opened.layout)
    check_form(form, index, opened.layout)
    routed = Routed.of(words, fold_gain=fold_gain, form=form, opened=opened, keep=keep)
    count = max(map(len, keep))
    check_output(output, source=None if source else index.path)
    next_token = NextToken.of(index, opened.layout, mode=mtp)
    layout = next_token.layout
    staying = next_token.staying(index.tensors)
    plain = edits_for(staying, layout, dict(enumerate(keep)))
    edits = form_edits(form, plain, index, layout, keep)
    if routed.gain is not None:
        edits = folded(edits, routed.gain.factors(index, opened.layout, staying))
    current = plan.without_stale() if plan else None
    size = size_of(opened, current, edits) | padding_size(plain, edits)
    made, again = None, Requantised.of(index, options, folds=routed.gain is not None)
    if options is not None:
        made = quantised(
            edits, index=index, layout=opened.layout, options=options, keep=keep, layers=layers
        )
        edits, size = list(made.edits), made.size(size)
        check_together(index, edits, source)
    code = made.code if made else ()
    changes: dict[tuple[str, ...], Any] = {
        **(dict.fromkeys(layout.count_keys, count) if plan is not None else {}),
        **next_token.config_changes,
        **routed.config_changes(layout),
        **form_config(form, index, layout, keep, routed.policy, code),
        **(again.changes if again else {}),
        **({("quantization_config",): made.settings} if made else {}),
    }
    config_text = edit_json_text(index.config_text, changes)
    notes = tuple(filter(None, [next_token.warning(count=count), again.warning if again else ""]))
    notes += made.warnings if made else ()
    inexact = routed.warnings(opened.layout, keep)
    telling = Telling(
        opened=opened,
        plan=plan,
        form=form,
        routed=routed,
        changes=changes,
        next_token=next_token,
        size=size,
        token=token_cost(
            opened, policy=routed.runs, keep=keep, stored=made.stored if made else None
        ),
        quantised=made,
        warnings=((EDITED,) if plan and plan.edited else ()) + notes + inexact,
        notes=notes + inexact[1:],  # of the first the card has a paragraph
    )
    texts = {
        **(
            {CONFIG_FILE: config_text}
            if again
            else settings_texts(index, layout, keep, config_text=config_text)
        ),
        **form_texts(form, routed.policy, code),
        **telling.texts(),
    }
    prepared = PreparedExport(
        index=index,
        edits=tuple(edits),
        config_changes=changes,
        contents=contents_of(
            index,
            edits,
            texts=texts,
            shard_bytes=shard_bytes,
            late=telling.texts if made else None,
            without=again.without if again else (),
        ),
        output=output,
        next_token=next_token.record(),
        size=telling.size,
        kept=tuple(map(len, keep)),
        policy=routed.policy,
        token=telling.token,
        gain=routed.gain,
        quantised=made,
        warnings=tuple(telling.warnings),
        source=source,
    )
    if check_budget and layers is not None:
        check_within(layers, prepared.contents.total_bytes)
    return prepared


def loaded(plan: str | Path | PrunePlan | None) -> PrunePlan | None:
    """The plan, read where a file is named."""
    return PrunePlan.load(Path(plan)) if isinstance(plan, str | Path) else plan
