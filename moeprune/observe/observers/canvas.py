"""Observe block diffusion (DiffusionGemma): an encoder of text and a decoder of canvases.

The model writes a text canvas by canvas. The encoder, causal, keeps what stands before a canvas in
a cache; the decoder, which sees all of the canvas and reads that cache, denoises it from random
tokens, in many steps; then the encoder takes the finished canvas in. Both have the same experts.

A document is read as if it were being written: its first token is the prompt, each further run of
``canvas_length`` tokens a canvas. So every token counts once in the encoder, and every token but
the first once in the decoder, in a canvas of which a share, uniform between 0 and 1, is random
tokens. That is a denoising step at a random moment, without self-conditioning: the decoder's former
logits are those of a step that is not taken.

B documents, S positions, C positions of a canvas.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeprune.observe.batches import Batch
from moeprune.observe.layers import MoeLayer
from moeprune.observe.observers import probabilities
from moeprune.observe.placed import input_device
from moeprune.observe.sums import FoldedSums

Ids = NDArray[np.int64]


@contextlib.contextmanager
def observing(model: Any, *, layers: Sequence[MoeLayer], sums: FoldedSums) -> Iterator[None]:
    """Report every MoE layer of encoder and decoder to ``sums`` inside the block."""
    with probabilities.observing(model, layers=layers, sums=sums):
        yield


def reader(model: Any) -> Callable[[Batch, FoldedSums], None]:
    """How the model reads a batch: encoder and decoder in turns, canvas by canvas."""
    encoder, decoder = model.get_encoder(), model.get_decoder()
    length = int(model.config.canvas_length)
    vocabulary = int(model.get_input_embeddings().num_embeddings)

    def read(batch: Batch, sums: FoldedSums) -> None:
        ids_BS, mask_BS, fold_BS = _first_to_the_left(batch)
        number_B = batch.number_B
        cache: Any = None
        for start, end in _spans(ids_BS.shape[1], length):
            # Documents that are over take no part any more, so only last canvases have padding.
            on_B = mask_BS[:, start] == 1
            if not on_B.all():
                ids_BS, mask_BS, fold_BS = ids_BS[on_B], mask_BS[on_B], fold_BS[on_B]
                number_B = number_B[on_B]
                cache.batch_select_indices(_tensor(np.flatnonzero(on_B), model))
            known = None if mask_BS[:, :end].all() else _tensor(mask_BS[:, :end], model)
            span_BC = ids_BS[:, start:end]
            if start:
                canvas_BC = noisy(
                    span_BC, number_B, start=start, length=length, vocabulary=vocabulary
                )
                sums.begin(fold_BS[:, start:end], number_B=number_B)
                decoder(_tensor(canvas_BC, model), cache=cache, decoder_attention_mask=known)
                sums.end()
            sums.begin(fold_BS[:, start:end], number_B=number_B)
            cache = encoder(_tensor(span_BC, model), attention_mask=known, cache=cache).cache
            sums.end()

    return read


def noisy(ids_BC: Ids, number_B: Ids, *, start: int, length: int, vocabulary: int) -> Ids:
    """Canvases of which a share of the tokens, another for each, is replaced by random ones.

    Args:
        ids_BC: the texts' own tokens.
        number_B: of the documents; with ``start`` it is the seed, so batches change no canvas.
        start: position of the canvas in its document.
        length: C of a whole canvas; the last one of a document may be shorter.
        vocabulary: random tokens are below it.
    """
    canvas_BC = ids_BC.copy()
    for canvas_C, number in zip(canvas_BC, number_B.tolist(), strict=True):
        # The same numbers with every numpy, on every machine.
        draw = np.random.RandomState([number, start])
        share, chance_C, token_C = (
            draw.random_sample(),
            draw.random_sample(length),
            (draw.random_sample(length) * vocabulary).astype(np.int64),
        )
        places = np.flatnonzero(chance_C[: canvas_C.size] < share)
        canvas_C[places] = token_C[places]
    return canvas_BC


def _spans(width: int, length: int) -> Iterator[tuple[int, int]]:
    """The prompt of one token, then the canvases; the last one as long as what is left."""
    yield 0, 1
    for start in range(1, width, length):
        yield start, min(start + length, width)


def _first_to_the_left(batch: Batch) -> tuple[Ids, Ids, Ids]:
    """Token ids, mask and fold of every position, with all padding on the right."""
    order_BS = np.argsort(batch.mask_BS == 0, axis=1, kind="stable")
    ids_BS, mask_BS, fold_BS = (
        np.take_along_axis(values_BS, order_BS, axis=1)
        for values_BS in (batch.ids_BS, batch.mask_BS, batch.fold_BS)
    )
    return ids_BS, mask_BS, fold_BS


def _tensor(values: Ids, model: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(input_device(model))
