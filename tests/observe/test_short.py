"""When documents are called too short."""

from __future__ import annotations

import numpy as np
import pytest

from moeprune.observe.domains import Corpus
from moeprune.observe.short import length_warning


def corpus(name: str, *sizes: int) -> Corpus:
    return Corpus(
        name=name,
        source=f"{name}.jsonl",
        sha256="",
        total=len(sizes),
        numbers=tuple(range(len(sizes))),
        documents=tuple(np.zeros(size, np.int32) for size in sizes),
    )


LONG = corpus("long", 1024, 2048)


@pytest.mark.parametrize(
    ("corpora", "length", "said"),
    [
        ([LONG], 2048, None),
        ([corpus("one short of three", 5, 1024, 2048)], 2048, None),
        ([corpus("nothing in this shard")], 2048, None),
        ([LONG], 1024, None),
        ([LONG], 1023, "documents are cut to 1023 tokens; "),
        ([LONG, corpus("tiny", 3, 1023, 1023)], 2048, "short (median tokens: tiny 1023); "),
        ([corpus("a", 7), LONG, corpus("b", 9)], 2048, "(median tokens: a 7, b 9); "),
    ],
)
def test_short_documents_are_said_with_the_finding(
    corpora: list[Corpus], length: int, said: str | None
) -> None:
    warning = length_warning(corpora, length)
    if said is None:
        assert warning is None
        return
    assert warning is not None and said in warning
    assert "D.1" in warning and "1024" in warning and "\n" not in warning
