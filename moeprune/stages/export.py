"""export: write a checkpoint without some experts, with other k₁ and k₂, or quantised.

Never loads the model.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from moeprune.checkpoint.writer import write_checkpoint
from moeprune.core.plan import PrunePlan
from moeprune.core.policy_words import Rank
from moeprune.core.progress import OnProgress, ignore
from moeprune.core.quantisation import QuantOptions
from moeprune.core.stats import CalibrationStats
from moeprune.quant import one_thread
from moeprune.stages.budgeted import budgeted
from moeprune.stages.prepared import PreparedExport
from moeprune.stages.preparing import prepare
from moeprune.stages.streaming import StreamedModel, streamed


def export(
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
    budget: str | int | None = None,
    stats: str | Path | CalibrationStats | None = None,
    stream: bool = False,
    on_progress: OnProgress = ignore,
) -> Path:
    """Write ``model`` without the experts that ``plan`` removes, with ``k1`` and ``k2``, quantised.

    Headers and plan make the whole list of edits, which is checked before a byte is written. Kept
    experts and router rows are byte-identical to the source. The folder appears under its name
    only when it is complete.

    Args:
        model: folder or Hub id.
        plan: a plan or its file; None: all experts stay.
        output: the folder to make.
        k1: experts that run per token. The code that does it lies in the folder; the top-k of
            config.json stays, so that whoever does not run the code has the model's own routing.
        k2: with ``k1``: their weights are divided by the probability of the top ``k2``, or of all:
            ``"E"``.
        fold_gain: stats of this model, with ``k1`` and ``k2``: write a plain checkpoint instead,
            whose top-k is ``k1`` and whose experts' outputs are multiplied by the mean gain of
            their layer, which stands for ``k2``.
        revision: of a Hub model.
        mtp: next-token-prediction layers: ``"prune"`` cuts their experts to the ids of the last MoE
            layer, ``"drop"`` leaves the layers out, ``"keep"`` leaves them as they are, which only
            loaders that ignore them can read.
        shard_size: most bytes of tensors in a weight file, e.g. ``"5GB"``; default: as the source.
        per_layer: write a plan whose layers keep different numbers of experts as it is, with the
            code that loads it in the folder.
        pad: write such a plan with every layer filled up to the widest one.
        quantize: store the weights of routed experts in another way: ``"nf4"``, ``"int8"``,
            ``"int4"`` or ``"fp8"``, or these with their options, as
            :class:`moeprune.QuantOptions`. Whatever stays plain is byte-identical to the source.
            With ``budget`` and ``stats``, ``"mixed"``: a scheme for every layer, as
            :func:`moeprune.plan` chooses them; a plan that holds schemes is followed without.
        budget: the most bytes that all files may take.
        stats: what calibration measured of this model.
        stream: of a Hub model, download the weight files that are needed one by one and remove each
            when it was cut: the disk holds the result and the largest of them. Files in the Hub's
            cache are read there and stay.
        on_progress: told of the bytes written, and downloaded with ``stream``.

    Returns:
        ``output``.

    Raises:
        CheckpointError: the model's files cannot be read.
        UnsupportedModelError: it is no MoE that moeprune can prune, or its experts cannot be
            quantised so.
        MismatchError: the plan was made for another model, or the stats are of another one.
        StatsError: the stats cannot be read.
        PlanError: the plan is malformed, or its layers keep different numbers of experts and
            neither ``per_layer`` nor ``pad`` says how to write them.
        OutputError: ``output`` exists, lies in the model, or the disk is full.
        UsageError: an unknown ``mtp``, a ``shard_size`` that is none, ``stream`` of a local
            folder, ``k1`` and ``k2`` that the routers cannot take, or a ``budget`` that cannot be
            met.
        HubError: the Hub refused.
    """
    options: dict[str, Any] = {
        "k1": k1,
        "k2": k2,
        "fold_gain": fold_gain,
        "revision": revision,
        "mtp": mtp,
        "shard_size": shard_size,
        "per_layer": per_layer,
        "pad": pad,
        "quantize": quantize,
    }
    plan = budgeted(
        model, plan, budget=budget, stats=stats, stream=stream, on_progress=on_progress, **options
    )
    with source_of(model, output=output, revision=revision, stream=stream) as source:
        prepared = prepare(model, plan=plan, output=output, source=source, **options)
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


def write(prepared: PreparedExport, *, on_progress: OnProgress = ignore) -> Path:
    """Write what :func:`prepare` made; returns the folder.

    Raises:
        CheckpointError: the model's files cannot be read.
        OutputError: the output exists, or the disk is full.
        HubError: the Hub refused.
    """
    # Weights are encoded by several threads already.
    with one_thread() if prepared.quantised else nullcontext():
        return write_checkpoint(
            prepared.index,
            prepared.contents,
            prepared.output,
            passing=prepared.source,
            on_progress=on_progress,
        )
