"""What a calibration reads, in either mode, before the model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moeprune.stages.asking import Asked, ask
from moeprune.stages.decode_words import DecodeWords
from moeprune.stages.texts import read_texts

if TYPE_CHECKING:
    from moeprune.observe.domains import Corpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The texts.

    Attributes:
        corpora: of every domain in prefill; empty in decode mode.
        asked: the prompts of decode mode, else None.
        length: tokens of a document, or of a prompt, that were allowed.
    """

    corpora: Sequence[Corpus]
    asked: Asked | None
    length: int

    @property
    def identity(self) -> list[list[Any]]:
        """What tells these texts from others: name, hash and number of documents of each domain."""
        found = self.corpora if self.asked is None else self.asked.prompts
        return [[text.name, text.sha256, text.total] for text in found]


def gather(
    sources: Mapping[str, str],
    *,
    mode: str,
    words: DecodeWords,
    chat_template: bool,
    on_warning: Callable[[str], None] | None,
    loss: str | None = None,
    **how: Any,
) -> Gathered:
    """Read every domain.

    Args:
        sources: name -> source.
        mode: of calibration.
        words: of decode mode.
        chat_template: write chats as the tokenizer's template does.
        on_warning: told where documents are too short, or asked otherwise than they seem meant.
        loss: of which tokens it is taken, ``"completion"`` or ``"all"``; None: there is none.
        how: config, tokenizer, length, samples, seed and shard.

    Raises:
        MoePruneError: a source or an option does not serve.
    """
    if mode == "decode":
        asked = ask(words, sources=sources, on_warning=on_warning, **how)
        return Gathered(corpora=(), asked=asked, length=asked.length)
    how["chat_template"] = chat_template
    corpora, length = read_texts(sources, on_warning=on_warning, loss=loss, **how)
    return Gathered(corpora=corpora, asked=None, length=length)
