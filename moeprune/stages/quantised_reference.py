"""What a quantised export should compute: its source, with the numbers that the export stores.

The tensors of the source, by name, as float32 arrays in the source's arrangement; each is computed
when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.reader import chunks
from moeprune.core.quantisation import PLAIN
from moeprune.core.split import Split
from moeprune.errors import UnsupportedModelError
from moeprune.quant import to_dtype, weight_values
from moeprune.stages.audit_quantised import Ledger, QuantisedWeight
from moeprune.stages.quantised_source import QuantisedSource, StoredWeight

Array = npt.NDArray[np.float32]
Values = Callable[[], Array]
_WEIGHT = ".weight"


class Files:
    """Reads byte ranges of a checkpoint from several threads at once."""

    def __init__(self, index: CheckpointIndex) -> None:
        """Of this checkpoint."""
        self._path = index.path

    def read(self, file: str, start: int, size: int) -> bytes:
        """``size`` bytes from ``start`` of a file."""
        return b"".join(chunks(self._path / file, start, start + size))


@dataclass(slots=True)
class Reference:
    """The source with other numbers.

    Attributes:
        replaced: name of a plain tensor -> its values.
        without: stored tensors that are not read.
    """

    replaced: dict[str, Values] = field(default_factory=dict)
    without: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, expected: QuantisedSource, *, natively: bool) -> Reference:
        """Of an export that passed the comparison of its tensors.

        Args:
            expected: what is due of each tensor.
            natively: whether transformers reads its weights by itself.
        """
        made = cls()
        for stored, weights in expected.weights(Ledger()):
            changed = [
                one
                for one in weights
                if (one.scheme != PLAIN or stored.quantised) and not one.empty
            ]
            if changed or stored.quantised:
                made.without |= set(stored.parts.values())
                made.replaced[stored.plain] = partial(_values, expected, stored, changed, natively)
        return made


def _values(
    expected: QuantisedSource,
    stored: StoredWeight,
    made: Sequence[QuantisedWeight],
    natively: bool,
) -> Array:
    """One tensor of the source, with the numbers of the export where it has some."""
    mine, theirs = Files(expected.source), Files(expected.export)
    rule = expected.layout.tensors.get(stored.name)
    if rule is None or rule.axis is None:
        if made:
            return _unscaled(made[0], theirs, natively=natively)[0]
        return _own(expected, stored, None, mine)
    split = expected.split_of(stored)
    assert split is not None, "else it could not be quantised"
    by_expert = {expected.keep[rule.row][one.number]: one for one in made if one.number is not None}
    slabs = []
    for expert in range(expected.layout.num_experts[rule.row]):
        slab = _own(expected, stored, expert, mine)
        if expert in by_expert:
            numbers = _unscaled(by_expert[expert], theirs, natively=natively)
            for view, one in zip(split.cut(slab), numbers, strict=True):
                view[...] = one
        slabs.append(_arranged(slab, stored, split))
    whole = np.stack(slabs)
    return whole.reshape(-1, *whole.shape[2:]) if rule.block > 1 else whole


def _unscaled(made: QuantisedWeight, theirs: Files, *, natively: bool) -> list[Array]:
    """The export's numbers without a gain that is folded in: the reference's routers apply it."""
    return [one / np.float32(made.factor) for one in made.decoded(theirs, natively=natively)]


def _own(expected: QuantisedSource, stored: StoredWeight, expert: int | None, mine: Files) -> Array:
    """A weight as the source has it."""
    raws = {suffix: expected.slab(name, expert).read(mine) for suffix, name in stored.parts.items()}
    values = weight_values(raws, expected.settings if stored.quantised else {})
    if values is None:
        raise UnsupportedModelError(f"{stored.name} cannot be read, so it cannot be run here.")
    values = to_dtype(values, expected.dtype) if stored.quantised else values
    return np.array(values)  # what was read is not written to


def _arranged(slab: Array, stored: StoredWeight, split: Split) -> Array:
    """As the family's plain checkpoints have it: blocks of MXFP4 are stored the other way round."""
    return slab.T if "blocks" in stored.parts and not split.transposed else slab
