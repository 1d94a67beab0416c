"""Quantise the weights of an export: edits that copy them become edits that make other tensors.

Every routed expert, and further parts where they are asked for. One weight is read, written and
compared at a time; nothing is loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

from moeprune import quant
from moeprune.architectures import reads_also
from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.header import DTYPE_BITS
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.making import Bytes, Make, Making
from moeprune.core.layout import MoeLayout, TensorInfo
from moeprune.core.names import names_head
from moeprune.core.quantisation import LayerSchemes, QuantOptions, SchemeOptions
from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.quant import encoded
from moeprune.stages.part_bytes import padding_bytes, part_bytes, part_of_edit, turned
from moeprune.stages.parts import ATTENTION, EXPERT, SHARED
from moeprune.stages.plain_edits import plain_edits
from moeprune.stages.quantised import Ledger, Quantised, part_sizes
from moeprune.stages.reading_code import reading_code
from moeprune.stages.requantising import check_source
from moeprune.stages.schemes_of import Schemes
from moeprune.stages.weights import LinearMap, linear_maps

_HEAD = "lm_head"


def quantised(
    edits: Sequence[TensorEdit],
    *,
    index: CheckpointIndex,
    layout: MoeLayout,
    options: QuantOptions,
    keep: Sequence[Sequence[int]],
    layers: LayerSchemes | None = None,
) -> Quantised:
    """The export with its routed experts quantised, and the parts that were asked for.

    Args:
        edits: of the export as it would be without.
        index: the source.
        layout: of the source, next-token layers included.
        options: what was asked for.
        keep: L sequences of the ids that stay.
        layers: with ``mixed``: the scheme of every layer.

    Raises:
        UnsupportedModelError: the source is quantised already, a weight cannot be written in the
            scheme, or some of the experts' parameters would stay as they are.
    """
    check_source(index, options)
    before, edits = edits, plain_edits(edits, index, layout)
    maps = linear_maps(edits, index, layout)
    parts = [part_of_edit(edit, layout) for edit in edits]
    asked = [at for at in maps if at.part in (EXPERT, *options.also) and not at.router]
    check_whole(edits, parts, asked, layout)
    check_parts(asked, options, layout, index.config)
    found = Schemes.for_maps(asked, edits, layout, options, layers, index.config)
    chosen = [at for at in asked if at.module in found.of]
    errors = Ledger(maps=chosen, keep=keep, rows=layout.rows)
    made = {
        at.module: _made(at, scheme, found.told[scheme], errors)
        for at in chosen
        for scheme in [found.of[at.module]]
    }
    nbytes = {module: sum(edit.info.nbytes for edit in new) for module, new in made.items()}
    modules = [at.module for at in maps]
    if not any(map(names_head, index.entries)):
        modules.append(_HEAD)  # that of tied embeddings is a linear module too
    settings = found.settings(modules)
    return Quantised(
        edits=tuple(_replaced(edits, chosen, made)),
        settings=settings,
        options=options,
        group_sizes={scheme: told.group_size for scheme, told in found.told.items()},
        layers=layers,
        parts=part_sizes(edits, parts, maps, nbytes, before=part_bytes(before, layout)),
        stored=_stored(edits, chosen, nbytes, index, layout, keep) | turned(before, edits),
        padding=padding_bytes(before, chosen)
        - sum(nbytes[at.module] for at in chosen if _is_padding(at)),
        errors=errors,
        warnings=found.caveats,
        code=reading_code(
            index.config,
            layout,
            {layout.tensors[edits[at.edit].source].row for at in chosen if at.part == EXPERT},
            method=settings["quant_method"],
            schemes=layers.schemes if layers else (),
        ),
    )


def check_whole(
    edits: Sequence[TensorEdit],
    parts: Sequence[str],
    chosen: Collection[LinearMap],
    layout: MoeLayout,
) -> None:
    """Check that every matrix of every routed expert is quantised.

    Raises:
        UnsupportedModelError: one would stay as it is; loaders read experts of one kind only.
    """
    covered = {at.edit for at in chosen}
    for number, (part, edit) in enumerate(zip(parts, edits, strict=True)):
        if part != EXPERT or number in covered:
            continue
        rule = layout.tensors[edit.source]
        own = len(edit.info.shape) - (rule.axis is not None)
        if own > 1:
            raise UnsupportedModelError(
                f"{edit.source!r} {list(edit.info.shape)} ({edit.info.dtype}) holds experts of "
                f"{layout.model_type} in a way that --quantize cannot take apart; no expert "
                "may stay as it is. Export without --quantize."
            )
    if not any(at.part == EXPERT for at in chosen):
        raise UnsupportedModelError(f"{layout.model_type}: there is no weight to quantise.")


def check_parts(
    asked: Collection[LinearMap],
    options: QuantOptions,
    layout: MoeLayout,
    config: Mapping[str, Any],
) -> None:
    """Check that there is something of every part that is asked for, and that it can be read.

    Raises:
        UsageError: there is nothing.
        UnsupportedModelError: transformers would not read it.
    """
    model_type = config.get("model_type")
    if options.also and not reads_also(model_type, quant.scheme(options.scheme).METHOD):
        raise UnsupportedModelError(
            f"--also {','.join(options.also)}: transformers renames modules of {model_type} while "
            f"it loads them, and its reader of {quant.scheme(options.scheme).METHOD} loses their "
            "weights. Leave --also out, or try another scheme."
        )
    for part in options.also:
        if not any(at.part == part for at in asked):
            words = {ATTENTION: "attention of names that moeprune knows", SHARED: "shared experts"}
            raise UsageError(
                f"--also {part}: {layout.model_type} has no {words[part]}. Leave it out."
            )


def _made(at: LinearMap, scheme: str, options: SchemeOptions, errors: Ledger) -> list[TensorEdit]:
    """The edits that write one weight in the scheme."""
    plugin = quant.scheme(scheme)
    parts = plugin.parts(at.shape, options)
    infos = [
        TensorInfo(dtype, tuple(shape), prod(shape) * DTYPE_BITS[dtype] // 8)
        for _, dtype, shape in parts
    ]
    making = Making(
        pieces=at.pieces,
        make=_maker(at, scheme, options, errors),
        sizes=tuple(info.nbytes for info in infos),
        values=at.count,
    )
    return [
        TensorEdit(
            source=at.pieces[0].source,
            target=f"{at.module}.{suffix}",
            info=info,
            making=making,
            part=number,
        )
        for number, ((suffix, _, _), info) in enumerate(zip(parts, infos, strict=True))
    ]


def _maker(at: LinearMap, scheme: str, options: SchemeOptions, errors: Ledger) -> Make:
    def make(data: Sequence[Bytes]) -> Sequence[Bytes]:
        try:
            parts, error = encoded(scheme, at.numbers(data), options)
        except UnsupportedModelError as problem:
            raise UnsupportedModelError(f"{at.module}: {problem}") from None
        errors.found[at.module] = error
        return parts

    return make


def _replaced(
    edits: Sequence[TensorEdit],
    chosen: Sequence[LinearMap],
    made: dict[str, list[TensorEdit]],
) -> list[TensorEdit]:
    """The edits, with those of the chosen weights in place of what they were read from."""
    new: dict[int, list[TensorEdit]] = {}
    for at in chosen:
        new.setdefault(at.edit, []).extend(made[at.module])
    return [one for number, edit in enumerate(edits) for one in new.get(number, [edit])]


def _is_padding(at: LinearMap) -> bool:
    return at.part == EXPERT and at.expert is None


def _stored(
    edits: Sequence[TensorEdit],
    chosen: Sequence[LinearMap],
    nbytes: dict[str, int],
    index: CheckpointIndex,
    layout: MoeLayout,
    keep: Sequence[Sequence[int]],
) -> dict[str, TensorInfo]:
    """See ``Quantised.stored``."""
    sums: Counter[str] = Counter()
    for at in chosen:
        if not _is_padding(at):
            sums[edits[at.edit].source] += nbytes[at.module]
    covered = {at.edit for at in chosen}
    for number, edit in enumerate(edits):
        if edit.making is not None and number not in covered and not edit.pad:
            sums[edit.source] += edit.info.nbytes
    found: dict[str, TensorInfo] = {}
    for source, total in sums.items():
        info, rule = index.entries[source].info, layout.tensors.get(source)
        if rule is not None and rule.axis is not None:
            total = total * layout.num_experts[rule.row] // len(keep[rule.row])
        found[source] = TensorInfo(info.dtype, info.shape, total)
    return found
