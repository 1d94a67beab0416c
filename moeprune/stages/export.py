"""export: write a checkpoint without the experts that a plan removes. Never loads the model."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import moeprune
from moeprune.checkpoint.config import edit_json_text
from moeprune.checkpoint.edits import TensorEdit, edits_for
from moeprune.checkpoint.index import CONFIG_FILE
from moeprune.checkpoint.sidecars import sidecars_of
from moeprune.checkpoint.staging import check_output
from moeprune.checkpoint.writer import contents_of, write_checkpoint
from moeprune.core.plan import PrunePlan
from moeprune.core.plan_edits import EDITED
from moeprune.core.progress import OnProgress, ignore
from moeprune.core.sizes import parse_bytes
from moeprune.hub.card import model_card, read_readme
from moeprune.stages.exported import RECORD, SCHEMA
from moeprune.stages.forms import (
    check_form,
    form_config,
    form_edits,
    form_of,
    form_texts,
    padding_size,
)
from moeprune.stages.identify import OpenModel, open_model
from moeprune.stages.next_token import NextToken
from moeprune.stages.prepared import PreparedExport
from moeprune.stages.stored import settings_texts
from moeprune.stages.streaming import StreamedModel, streamed

CARD_FILE = "README.md"


def export(
    model: str | Path,
    *,
    plan: str | Path | PrunePlan,
    output: str | Path,
    revision: str | None = None,
    mtp: str = "prune",
    shard_size: str | int | None = None,
    per_layer: bool = False,
    pad: bool = False,
    stream: bool = False,
    on_progress: OnProgress = ignore,
) -> Path:
    """Write ``model`` without the experts that ``plan`` removes, as a checkpoint of its own.

    Headers and plan make the whole list of edits, which is checked before a byte is written. Kept
    experts and router rows are byte-identical to the source. The folder appears under its name
    only when it is complete.

    Args:
        model: folder or Hub id.
        plan: a plan or its file.
        output: the folder to make.
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
        UsageError: an unknown ``mtp``, a ``shard_size`` that is none, or ``stream`` of a local
            folder.
        HubError: the Hub refused.
    """
    if not isinstance(plan, PrunePlan):
        plan = PrunePlan.load(Path(plan))
    with source_of(model, output=output, revision=revision, stream=stream) as source:
        prepared = prepare(
            model,
            plan=plan,
            output=output,
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
    plan: str | Path | PrunePlan,
    output: str | Path,
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
    if not isinstance(plan, PrunePlan):
        plan = PrunePlan.load(Path(plan))
    form = form_of(plan, per_layer=per_layer, pad=pad)
    check_output(output, source=None)  # before a download
    opened = open_model(model, revision=revision, source=source)
    index = opened.index
    plan.check_against(opened.facts)
    check_form(form, index, opened.layout)
    count = max(map(len, plan.keep))
    check_output(output, source=None if source else index.path)
    next_token = NextToken.of(index, opened.layout, mode=mtp)
    layout = next_token.layout
    plain = edits_for(next_token.staying(index.tensors), layout, dict(enumerate(plan.keep)))
    edits = form_edits(form, plain, index, layout, plan.keep)
    changes = {
        **dict.fromkeys(layout.count_keys, count),
        **next_token.config_changes,
        **form_config(form, index, layout, plan.keep),
    }
    config_text = edit_json_text(index.config_text, changes)
    texts = settings_texts(index, layout, plan.keep, config_text=config_text)
    warning = next_token.warning(count=count)
    warnings = tuple(filter(None, (EDITED if plan.edited else None, warning)))
    current = plan.without_stale()
    size = _size(opened, current, edits) | padding_size(plain, edits)
    noted = replace(current, warnings=(*current.warnings, *filter(None, [warning])))
    provenance = {
        "schema": SCHEMA,
        "moeprune": moeprune.__version__,
        "source": {"name": opened.facts.name, "fingerprint": opened.facts.fingerprint},
        "form": form,
        "changed_config_keys": [".".join(path) for path in changes],
        "next_token_layers": next_token.record(),
        "size": size,
        "left_out": list(sidecars_of(index, replaced=(CONFIG_FILE, RECORD, CARD_FILE)).left),
        "plan": plan.to_json(),
    }
    if warnings:
        provenance["warnings"] = list(warnings)
    texts |= form_texts(form) | {
        RECORD: json.dumps(provenance, indent=1) + "\n",
        CARD_FILE: model_card(
            replace(noted, size=size),
            form=form,
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


def _size(opened: OpenModel, plan: PrunePlan, edits: list[TensorEdit]) -> dict[str, Any]:
    """Bytes of all tensors before and after; and what the plan said, where that is not it."""
    after = sum(edit.info.nbytes for edit in edits)
    size: dict[str, Any] = {"bytes_before": opened.index.total_bytes, "bytes_after": after}
    planned = plan.size.get("bytes_after", after)
    return size if planned == after else size | {"bytes_planned": planned}
