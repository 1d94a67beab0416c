"""Which models can be exported with different expert counts per layer.

No loader reads such counts natively. The folder carries the model code (see ``own_code``), which
transformers runs with ``trust_remote_code=True``; everybody else fails on the shapes and never
loads a wrong model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from moeprune.checkpoint.own_code import check_plain_code
from moeprune.core.layout import MoeLayout
from moeprune.errors import UnsupportedModelError

# Families whose own code reads the one count of config.json while it runs: no error, wrong numbers.
_READS_COUNT = frozenset({"zaya"})


def check_per_layer(
    config: Mapping[str, Any], layout: MoeLayout, *, families: Collection[str]
) -> None:
    """Check that the model code can build this model.

    Args:
        config: config.json of the source.
        layout: of the source.
        families: those that are tested with different counts per layer, but for the few that are
            refused here.

    Raises:
        UnsupportedModelError: it cannot; the message says why, one sentence.
    """
    check_plain_code(config, option="--per-layer")
    if layout.model_type not in families:
        raise UnsupportedModelError(
            f"--per-layer is tested family by family, and {layout.model_type} is not among them: "
            "its code may count on one number of experts."
        )
    if layout.model_type in _READS_COUNT:
        raise UnsupportedModelError(
            f"--per-layer is not exact for {layout.model_type}: its router reads the one count of "
            "config.json while it runs."
        )
    if layout.quant_method is not None:
        raise UnsupportedModelError(
            f"--per-layer is for unquantised models: transformers builds the experts of "
            f"{layout.quant_method} from the one count of config.json."
        )
    if all(path[:-1] == ("ffn_config",) for path in layout.count_keys):
        raise UnsupportedModelError(
            f"--per-layer cannot build {layout.model_type}: its layers take their count from "
            f"{'.'.join(layout.count_keys[0])}, a config apart from the layers'."
        )


def check_following(
    layout: MoeLayout, staying: Collection[str], keep: Sequence[Sequence[int]]
) -> None:
    """Check that next-token-prediction layers have the count that config.json states.

    transformers builds them apart from the model, from the count of the widest layer.

    Args:
        layout: of the source.
        staying: tensors of the source that the export has.
        keep: L sequences of the ids that stay.

    Raises:
        UnsupportedModelError: they would have the last layer's count, and it is another.
    """
    follows = [name for name in staying if name in layout.tensors and layout.tensors[name].follows]
    widest, last = max(map(len, keep)), len(keep[-1])
    if follows and last != widest:
        raise UnsupportedModelError(
            f"--per-layer: the next-token-prediction layers would keep {last} experts like the "
            f"last layer, but are built with the {widest} of the widest one. Use --mtp drop."
        )
