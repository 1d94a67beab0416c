"""Texts as token ids, exactly as the harness encodes them: the context and what is scored after it.

A context's white space at its end belongs to the continuation, both are encoded as one text, and
what lies beyond the tokens of the context alone is the continuation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.core.foreign import foreign_errors
from moeprune.errors import UsageError

Ids = NDArray[np.int32]

DEFAULT_LENGTH = 2048
"""Tokens that a model is given where neither its config nor its tokenizer states how many."""

_STATED = ("n_positions", "max_position_embeddings", "n_ctx")
# Tokenizers of transformers that do not know a length state this or more.
_UNKNOWN = 10**9


def max_length_of(model: Any, tokenizer: Any) -> int:
    """Tokens that a model reads at once: what its config states, else its tokenizer, else 2048."""
    config = model.config.get_text_config()
    for name in _STATED:
        stated = getattr(config, name, None)
        if type(stated) is int and stated > 0:
            return stated
    stated = getattr(tokenizer, "model_max_length", None)
    return stated if type(stated) is int and 0 < stated < _UNKNOWN else DEFAULT_LENGTH


class Encoder:
    """Encodes for one model.

    Attributes:
        max_length: tokens that the model reads at once.
        prefix: the token before a text that has nothing before it: begin token, else end token.
    """

    def __init__(self, tokenizer: Any, *, max_length: int) -> None:
        if max_length < 2:
            raise UsageError(f"a length of {max_length} tokens leaves nothing to predict; give 2.")
        self.max_length = max_length
        self._tokenizer = tokenizer
        found = tokenizer.bos_token_id
        self._prefix: int | None = tokenizer.eos_token_id if found is None else found
        self._begin = "" if self._prefix is None else str(tokenizer.decode([self._prefix]))
        self._num_ends = self._ends()
        self._last: tuple[str, Ids] = ("", np.empty(0, np.int32))

    @property
    def prefix(self) -> int:
        """See the class.

        Raises:
            UsageError: the tokenizer has neither.
        """
        if self._prefix is None:
            raise UsageError(
                "the tokenizer has neither a begin nor an end token, so the first token of a text "
                "cannot be scored. Give it a bos_token."
            )
        return self._prefix

    def text(self, text: str, *, special: bool = True) -> Ids:
        """Ids of a text that goes on: with what the tokenizer puts before it, not after it.

        A text that starts with the begin token (a chat template wrote it) is given no second one.

        Raises:
            UsageError: the tokenizer fails on it.
        """
        special = special and not (self._begin and text.startswith(self._begin))
        with foreign_errors(
            f"the tokenizer fails on {_short(text)}", "Leave the text out.", error=UsageError
        ):
            # verbose=False: what is too long is cut or refused here, the tokenizer need not warn.
            found = self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        if special and self._num_ends:
            found = found[: -self._num_ends]
        return np.asarray(found, np.int32)

    def pair(self, context: str, continuation: str) -> tuple[Ids, Ids]:
        """Ids of a context and of what is scored after it, not cut.

        Raises:
            UsageError: the continuation has no token of its own, or more than the model reads.
        """
        bare = context.rstrip()
        continuation = context[len(bare) :] + continuation
        before = self._context(bare)
        if bare:
            after = self.text(bare + continuation)[before.size :]
        else:
            after = self.text(continuation, special=False)
        if not before.size:
            before = np.array([self.prefix], np.int32)
            if after.size and after[0] == before[0]:
                after = after[1:]
        if not after.size:
            raise UsageError(
                f"{_short(continuation)} has no token of its own after {_short(bare[-40:])}. "
                "Give the task a delimiter that the tokenizer keeps apart."
            )
        if after.size > self.max_length:
            raise UsageError(
                f"{_short(continuation)} has {after.size} tokens, the model reads "
                f"{self.max_length} at once. Leave the question out, or shorten it."
            )
        # A copy: a view would keep the whole text of each choice in memory.
        return before, after.copy()

    def prompt(self, text: str) -> Ids:
        """Ids of a text that the model is to go on with, not cut.

        Raises:
            UsageError: it has none, and the tokenizer no token to begin with.
        """
        found = self._context(text)
        if not found.size:
            return np.array([self.prefix], np.int32)
        return found

    def _context(self, text: str) -> Ids:
        # The choices of a question follow the same context.
        if not text:
            return np.empty(0, np.int32)
        if text != self._last[0]:
            self._last = (text, self.text(text))
        return self._last[1]

    def _ends(self) -> int:
        """Special tokens that the tokenizer puts after a text."""
        whole = self._tokenizer("a", add_special_tokens=True)["input_ids"]
        bare = self._tokenizer("a", add_special_tokens=False)["input_ids"]
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return len(whole) - len(bare) - start
        return 0


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
