"""What recipes and routers share: which names to look at, and which layer a name belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from moeprune.core.names import is_language, is_number, names_next_token


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMatch:
    """A stored tensor that holds routed experts.

    Attributes:
        container: path of the module that owns the experts, e.g. ``model.layers.3.mlp.experts``.
        expert: the expert's number in the name, or None.
        part: what follows the expert's number; with it every expert has the same parts.
        axis: the axis of all experts, or None; exactly one of ``expert`` and ``axis`` is set.
        block: consecutive positions on ``axis`` that one expert owns.
    """

    container: str
    expert: int | None = None
    part: str = ""
    axis: int | None = None
    block: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LayerPath:
    """A layer as tensor names spell it.

    Attributes:
        follows: a next-token-prediction layer, which the main model's forward never runs.
        number: the number in the name.
        prefix: the name up to and including the number, e.g. ``model.layers.3``.
    """

    follows: bool
    number: int
    prefix: str


def is_routed(name: str) -> bool:
    """Whether ``name`` can belong to the language model's routed experts or their router."""
    return is_language(name) and not any(
        part.startswith("shared_expert") for part in name.split(".")
    )


def layer_path(container: str, *, num_layers: int | None) -> LayerPath | None:
    """The layer that ``container`` belongs to, or None where its path has no number.

    Args:
        container: path of a module inside the layer.
        num_layers: layers of the main model; those numbered after them predict further tokens.
    """
    parts = container.split(".")
    numbered = [index for index, part in enumerate(parts) if is_number(part)]
    if not numbered:
        return None
    number = int(parts[numbered[-1]])
    beyond = num_layers is not None and number >= num_layers
    return LayerPath(
        follows=names_next_token(parts) or beyond,
        number=number,
        prefix=".".join(parts[: numbered[-1] + 1]),
    )


def block_path(container: str) -> str:
    """The module that owns both the experts and their router."""
    parent, _, last = container.rpartition(".")
    return parent if last == "experts" else container
