"""What the names of stored tensors say: which part of a model each belongs to."""

from __future__ import annotations

from collections.abc import Iterable

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
# What else wrappers keep of them: encoders under names of their own, and what leads from them into
# the language model. By the beginnings and ends of the modules' names.
_AROUND = (
    "vision", "image", "video", "audio", "sound", "speech", "multi_modal", "mm_projector",
    "pre_mm_projector", "projector", "patch_merge", "mlp1", "resampler", "view_", "vit_", "sam_",
    "qwen2_model",
)  # fmt: skip
_AROUND_ENDS = ("_vision", "_image", "_audio", "_video")
_SHARED = ("shared_expert", "share_expert", "shared_mlp")
_TABLES = frozenset(
    {"wte", "wpe", "word_embeddings", "tok_embeddings", "embeddings", "embed", "embedding"}
)
_HEADS = frozenset({"lm_head", "head", "output", "unembed", "embed_out", "output_layer"})
_MAX_DIGITS = 9


def is_language(name: str) -> bool:
    """Whether ``name`` lies outside of the vision, audio and talker models of a checkpoint."""
    return _OTHER_MODELS.isdisjoint(name.split("."))


def is_text_path(name: str) -> bool:
    """Whether a token of text may pass ``name``: it is in no other model and in no way to one."""
    return is_language(name) and not any(
        part.startswith(_AROUND) or part.endswith(_AROUND_ENDS) for part in name.split(".")
    )


def names_next_token(parts: Iterable[str]) -> bool:
    """Whether a dotted name says that it lies in a next-token-prediction layer."""
    return any(part == "mtp" or part.startswith(("mtp_", "nextn")) for part in parts)


def names_shared(name: str) -> bool:
    """Whether ``name`` belongs to experts of a block that every token runs."""
    return any(part.startswith(_SHARED) for part in name.split("."))


def names_table(name: str) -> bool:
    """Whether ``name`` is a table with a row a token: embeddings, outside of the layers."""
    parts = name.split(".")
    return (
        len(parts) > 1
        and (parts[-2] in _TABLES or parts[-2].startswith("embed_tokens"))
        and not any(map(is_number, parts))
    )


def names_head(name: str) -> bool:
    """Whether ``name`` is the output layer over the vocabulary."""
    parts = name.split(".")
    return len(parts) > 1 and parts[-2] in _HEADS and not any(map(is_number, parts))


def is_number(part: str) -> bool:
    """Whether a part of a name is the number of a layer or an expert, and no other digits."""
    return part.isascii() and part.isdecimal() and len(part) <= _MAX_DIGITS
