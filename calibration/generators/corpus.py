"""From kinds of exercise to documents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from random import Random

from generators.piece import Kind, Layout, Piece

SEED = 20261130
DOCUMENTS = 28
MIN_WORDS = 315


def compose(name: str, kinds: Sequence[Kind], layouts: Sequence[Layout]) -> list[str]:
    """Make the documents of a domain: different kinds in turn until each is long enough."""
    rng = Random(f"{SEED}:{name}")
    used: Counter[Kind] = Counter()
    queue: list[Kind] = []
    documents: list[str] = []
    for number in range(DOCUMENTS):
        layout = layouts[number % len(layouts)]
        pieces: list[Piece] = []
        here: set[Kind] = set()
        while True:
            index = next((i for i, kind in enumerate(queue) if kind not in here), None)
            if index is None:
                queue += rng.sample(kinds, len(kinds))
                continue
            kind = queue.pop(index)
            here.add(kind)
            pieces.append(kind(rng, used[kind]))
            used[kind] += 1
            text = layout(number, pieces)
            if len(text.split()) >= MIN_WORDS:
                documents.append(text)
                break
    return documents


def jsonl(documents: Sequence[str]) -> bytes:
    """Encode documents as JSON lines."""
    return "".join(json.dumps({"text": d}, ensure_ascii=False) + "\n" for d in documents).encode(
        "utf-8"
    )
