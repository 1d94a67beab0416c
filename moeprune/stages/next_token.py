"""What export does with next-token-prediction (MTP) layers, and what verify expects of it.

Calibration never runs these layers, so nothing is known of their experts. Three ways: they lose the
experts that the last MoE layer loses, or they leave whole, or they stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from moeprune import plugins
from moeprune.architectures import NextTokenLayers, next_token_layers
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.core.layout import MoeLayout

MODES = ("prune", "drop", "keep")

_EXPERTS = ".experts."

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class NextToken:
    """The next-token layers of a checkpoint under one of ``MODES``.

    Attributes:
        mode: ``"prune"``, ``"drop"`` or ``"keep"``.
        layers: of the source.
        layout: of the source, without the layers' tensors where the experts stay as they are.
        num_experts: routed experts of each of these layers in the source; 0 where none has any.
    """

    mode: str
    layers: NextTokenLayers
    layout: MoeLayout
    num_experts: int

    @classmethod
    def of(cls, index: CheckpointIndex, layout: MoeLayout, *, mode: str) -> NextToken:
        """Apply ``mode`` to a checkpoint.

        Raises:
            UsageError: no such mode.
        """
        plugins.known(mode, MODES, kind="--mtp mode")
        layers = next_token_layers(index.config, index.entries, layout)
        own = {name: rule for name, rule in layout.tensors.items() if rule.follows}
        rest = {name: rule for name, rule in layout.tensors.items() if not rule.follows}
        return cls(
            mode=mode,
            layers=layers,
            layout=layout if mode == "prune" else replace(layout, tensors=rest),
            num_experts=layout.num_experts[-1] if own else 0,
        )

    @property
    def config_changes(self) -> Mapping[tuple[str, ...], Any]:
        """Path in config.json -> new value, beside the expert counts."""
        return self.layers.without if self.mode == "drop" else {}

    def staying(self, named: Mapping[str, Value]) -> dict[str, Value]:
        """What ``named`` holds of the tensors of the source that the export has in some form."""
        leaving = self.layers.tensors if self.mode == "drop" else frozenset()
        return {name: value for name, value in named.items() if name not in leaving}

    def counted(self, named: Mapping[str, Value]) -> dict[str, Value]:
        """What ``named`` holds of the tensors that must agree with config.json's expert count."""
        apart = self.layers.tensors if self.mode == "keep" else frozenset()
        # Quantised, experts have other tensors than in the source.
        experts = tuple(
            {name.partition(_EXPERTS)[0] + _EXPERTS for name in apart if _EXPERTS in name}
        )
        return {
            name: value
            for name, value in named.items()
            if name not in apart and not name.startswith(experts)
        }

    def warning(self, *, count: int) -> str | None:
        """What a user of the export should know, in one line.

        Args:
            count: experts that every other MoE layer keeps.
        """
        if self.mode != "keep" or self.num_experts in (0, count):
            return None
        return (
            f"the next-token-prediction (MTP) layers keep all {self.num_experts} experts, "
            f"config.json states {count}: only loaders that ignore these layers load the model "
            "(plain generation); use_mtp=True, speculative decoding with them and converters that "
            "read them fail. --mtp prune or drop avoids it."
        )

    def record(self) -> dict[str, Any]:
        """What moeprune.json says of it."""
        body: dict[str, Any] = {"mode": self.mode, "tensors": len(self.layers.tensors)}
        if self.mode == "prune" and self.num_experts:
            body["ids_of_layer"] = self.layout.layer_ids[-1]
        if self.mode == "keep" and self.num_experts:
            body["num_experts"] = self.num_experts
        return body
