"""The first tokens of a long text without tokenising all of it, where that is provably the same.

Tokenizers of one kind, which most families have, work piece by piece: special tokens are found,
then a regular expression cuts the text into pieces, then each piece becomes tokens on its own. For
the expressions of ``_PATTERNS`` a piece of letters always ends at the white space after it,
whatever follows, and no decision left of that place looks further right. So the tokens of a text up
to a letter that is followed by one white space and a letter are the first tokens of the whole text.
Of any other tokenizer the whole text is tokenised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_PATTERNS = frozenset(
    {
        # Qwen2, Qwen3
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _END,
        # Llama 3, GLM-4
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _END,
        # Qwen3.5
        _CONTRACTION
        + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        + _END,
        # GPT-OSS
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTION}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTION}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _END,
    }
)
# Letters that every version of Unicode has, and that no normalizer joins with what follows.
_LETTER = "[A-Za-z\u4e00-\u9fa5]"
_PLACE = re.compile(rf"{_LETTER}(?=[ \n]{_LETTER})")
# A tokenizer in English spends 4 to 5 characters on a token.
_CHARACTERS = 8
_SPARE = 4096


def first_ids(
    text: str, length: int, *, tokenizer: Any, ids_of: Callable[[str], Ids], spare: int = _SPARE
) -> Ids:
    """The first ``length`` token ids of a text. (T,) int32.

    Args:
        text: of any length.
        length: ids to return; fewer where the text has fewer.
        tokenizer: that ``ids_of`` uses.
        ids_of: all ids of a text, special tokens at its ends included.
        spare: characters read beyond what the ids are expected to take.
    """
    end = _CHARACTERS * length + spare
    if end < len(text) and works_by_pieces(tokenizer):
        ends = int(tokenizer.num_special_tokens_to_add())  # some stand after the text
        while end < len(text):
            place = _last_place(text, end - spare, end)
            if place is None:
                break
            ids = ids_of(text[:place])
            if ids.size >= length + ends:
                return ids[:length]
            end *= 4
    return ids_of(text)[:length]


def _last_place(text: str, start: int, end: int) -> int | None:
    """The last place in ``text[start:end]`` where a text may be cut."""
    places = [found.end() for found in _PLACE.finditer(text, start, end)]
    return places[-1] if places else None


def works_by_pieces(tokenizer: Any) -> bool:
    """Whether a text's beginning has the beginning of its tokens; False where that is not known."""
    if not getattr(tokenizer, "is_fast", False):
        return False
    made = tokenizer.backend_tokenizer
    return (
        type(made.model).__name__ == "BPE"
        and not made.model.dropout
        and all(part["type"] == "NFC" for part in _parts(made.normalizer, "normalizers"))
        and _cuts_pieces(_parts(made.pre_tokenizer, "pretokenizers"))
        and all(
            part["type"] in ("ByteLevel", "TemplateProcessing")
            for part in _parts(made.post_processor, "processors")
        )
        # A special token that spans the place would be found in the whole text alone.
        and not any(
            re.search(r"\S\s", token.content) for token in made.get_added_tokens_decoder().values()
        )
    )


def _parts(step: Any, inside: str) -> list[Any]:
    """A step of a tokenizer, as tokenizer.json states it, in its parts."""
    if step is None:
        return []
    # Of this step alone: the whole tokenizer's JSON holds its vocabulary, megabytes of it.
    made = json.loads(step.__getstate__())
    return list(made[inside]) if made["type"] == "Sequence" else [made]


def _cuts_pieces(parts: list[Any]) -> bool:
    """Whether it is GPT-2's expression, or one of ``_PATTERNS`` and then bytes."""
    if [part["type"] for part in parts] == ["ByteLevel"]:
        return bool(parts[0].get("use_regex", True))
    if [part["type"] for part in parts] != ["Split", "ByteLevel"]:
        return False
    split, level = parts
    return (
        split["pattern"].get("Regex") in _PATTERNS
        and split["behavior"] == "Isolated"
        and not split["invert"]
        and not level.get("use_regex", True)
    )
