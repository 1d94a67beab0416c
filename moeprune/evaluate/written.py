"""What a model wrote: its text, where it ends, and whether its budget ended it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from moeprune.evaluate.encoding import Ids


class Completion(Protocol):
    """What a function that lets a model write returns for a prompt."""

    @property
    def ids(self) -> Ids:
        """Token ids, with the end token where there is one."""

    @property
    def finished(self) -> bool:
        """It ended by itself or at a stop text; else the budget was used up."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """A written answer.

    Attributes:
        ids: of all that was written, the end token and the stop text included.
        text: what was written, without special tokens and up to the first stop text.
        truncated: the budget was used up, without an end token or a stop text.
    """

    ids: Ids
    text: str
    truncated: bool

    @classmethod
    def of(cls, written: Completion, *, tokenizer: Any, stop: Sequence[str]) -> Answer:
        """Read a completion."""
        whole = str(tokenizer.decode(written.ids.tolist(), skip_special_tokens=True))
        text = cut_at(whole, stop)
        ended = written.finished or len(text) < len(whole)
        return cls(ids=written.ids, text=text, truncated=not ended)


def cut_at(text: str, stop: Sequence[str]) -> str:
    """The text up to where the first of the stop texts begins."""
    places = [place for end in stop if (place := text.find(end)) >= 0]
    return text[: min(places)] if places else text
