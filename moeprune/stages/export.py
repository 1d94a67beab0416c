"""export: write a checkpoint without the experts that a plan removes, or with other k₁ and k₂.

Never loads the model.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from moeprune.checkpoint.config import edit_json_text
from moeprune.checkpoint.edits import edits_for
from moeprune.checkpoint.index import CONFIG_FILE
from moeprune.checkpoint.sidecars import sidecars_of
from moeprune.checkpoint.staging import check_output
from moeprune.checkpoint.writer import contents_of, write_checkpoint
from moeprune.core.plan import PrunePlan
from moeprune.core.plan_edits import EDITED
from moeprune.core.policy_words import PolicyWords, Rank
from moeprune.core.progress import OnProgress, ignore
from moeprune.core.sizes import parse_bytes
from moeprune.errors import UsageError
from moeprune.hub.card import model_card, read_readme
from moeprune.stages.export_record import record_text, size_of
from moeprune.stages.exported import RECORD, kept
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
from moeprune.stages.streaming import StreamedModel, streamed

CARD_FILE = "README.md"


def export(
    model: str | Path,
    *,
    plan: str | Path | PrunePlan | None = None,
    output: str | Path,
    k1: int | None = None,
    k2: Rank | None = None,
    revision: str | None = None,
    mtp: str = "prune",
    shard_size: str | int | None = None,
    per_layer: bool = False,
    pad: bool = False,
    stream: bool = False,
    on_progress: OnProgress = ignore,
) -> Path:
    """Write ``model`` without the experts that ``plan`` removes, with ``k1`` and ``k2``, or both.

    Headers and plan make the whole list of edits, which is checked before a byte is written. Kept
    experts and router rows are byte-identical to the source. The folder appears under its name
    only when it is complete.

    Args:
        model: folder or Hub id.
        plan: a plan or its file; None: all experts stay, and ``k1`` and ``k2`` are given.
        output: the folder to make.
        k1: experts that run per token. The code that does it lies in the folder; the top-k of
            config.json stays, so that whoever does not run the code has the model's own routing.
        k2: with ``k1``: their weights are divided by the probability of the top ``k2``, or of all:
            ``"E"``.
        revision: of a Hub model.
        mtp: next-token-prediction layers: ``"prune"`` cuts their experts to the ids of the last MoE
            layer, ``"drop"`` leaves the layers out, ``"keep"`` leaves them as they are, which only
            loaders that ignore them can read.
        shard_size: most bytes of tensors in a weight file, e.g. ``"5GB"``; default: as the source.
        per_layer: write a plan whose layers keep different numbers of experts as it is, with the
            code that loads it in the folder.
        pad: write such a plan with every layer filled up to the widest one.
        stream: of a Hub model, download the weight files that are needed one by one and remove each
            when it was cut: the disk holds the result and the largest of them. Files in the Hub's
            cache are read there and stay.
        on_progress: told of the bytes written, and downloaded with ``stream``.

    Returns:
        ``output``.

    Raises:
        CheckpointError: the model's files cannot be read.
        UnsupportedModelError: it is no MoE that moeprune can prune.
        MismatchError: the plan was made for another model.
        PlanError: the plan is malformed, or its layers keep different numbers of experts and
            neither ``per_layer`` nor ``pad`` says how to write them.
        OutputError: ``output`` exists, lies in the model, or the disk is full.
        UsageError: an unknown ``mtp``, a ``shard_size`` that is none, ``stream`` of a local
            folder, or ``k1`` and ``k2`` that the routers cannot take.
        HubError: the Hub refused.
    """
    plan = _loaded(plan)
    with source_of(model, output=output, revision=revision, stream=stream) as source:
        prepared = prepare(
            model,
            plan=plan,
            output=output,
            k1=k1,
            k2=k2,
            revision=revision,
            mtp=mtp,
            shard_size=shard_size,
            per_layer=per_layer,
            pad=pad,
            source=source,
        )
        return write(prepared, on_progress=on_progress)


def source_of(
    model: str | Path,
    *,
    output: str | Path,
    revision: str | None = None,
    stream: bool,
    write: bool = True,
) -> AbstractContextManager[StreamedModel | None]:
    """What :func:`prepare` and :func:`write` read with ``stream``; None without.

    Arguments and errors are those of :func:`moeprune.stages.streaming.streamed`.
    """
    if not stream:
        return nullcontext()
    output = Path(output).expanduser()
    return streamed(model, revision=revision, output=output, write=write)


def prepare(
    model: str | Path,
    *,
    plan: str | Path | PrunePlan | None = None,
    output: str | Path,
    k1: int | None = None,
    k2: Rank | None = None,
    revision: str | None = None,
    mtp: str = "prune",
    shard_size: str | int | None = None,
    per_layer: bool = False,
    pad: bool = False,
    source: StreamedModel | None = None,
) -> PreparedExport:
    """Everything that :func:`export` does before it writes; arguments and errors are its own.

    ``source`` comes from :func:`source_of`, whose block must last until the export is written.
    """
    output = Path(output).expanduser()
    shard_bytes = None if shard_size is None else parse_bytes(shard_size, option="--shard-size")
    plan, words = _loaded(plan), PolicyWords(k1=k1, k2=k2)
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
    policy = policy_of(words, form, index, opened.layout, keep)
    count = max(map(len, keep))
    check_output(output, source=None if source else index.path)
    next_token = NextToken.of(index, opened.layout, mode=mtp)
    layout = next_token.layout
    plain = edits_for(next_token.staying(index.tensors), layout, dict(enumerate(keep)))
    edits = form_edits(form, plain, index, layout, keep)
    changes = {
        **(dict.fromkeys(layout.count_keys, count) if plan is not None else {}),
        **next_token.config_changes,
        **form_config(form, index, layout, keep, policy),
    }
    config_text = edit_json_text(index.config_text, changes)
    texts = settings_texts(index, layout, keep, config_text=config_text)
    warning = next_token.warning(count=count)
    warnings = tuple(filter(None, (EDITED if plan and plan.edited else None, warning)))
    current = plan.without_stale() if plan else None
    size = size_of(opened, current, edits) | padding_size(plain, edits)
    texts |= form_texts(form, policy) | {
        RECORD: record_text(
            opened=opened,
            plan=plan,
            form=form,
            policy=policy,
            changes=changes,
            next_token=next_token,
            size=size,
            warnings=warnings,
            left_out=sidecars_of(index, replaced=(CONFIG_FILE, RECORD, CARD_FILE)).left,
        ),
        CARD_FILE: model_card(
            current and replace(current, size=size),
            form=form,
            policy=policy,
            facts=opened.facts,
            native=opened.layout.native_policy,
            notes=tuple(filter(None, [warning])),
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
        warnings=warnings,
        source=source,
    )


def write(prepared: PreparedExport, *, on_progress: OnProgress = ignore) -> Path:
    """Write what :func:`prepare` made; returns the folder.

    Raises:
        CheckpointError: the model's files cannot be read.
        OutputError: the output exists, or the disk is full.
        HubError: the Hub refused.
    """
    return write_checkpoint(
        prepared.index,
        prepared.contents,
        prepared.output,
        passing=prepared.source,
        on_progress=on_progress,
    )


def _loaded(plan: str | Path | PrunePlan | None) -> PrunePlan | None:
    return PrunePlan.load(Path(plan)) if isinstance(plan, str | Path) else plan
