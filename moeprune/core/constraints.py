"""What a person wants kept whatever the scores say: whole layers, counts of a layer, experts.

L MoE layers (a layer with several expert sets has a row for each).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moeprune.core.facts import ModelFacts
from moeprune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Limits beside the ratio, checked against the model they are for.

    Attributes:
        layer_keep: layer -> experts that it keeps; the ratio does not speak of these layers. A
            layer that keeps all of its experts is never pruned.
        protected: (L,) ids that never leave, ascending; or (): none.
        whole: the layers of ``layer_keep`` that ``--keep-layers`` named, ascending.
    """

    layer_keep: Mapping[int, int] = field(default_factory=dict)
    protected: tuple[tuple[int, ...], ...] = ()
    whole: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        facts: ModelFacts,
        *,
        keep_layers: Iterable[int] = (),
        layer_keep: Mapping[int, int] | None = None,
        protected: Iterable[Sequence[Sequence[int]]] = (),
    ) -> Constraints:
        """Constraints in a person's words.

        Args:
            facts: the model.
            keep_layers: layers that are never pruned; -1 is the last MoE layer.
            layer_keep: layer -> experts that it keeps; -1 is the last MoE layer.
            protected: any number of (L,) lists of ids that never leave.

        Raises:
            UsageError: no such MoE layer, or a layer with two counts.
        """
        counts = dict(zip(facts.layer_ids, facts.num_experts, strict=True))
        whole = sorted({layer_of(facts, layer, option="--keep-layers") for layer in keep_layers})
        own = {layer: counts[layer] for layer in whole}
        for asked, keep in (layer_keep or {}).items():
            layer = layer_of(facts, asked, option="--layer-keep")
            if type(keep) is not int or keep < 1:
                raise UsageError(f"--layer-keep {asked}={keep}: {keep} is not a count of experts.")
            if layer in own:
                other = "--keep-layers" if layer in whole else "another --layer-keep"
                raise UsageError(
                    f"--layer-keep {asked}={keep}: {other} names layer {layer} too; leave one out."
                )
            own[layer] = keep
        rows: list[set[int]] = [set() for _ in facts.layer_ids]
        for ids_L in protected:
            for row, ids in zip(rows, ids_L, strict=True):
                row.update(ids)
        return cls(
            layer_keep=dict(sorted(own.items())),
            protected=tuple(tuple(sorted(row)) for row in rows) if any(rows) else (),
            whole=tuple(whole),
        )


def layer_of(facts: ModelFacts, layer: int, *, option: str) -> int:
    """The id of a MoE layer by its id, or by its place from the end: -1 is the last.

    Raises:
        UsageError: no such MoE layer; the message names those there are.
    """
    layers = tuple(dict.fromkeys(facts.layer_ids))
    if layer in layers:
        return layers[layers.index(layer)]  # a plain int, whatever equals it
    if type(layer) is int and -len(layers) <= layer < 0:
        return layers[layer]
    raise UsageError(
        f"{option}: {facts.name} has no MoE layer {layer}; its MoE layers are "
        f"{id_ranges(layers)}, and -1 is the last of them."
    )


def id_ranges(ids: Sequence[int]) -> str:
    """Ascending ids with runs shortened: ``0-3, 5``."""
    runs: list[list[int]] = []
    for number in ids:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
