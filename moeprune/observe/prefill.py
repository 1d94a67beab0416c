"""Forward passes over the documents of a domain, every MoE layer observed.

Where documents have a start of counting, the tokens before it are read and not counted.

A causal model reads a batch in one pass. An observer of models that read otherwise has a ``reader``
of its own, which takes a model as :func:`one_pass` does.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeprune import plugins
from moeprune.core.layout import MoeLayout
from moeprune.errors import CheckpointError, UnsupportedModelError, UsageError
from moeprune.observe import observers
from moeprune.observe.batches import WHOLE, Share, batches
from moeprune.observe.domains import Corpus
from moeprune.observe.inputs import Read, one_pass
from moeprune.observe.layers import moe_layers
from moeprune.observe.loss.cuts import frozen
from moeprune.observe.loss.reading import loss_pass
from moeprune.observe.placed import check_here
from moeprune.observe.sums import FoldedSums

__all__ = [
    "Due",
    "Read",
    "Step",
    "check_observer",
    "check_vocabulary",
    "one_by_one",
    "one_pass",
    "passes",
    "prefill",
]


@dataclass(frozen=True, slots=True)
class Step:
    """What was just added to the sums: whole batches, so that a job can stop and go on here.

    Attributes:
        batches: how many; 0: none yet, and the job cannot stop here.
        tokens: of these.
        within: tokens of the batches that are on their way, as far as they have come.
    """

    batches: int
    tokens: int
    within: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A domain, or a part of one, that is to be measured.

    Attributes:
        corpus: its documents.
        sums: of the batches that are skipped.
        skip: batches at the beginning that ``sums`` holds.
        share: which of the batches are run; ``skip`` counts those.
    """

    corpus: Corpus
    sums: FoldedSums
    skip: int = 0
    share: Share = WHOLE


def check_observer(layout: MoeLayout) -> None:
    """Check that calibration knows how to see this family's experts.

    Raises:
        UnsupportedModelError: it does not.
    """
    have = plugins.names(observers)
    if layout.observer not in have:
        raise UnsupportedModelError(
            f"calibration cannot see the experts of family {layout.model_type} yet (observer "
            f"{layout.observer!r}; there are {', '.join(have)}). Take a model of another family."
        )


def passes(
    model: Any,
    corpus: Corpus,
    sums: FoldedSums,
    *,
    layout: MoeLayout,
    batch_tokens: int,
    padding_side: str = "right",
    skip: int = 0,
    share: Share = WHOLE,
) -> Generator[Step]:
    """Run the documents once, and add to ``sums`` what routers and experts did.

    Close the iterator (``contextlib.closing``) where it is not read to its end: the model is
    observed until then, and afterwards as it was.

    Args:
        model: a causal language model.
        corpus: the documents.
        sums: of the batches that are skipped; empty where none is.
        layout: of the model's checkpoint.
        batch_tokens: positions of one forward pass, padding included.
        padding_side: ``"right"`` or ``"left"``; it does not change the sums.
        skip: batches at the beginning that ``sums`` holds already.
        share: which of the batches are run; ``skip`` counts those.

    Yields:
        What each step has added.

    Raises:
        CheckpointError: the tokenizer gives ids that the model does not have, or a number is not
            finite.
        UnsupportedModelError: the model cannot be observed.
        StatsError: a layer reported nothing.
        UsageError: a batch does not fit the GPU's memory.
    """
    check_observer(layout)
    layers = moe_layers(model, layout)
    check_vocabulary(model, corpus)
    if sums.loss:
        check_here(model)
    observer = plugins.load(observers, layout.observer)
    due = batches(corpus, max_tokens=batch_tokens, padding_side=padding_side, share=share)
    with (
        reading(model, observer, layout, loss=sums.loss) as read,
        observer.observing(model, layers=layers, sums=sums),
    ):
        for batch in itertools.islice(due, skip, None):
            try:
                with untracked(loss=sums.loss):
                    read(batch, sums)
            except torch.OutOfMemoryError as problem:
                raise UsageError(
                    f"a batch of {batch.ids_BS.size} tokens does not fit the GPU's memory; give a "
                    "smaller --batch-tokens."
                ) from problem
            yield Step(batches=1, tokens=batch.num_tokens)


def one_by_one(model: Any, due: Sequence[Due], **how: Any) -> Generator[Mapping[int, Step]]:
    """All of :func:`passes` of each domain.

    Args:
        model: see :func:`passes`.
        due: the domains.
        **how: see :func:`passes`.

    Yields:
        Place of a domain -> what was added to its sums.
    """
    for place, item in enumerate(due):
        run = partial(passes, model, item.corpus, item.sums, skip=item.skip, share=item.share)
        with closing(run(**how)) as steps:
            for step in steps:
                yield {place: step}


def prefill(
    model: Any,
    corpus: Corpus,
    *,
    layout: MoeLayout,
    batch_tokens: int,
    padding_side: str = "right",
    on_tokens: Callable[[int], None] | None = None,
) -> Mapping[str, NDArray[Any]]:
    """All of :func:`passes` from the first document to the last.

    Args:
        model: see :func:`passes`, as the others.
        corpus: the documents.
        layout: of the model's checkpoint.
        batch_tokens: positions of one forward pass.
        padding_side: where padding stands.
        on_tokens: told of the tokens of each finished batch.

    Returns:
        Field -> array with a leading fold axis, as ``core.stats.FIELDS`` states them.
    """
    sums = FoldedSums.of(layout)
    how = {"layout": layout, "batch_tokens": batch_tokens, "padding_side": padding_side}
    with closing(passes(model, corpus, sums, **how)) as steps:  # type: ignore[arg-type]
        for step in steps:
            if on_tokens is not None:
                on_tokens(step.tokens)
    return sums.arrays()


@contextlib.contextmanager
def reading(model: Any, observer: Any, layout: MoeLayout, *, loss: bool) -> Iterator[Read]:
    """How a model reads a batch inside the block.

    Args:
        model: see :func:`passes`.
        observer: module of ``observers``.
        layout: of the model's checkpoint.
        loss: whether its loss is taken back through the layers.

    Raises:
        UnsupportedModelError: it cannot be taken.
    """
    # Without a loss too: some kernels are chosen by whether weights ask for a gradient, and sums
    # are to be the same either way, and of a model that is read a layer at a time.
    with frozen(model):
        if loss:
            with loss_pass(model, layout=layout) as read:
                yield read
        else:
            yield getattr(observer, "reader", one_pass)(model)


def untracked(*, loss: bool) -> AbstractContextManager[None]:
    """Around reading: no autograd, unless where the reader asks for it."""
    # What is computed in inference mode can never be tracked.
    return torch.no_grad() if loss else torch.inference_mode()


def check_vocabulary(model: Any, corpus: Corpus) -> None:
    """Check that the model has every token of the documents.

    Raises:
        CheckpointError: it does not.
    """
    size = int(model.get_input_embeddings().num_embeddings)
    largest = max((int(np.max(ids)) for ids in corpus.documents), default=0)
    if largest >= size:
        raise CheckpointError(
            f"domain {corpus.name!r}: the tokenizer gives token {largest}, the model has {size}. "
            "The tokenizer files, or the token ids of a file, belong to another model."
        )
