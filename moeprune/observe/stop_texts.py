"""Completions that end at a text: looked for in each row's own last tokens, after every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import StoppingCriteria

# Tokens that are looked at beside one a byte of the stop text: some decode to nothing, and the
# first of them may be read otherwise than in its place.
_MORE = 8


class StopTexts(StoppingCriteria):
    """Ends a row where one of the texts stands in what it wrote.

    Special tokens count as their names. Rows end one by one, whatever the others do.

    Attributes:
        lengths: of each row, tokens written when it ended; None: it did not.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str], *, rows: int, width: int) -> None:
        """Watch a batch.

        Args:
            tokenizer: of the model.
            stop: the texts, none empty.
            rows: of the batch.
            width: of the prompts, padding included.
        """
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._width = width
        self._tail = max(len(text.encode()) for text in stop) + _MORE
        self.lengths: list[int | None] = [None] * rows

    def __call__(
        self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any
    ) -> torch.BoolTensor:
        """Whether each row has ended. (B,) bool."""
        written = input_ids.shape[1] - self._width
        tails = input_ids[:, self._width :][:, -self._tail :].tolist()
        for row, tail in enumerate(tails):
            if self.lengths[row] is None:
                text = self._tokenizer.decode(tail)
                if any(end in text for end in self._stop):
                    self.lengths[row] = written
        ended = [length is not None for length in self.lengths]
        return torch.tensor(ended, device=input_ids.device)  # type: ignore[return-value]
