"""What every scheme would do to the experts of a model: how far off they would be, and how large.

Weights are read one by one, written in each scheme in memory and compared; nothing is loaded.

L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from moeprune import quant
from moeprune.architectures import keeps_no_stack
from moeprune.checkpoint.edits import TensorEdit, edits_for
from moeprune.checkpoint.header import nbytes_of
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.reader import chunks
from moeprune.core.progress import OnProgress, Progress
from moeprune.core.quantisation import (
    MIXABLE,
    MIXED,
    PLAIN,
    SchemeOptions,
    WeightError,
)
from moeprune.core.stats import Array
from moeprune.errors import UnsupportedModelError
from moeprune.quant import encoded, one_thread, stored_format
from moeprune.stages.identify import OpenModel
from moeprune.stages.next_token import NextToken
from moeprune.stages.parts import EXPERT
from moeprune.stages.schemes_of import dtype_of
from moeprune.stages.weights import LinearMap, linear_maps

_OFFSET = 10**9  # of a tensor in its file: as many digits as most have
_FILE = "model-00001-of-00001.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """The experts of a model in every scheme of ``MIXABLE``.

    Attributes:
        schemes: those that layers of this model can have.
        group_sizes: scheme -> its group size, but for ``PLAIN``.
        errors: scheme -> (L, E) float64, relative error (Frobenius) of every expert.
        nbytes: scheme -> (L,) bytes that one expert takes of a file, with what its tensors' names
            take in headers and index: to within a few bytes.
    """

    schemes: tuple[str, ...]
    group_sizes: dict[str, int]
    errors: dict[str, Array]
    nbytes: dict[str, tuple[int, ...]]


def weigh(opened: OpenModel, *, on_progress: OnProgress) -> Weighed:
    """Measure all experts of a model.

    Args:
        opened: the model.
        on_progress: told of the bytes of weights that are compared.

    Raises:
        UnsupportedModelError: the source is quantised already, or a scheme cannot hold its weights.
        CheckpointError: a file cannot be read.
    """
    index, layout = opened.index, opened.layout
    stored = stored_format(index.config)
    if stored is not None:
        raise UnsupportedModelError(
            f"{index.path} is quantised already (quant_method {stored.method}), and --quantize "
            f"{MIXED} chooses for plain weights. Use the model that it was made from."
        )
    next_token = NextToken.of(index, layout, mode="prune")
    keep = {row: tuple(range(count)) for row, count in enumerate(layout.num_experts)}
    edits = edits_for(next_token.staying(index.tensors), next_token.layout, keep)
    maps = [at for at in linear_maps(edits, index, layout) if at.part == EXPERT]
    if not maps:
        raise UnsupportedModelError(f"{opened.facts.name}: there is no weight to quantise.")
    dtype, shapes = dtype_of(maps, index.config), {at.shape for at in maps}
    options = {
        scheme: SchemeOptions(group_size=quant.scheme(scheme).group_size(shapes, None), dtype=dtype)
        for scheme in MIXABLE
        if scheme != PLAIN
    }
    rows = [layout.tensors[edits[at.edit].source].row for at in maps]
    whole = keeps_no_stack(layout, method=quant.scheme(MIXABLE[-1]).METHOD)
    return Weighed(
        schemes=tuple(name for name in MIXABLE if name != PLAIN or not whole),
        group_sizes={scheme: told.group_size for scheme, told in options.items()},
        errors=_errors(index, maps, layout.num_experts, options, on_progress),
        nbytes=_nbytes(opened, edits, maps, rows, options),
    )


def _errors(
    index: CheckpointIndex,
    maps: Sequence[LinearMap],
    num_experts: Sequence[int],
    options: dict[str, SchemeOptions],
    on_progress: OnProgress,
) -> dict[str, Array]:
    total, done = sum(at.nbytes for at in maps), 0
    nothing = WeightError(0.0, 0.0, 0)
    sums: dict[str, dict[tuple[int, int], WeightError]] = {scheme: {} for scheme in options}
    counted = [
        at
        for at in maps
        # LongCat numbers experts beyond those that are routed to.
        if at.row is not None and at.expert is not None and at.expert < num_experts[at.row]
    ]

    def measured(at: LinearMap) -> dict[str, WeightError]:
        weight = at.numbers([_bytes(index, at, number) for number in range(len(at.pieces))])
        try:
            return {name: encoded(name, weight, told)[1] for name, told in options.items()}
        except UnsupportedModelError as problem:
            raise UnsupportedModelError(f"{at.module}: {problem}") from None

    workers = os.cpu_count() or 1
    with one_thread(), ThreadPoolExecutor(workers, thread_name_prefix="weigh") as pool:
        try:
            for at, found in zip(counted, pool.map(measured, counted), strict=True):
                assert at.row is not None and at.expert is not None
                key = at.row, at.expert
                for scheme, error in found.items():
                    sums[scheme][key] = sums[scheme].get(key, nothing) + error
                done += at.nbytes
                on_progress(Progress("compare schemes", done, total, "bytes"))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    errors = {PLAIN: np.zeros((len(num_experts), max(num_experts)))}
    for scheme, place in sums.items():
        errors[scheme] = np.zeros_like(errors[PLAIN])
        for (row, expert), error in place.items():
            errors[scheme][row, expert] = error.relative
    return errors


def _bytes(index: CheckpointIndex, at: LinearMap, number: int) -> bytes:
    piece = at.pieces[number]
    entry = index.entries[piece.source]
    start = entry.start + piece.start
    return b"".join(chunks(index.path / entry.file, start, entry.start + piece.end))


def _nbytes(
    opened: OpenModel,
    edits: Sequence[TensorEdit],
    maps: Sequence[LinearMap],
    rows: Sequence[int],
    options: dict[str, SchemeOptions],
) -> dict[str, tuple[int, ...]]:
    indexed = opened.index.index_file is not None or len(opened.index.files) > 1
    plain: Counter[int] = Counter()
    more: dict[str, Counter[int]] = {scheme: Counter() for scheme in options}
    for at, row in zip(maps, rows, strict=True):
        edit = edits[at.edit]
        own = edit.target == f"{at.module}.weight"  # else it shares a tensor with all experts
        entry = _entry(edit.target, edit.info.dtype, edit.info.shape, indexed) if own else 0
        plain[row] += entry
        for scheme, told in options.items():
            more[scheme][row] -= at.nbytes + entry
            for suffix, dtype, shape in quant.scheme(scheme).parts(at.shape, told):
                more[scheme][row] += nbytes_of(dtype, tuple(shape))
                more[scheme][row] += _entry(f"{at.module}.{suffix}", dtype, shape, indexed)
    facts = opened.facts
    each = list(zip(facts.expert_bytes, facts.num_experts, strict=True))
    found = {PLAIN: tuple(size + plain[row] // count for row, (size, count) in enumerate(each))}
    for scheme, extra in more.items():
        found[scheme] = tuple(
            size + extra[row] // count
            for row, (size, (_, count)) in enumerate(zip(found[PLAIN], each, strict=True))
        )
    return found


def _entry(name: str, dtype: str, shape: Sequence[int], indexed: bool) -> int:
    """Characters that a tensor takes in the header of its file and in the index, about."""
    stated = {"dtype": dtype, "shape": list(shape), "data_offsets": [_OFFSET, _OFFSET]}
    header = json.dumps({name: stated}, separators=(",", ":"))
    return len(header) - 1 + (len(f'    "{name}": "{_FILE}",\n') if indexed else 0)
