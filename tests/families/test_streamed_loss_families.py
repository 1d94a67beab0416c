"""The loss of every family read a layer at a time: the sums of the model in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_data import family_data, params, write_checkpoint

from moeprune.errors import StatsError, UnsupportedModelError
from moeprune.observe.streamed import activations
from moeprune.observe.streamed.probe import probe

sys.path.insert(0, str(Path(__file__).parents[1] / "observe"))
from streaming import (
    assert_same,
    corpus_of,
    open_streamed,
    random_documents,
    streamed_sums,
    whole_sums,
)

# They run a layer more than once for a batch, and its sums are added wave by wave in another order.
SEVERAL_TIMES = ("inkling2_loop", "inkling2_loop_text")


@pytest.mark.parametrize("name", params())
def test_sums(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    data = family_data(name)
    record_property("family", data.entry)
    monkeypatch.setattr(activations, "_SMALL", 1)
    path = write_checkpoint(data, tmp_path / "m")
    corpora = [
        corpus_of(random_documents([30, 17, 9, 25, 40, 12, 5, 1], vocab=200)),
        corpus_of(random_documents([14, 22, 33], vocab=200, seed=4), name="e"),
    ]
    (tmp_path / "files").mkdir()
    how: dict[str, Any] = {"positions": 130, "memory": 0, "folder": tmp_path / "files"}
    try:
        want = whole_sums(path, corpora, batch_tokens=60, loss=True)
    except (StatsError, UnsupportedModelError) as problem:
        # What differs is the layer that meets it first, if any.
        words = str(problem).rpartition(": ")[2]
        with pytest.raises((StatsError, UnsupportedModelError)) as told:
            streamed_sums(path, corpora, batch_tokens=60, loss=True, **how)
        assert str(told.value).endswith(words)
        return
    found, _ = streamed_sums(path, corpora, batch_tokens=60, loss=True, **how)
    if name in SEVERAL_TIMES:
        for mine, theirs in zip(found, want, strict=True):
            for field in theirs:
                np.testing.assert_allclose(mine[field], theirs[field], rtol=1e-11, atol=1e-13)
    else:
        assert_same(found, want)
    opened, streamed = open_streamed(path)
    seen = probe(streamed, corpora, layout=opened.layout, loss=True)
    assert seen.kept > 0 and seen.head_seconds > 0
    assert torch.is_grad_enabled()
