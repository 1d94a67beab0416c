"""Which scheme each weight of an export is written in, and what config.json says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moeprune import quant
from moeprune.checkpoint.edits import TensorEdit
from moeprune.core.layout import MoeLayout
from moeprune.core.quantisation import MIXED, PLAIN, LayerSchemes, QuantOptions, SchemeOptions
from moeprune.errors import UsageError
from moeprune.quant import Written, layered_settings
from moeprune.stages.weights import LinearMap

_STATED = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schemes:
    """How the weights of an export are written.

    Attributes:
        of: module -> its scheme; a module that is not in it stays as it is.
        told: scheme -> what it is told.
        layers: the scheme of every layer, where they differ; None: all have one.
        caveats: what whoever loads the weights must know, one line each.
    """

    of: Mapping[str, str]
    told: Mapping[str, SchemeOptions]
    layers: LayerSchemes | None = None
    caveats: tuple[str, ...] = ()

    @classmethod
    def for_maps(
        cls,
        maps: Sequence[LinearMap],
        edits: Sequence[TensorEdit],
        layout: MoeLayout,
        options: QuantOptions,
        layers: LayerSchemes | None,
        config: Mapping[str, Any],
    ) -> Schemes:
        """The schemes of all weights that are to be quantised.

        Args:
            maps: those weights.
            edits: of the export, before.
            layout: of the source, next-token layers included; these are stored as the layer that
                they follow.
            options: what was asked for.
            layers: the scheme of every layer, with ``mixed``.
            config: config.json of the source.

        Raises:
            UnsupportedModelError: a weight that its scheme cannot write.
        """
        if layers is None:
            of = {at.module: options.scheme for at in maps}
        else:
            rows = [layout.tensors[edits[at.edit].source].row for at in maps]
            each = [layers.schemes[row] for row in rows]
            of = {at.module: own for at, own in zip(maps, each, strict=True) if own != PLAIN}
        told, caveats = {}, []
        for scheme in dict.fromkeys(of.values()):
            wanted = options.group_size if layers is None else layers.group_sizes[scheme]
            shapes = {at.shape for at in maps if of.get(at.module) == scheme}
            told[scheme] = SchemeOptions(
                group_size=quant.scheme(scheme).group_size(shapes, wanted),
                double_quant=options.double_quant,
                dtype=dtype_of(maps, config),
            )
            if hasattr(quant.scheme(scheme), "caveat"):
                caveats.append(quant.scheme(scheme).caveat(shapes, told[scheme]))
        return cls(of=of, told=told, layers=layers, caveats=tuple(filter(None, caveats)))

    def settings(self, modules: Sequence[str]) -> dict[str, Any]:
        """``quantization_config`` of config.json.

        Args:
            modules: names of all that hold a matrix.
        """
        plain = tuple(module for module in modules if module not in self.of)
        written = {
            scheme: Written(
                quantised=tuple(module for module, own in self.of.items() if own == scheme),
                plain=plain,
                options=told,
            )
            for scheme, told in self.told.items()
        }
        if self.layers is not None:
            return layered_settings(written)
        ((scheme, one),) = written.items()
        settings: dict[str, Any] = quant.scheme(scheme).settings(one)
        return settings


def mixed_options(options: QuantOptions | None, layers: LayerSchemes | None) -> QuantOptions | None:
    """What is to be done, by what was asked for and what the plan says.

    Args:
        options: what was asked for; None: nothing.
        layers: the plan's; None: it says nothing.

    Raises:
        UsageError: they contradict each other, or ``mixed`` is asked for without a choice.
    """
    if layers is None:
        if options is not None and options.scheme == MIXED:
            raise UsageError(
                "--quantize mixed needs to know which layers matter: give --budget and --stats, or "
                "a plan that 'moeprune plan --quantize mixed' made."
            )
        return options
    asked = QuantOptions(scheme=MIXED, requantize=options.requantize if options else False)
    if options not in (None, asked):
        raise UsageError(
            f"the plan says in which scheme each layer is stored, --quantize {options.scheme} "
            "something else. Leave it and its options out, or use a plan without schemes."
            if options.scheme != MIXED
            else "--quantize mixed takes neither --also nor --group-size: leave them out."
        )
    return asked if layers.used else None


def check_within(layers: LayerSchemes, total: int) -> None:
    """Check that an export takes no more bytes than the plan's budget.

    Raises:
        UsageError: it does, by other options than the plan was made for, or by an edit.
    """
    if layers.budget is not None and total > layers.budget:
        raise UsageError(
            f"the export would have {total} bytes, the plan's budget is {layers.budget}. Plan "
            f"again with a budget {total - layers.budget} bytes smaller, or leave out what was "
            "added to the export since."
        )


def dtype_of(maps: Sequence[LinearMap], config: Mapping[str, Any]) -> str:
    """The type in which the model computes: what its config.json states, else that of its numbers.

    Loaders turn scales into that type before they multiply, so a wider one would be rounded.
    """
    for part in (config, config.get("text_config")):
        stated = part if isinstance(part, Mapping) else {}
        for key in ("dtype", "torch_dtype"):
            if stated.get(key) in _STATED:
                return _STATED[stated[key]]
    counts: Counter[str] = Counter()
    for at in maps:
        counts[at.dtype] += at.count
    return max(sorted(counts), key=lambda dtype: counts[dtype])
