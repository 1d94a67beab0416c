"""How a model writes: how its next token is chosen, where it ends, and what it wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moeprune.errors import CheckpointError, UnsupportedModelError
from moeprune.observe.domains import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a model wrote.

    Attributes:
        ids: int32 token ids, with the end token where there is one, and with the stop text.
        finished: it ended by itself or at a stop text; else the budget was used up.
        close: rounding within its batch could have chosen a token of it (where that was watched).
    """

    ids: Ids
    finished: bool
    close: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How the next token is chosen.

    Attributes:
        max_new_tokens: the budget of a completion.
        temperature: 0 = the most probable token; else one drawn from softmax(logits/temperature).
        seed: of the draws, where they have no names.
        stop: texts at which a completion ends, none empty.
    """

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    @property
    def do_sample(self) -> bool:
        """Whether tokens are drawn."""
        return self.temperature > 0


def check_generates(model: Any) -> None:
    """Check that transformers can write text with this model.

    Raises:
        UnsupportedModelError: it cannot.
    """
    can = getattr(model, "can_generate", None)
    if can is None or not can():
        raise UnsupportedModelError(
            f"{type(model).__name__} has no generate of transformers, so it cannot write here. "
            "Calibrate with --generations FILE (what another engine wrote) or --mode prefill; "
            "evaluate tasks whose answers are not written."
        )


def end_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Tokens after which a completion ends: the checkpoint's, and the tokenizer's own.

    One that the model does not have, as −1, is a way to say that there is none.

    Raises:
        CheckpointError: generation_config.json states something else than token ids.
    """
    stated = getattr(model.generation_config, "eos_token_id", None)
    found = stated if isinstance(stated, list | tuple) else [stated]
    if any(end is not None and type(end) is not int for end in found):
        raise CheckpointError(
            f"generation_config.json: eos_token_id {str(stated)[:80]!r} is no token id, nor a list "
            "of them. Correct it."
        )
    ends = {end for end in (*found, tokenizer.eos_token_id) if end is not None}
    size = int(model.get_input_embeddings().num_embeddings)
    return tuple(sorted(end for end in ends if 0 <= end < size))
