"""What recipes and routers share: which names to look at, and which layer a name belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Vision, audio and talker models may hold experts of their own; shared experts are never routed.
_OTHER_MODELS = frozenset(
    {
        "audio_encoder",
        "audio_tower",
        "code2wav",
        "sam_model",
        "talker",
        "vision_encoder",
        "vision_model",
        "vision_tower",
        "visual",
        "vit",
    }
)
_MAX_DIGITS = 9


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


def is_language(name: str) -> bool:
    """Whether ``name`` lies outside of the vision, audio and talker models of a checkpoint."""
    return _OTHER_MODELS.isdisjoint(name.split("."))


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


def names_next_token(parts: Iterable[str]) -> bool:
    """Whether a dotted name says that it lies in a next-token-prediction layer."""
    return any(part == "mtp" or part.startswith(("mtp_", "nextn")) for part in parts)


def is_number(part: str) -> bool:
    """Whether a part of a name is the number of a layer or an expert, and no other digits."""
    return part.isascii() and part.isdecimal() and len(part) <= _MAX_DIGITS


def block_path(container: str) -> str:
    """The module that owns both the experts and their router."""
    parent, _, last = container.rpartition(".")
    return parent if last == "experts" else container
