"""The three forms of an export: one count for all layers, a count for each, or padded to one.

``uniform`` is a plain checkpoint of its family. ``per-layer`` carries the code that builds layers
of different counts. ``padded`` is plain again: narrow layers are filled with experts that no token
can choose. With k₁ and k₂, an export of any form carries code too, see ``rerouting``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeprune.architectures import family_names, merged_tensors
from moeprune.checkpoint.audit import same_value
from moeprune.checkpoint.composing import MERGING
from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.own_code import MODELING_FILE, modeling_text, own_code_changes, own_merged
from moeprune.checkpoint.padding import check_paddable, padded_edits
from moeprune.checkpoint.per_layer import check_following, check_per_layer
from moeprune.core.facts import ModelFacts
from moeprune.core.layout import MoeLayout
from moeprune.core.plan import PrunePlan
from moeprune.core.policy import RoutingPolicy
from moeprune.core.targets import PADDABLE
from moeprune.errors import PlanError, UnsupportedModelError, UsageError

UNIFORM, PER_LAYER, PADDED = "uniform", "per-layer", "padded"
FORMS = (UNIFORM, PER_LAYER, PADDED)


def form_of(plan: PrunePlan | None, *, per_layer: bool, pad: bool) -> str:
    """The form that an export gets: one of ``FORMS``.

    Args:
        plan: which experts stay; None: all.
        per_layer: the option.
        pad: the option.

    Raises:
        UsageError: both options, or one of them where every layer keeps the same number.
        PlanError: layers keep different numbers, and no option says how to write that.
    """
    if per_layer and pad:
        raise UsageError("--per-layer and --pad are two ways out of one problem; give one of them.")
    if plan is None:
        if per_layer or pad:
            raise UsageError(
                f"--{'pad' if pad else 'per-layer'} is for a plan whose layers keep different "
                "numbers of experts, and there is none. Add --plan, or leave the option out."
            )
        return UNIFORM
    counts = sorted(map(len, plan.keep))
    if plan.uniform_count is not None:
        if per_layer or pad:
            raise UsageError(
                f"--{'pad' if pad else 'per-layer'}: the plan keeps {counts[0]} experts in every "
                "layer, which is a plain checkpoint. Leave the option out."
            )
        return UNIFORM
    if not per_layer and not pad:
        raise PlanError(
            f"the plan keeps {counts[0]} to {counts[-1]} experts a layer, which no runtime reads "
            "from a plain checkpoint. Export with --per-layer (transformers with "
            "trust_remote_code=True) or --pad (any runtime; routers with a bias), or plan with "
            "--allocation uniform."
        )
    target = plan.options.get("target")
    if per_layer and target is not None and target != "transformers":
        raise UsageError(
            f"--per-layer: the plan was made with --target {target}, which does not load different "
            "counts per layer. Use --pad, or plan for --target transformers."
        )
    return PER_LAYER if per_layer else PADDED


def check_form(form: str, index: CheckpointIndex, layout: MoeLayout) -> None:
    """Check that the form is exact for this model.

    Raises:
        UnsupportedModelError: it is not; the message says why, and which other one is.
    """
    reason = refusal(form, index, layout)
    if reason:
        other = PADDED if form == PER_LAYER else PER_LAYER
        option = "--pad" if other == PADDED else "--per-layer"
        also = "" if refusal(other, index, layout) else f"{option}, or "
        raise UnsupportedModelError(f"{reason}. Use {also}an --allocation uniform plan.")


def check_uneven(index: CheckpointIndex, layout: MoeLayout, *, name: str) -> None:
    """Check that some export can hold layers of different counts, before they are searched for.

    Raises:
        UnsupportedModelError: none can; the message says why not.
    """
    reasons = [refusal(form, index, layout) for form in (PER_LAYER, PADDED)]
    if all(reasons):
        raise UnsupportedModelError(
            f"a search finds different counts per layer, and no export of {name} can hold them: "
            f"{'; '.join(reasons)}. Use another method, with --allocation uniform."
        )


def refusal(form: str, index: CheckpointIndex, layout: MoeLayout) -> str:
    """Why an export of this model cannot have the form, without a full stop; "" where it can."""
    try:
        if form == PER_LAYER:
            check_per_layer(index.config, layout, families=family_names())
        elif form == PADDED:
            check_paddable(layout)
    except UnsupportedModelError as problem:
        return str(problem).removesuffix(".")
    return ""


def with_refusals(facts: ModelFacts, index: CheckpointIndex, layout: MoeLayout) -> ModelFacts:
    """Facts that say which exports of different counts per layer a plan may not advise."""
    # Most routers have no bias: there the family says it, and stats need not.
    pads = layout.model_type in PADDABLE and layout.num_groups == 1
    return replace(
        facts,
        no_per_layer=refusal(PER_LAYER, index, layout),
        no_pad=refusal(PADDED, index, layout) if pads else "",
    )


def form_edits(
    form: str,
    edits: Sequence[TensorEdit],
    index: CheckpointIndex,
    layout: MoeLayout,
    keep: Sequence[Sequence[int]],
) -> list[TensorEdit]:
    """The edits of an export in this form.

    Args:
        form: one of ``FORMS``.
        edits: what stays.
        index: the source.
        layout: of the source.
        keep: L sequences of the ids that stay.

    Raises:
        UnsupportedModelError: a tensor cannot be padded, or next-token layers do not fit.
    """
    if form == PER_LAYER:
        check_following(layout, {edit.source for edit in edits}, keep)
    return padded_edits(edits, index.tensors, layout, keep) if form == PADDED else list(edits)


def form_config(
    form: str,
    index: CheckpointIndex,
    layout: MoeLayout,
    keep: Sequence[Sequence[int]],
    policy: RoutingPolicy | None,
    parts: Collection[str] = (),
) -> dict[tuple[str, ...], Any]:
    """The keys of config.json that form, policy and parts bring, beside the expert counts."""
    if not has_code(form, policy, parts):
        return {}
    return own_code_changes(
        index.config,
        layout,
        keep,
        counts=form == PER_LAYER,
        policy=policy,
        merged=_merged(index, layout) if MERGING in parts else None,
    )


def _merged(index: CheckpointIndex, layout: MoeLayout) -> Mapping[str, Any]:
    """What single experts become; an export that is quantised once more has them already."""
    ours = own_merged(index.config)
    return merged_tensors(layout) if ours is None else ours


def form_texts(
    form: str, policy: RoutingPolicy | None, parts: Collection[str] = ()
) -> dict[str, str]:
    """The files that form, policy and parts bring: name -> text."""
    return {MODELING_FILE: modeling_text(parts)} if has_code(form, policy, parts) else {}


def has_code(form: str, policy: RoutingPolicy | None, parts: Collection[str] = ()) -> bool:
    """Whether such an export carries code of its own.

    Args:
        form: one of ``FORMS``.
        policy: k₁ and k₂; None: the model's own.
        parts: what else its code must hold, of ``checkpoint.composing.PARTS``.
    """
    return form == PER_LAYER or policy is not None or bool(parts)


def form_problems(
    form: str,
    source: CheckpointIndex,
    export: CheckpointIndex,
    layout: MoeLayout,
    keep: Sequence[Sequence[int]],
    policy: RoutingPolicy | None,
    parts: Collection[str] = (),
) -> Iterator[str]:
    """What is wrong with an export's own files and keys, one line each.

    Whoever runs the folder's code afterwards runs what this moeprune would have written there.
    """
    for path, value in form_config(form, source, layout, keep, policy, parts).items():
        found: Any = export.config.get(path[0])
        if not same_value(found, value):
            yield f"config.json {path[0]} is {found!r}, expected {value!r}"
    for name, text in form_texts(form, policy, parts).items():
        try:
            same = (export.path / name).read_bytes() == text.encode("utf-8")
        except OSError:
            yield f"{name} is missing: no loader can build this model without it"
            continue
        if not same:
            yield (
                f"{name} is not the file that this moeprune writes; it is not run. Export again, "
                "or verify with the version that exported it"
            )


def padding_size(edits: Collection[TensorEdit], padded: Collection[TensorEdit]) -> dict[str, int]:
    """What moeprune.json says under ``size`` of the bytes that padding adds."""
    added = _size(padded) - _size(edits)
    return {"bytes_padding": added} if added else {}


def count_of(form: str, keep: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """(L,) experts that each layer has in the export."""
    widest = max(map(len, keep))
    return tuple(widest if form == PADDED else len(ids) for ids in keep)


def _size(edits: Collection[TensorEdit]) -> int:
    return sum(edit.info.nbytes for edit in edits)
