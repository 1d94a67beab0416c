"""What a tokenizer puts around a text: special tokens, and a space before its first word."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
IdsOf = Callable[[str], Ids]

_PROBES = ("a", "1", ".")
# What a text may stand behind: of these one does not melt into its first token.
_BEFORE = ("\n", ".", "a", "1")


def special_ends(with_special: IdsOf, plain: IdsOf) -> tuple[Ids, Ids]:
    """Special tokens that stand before a text, and those that stand after it.

    Args:
        with_special: token ids of a text, special tokens included.
        plain: the same without them.
    """
    for probe in _PROBES:
        whole, inside = with_special(probe), plain(probe)
        for start in range(whole.size - inside.size + 1):
            end = start + inside.size
            if inside.size and np.array_equal(whole[start:end], inside):
                return whole[:start], whole[end:]
    return np.zeros(0, np.int32), np.zeros(0, np.int32)


def inner_ids(text: str, plain: IdsOf) -> Ids:
    """Token ids of a text that goes on from another, without a space that only a beginning has.

    Tokenizers of the kind of Llama 2 and Mixtral write one before whatever they are given.

    Args:
        text: what goes on.
        plain: token ids of a text, without special tokens.
    """
    own = plain(text)
    behind = _behind("a", plain)
    if behind is None or np.array_equal(behind, plain("a")):
        return own
    behind = _behind(text, plain)
    return own if behind is None else behind


def _behind(text: str, plain: IdsOf) -> Ids | None:
    """Token ids of ``text`` where it stands behind another; None: they cannot be told apart."""
    for before in _BEFORE:
        first, both = plain(before), plain(before + text)
        if np.array_equal(both[: first.size], first):
            return both[first.size :]
    return None
