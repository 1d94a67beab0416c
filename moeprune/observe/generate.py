"""Continuations of prompts, written by the model itself with a key-value cache.

Sampling is what was asked for and nothing else: a checkpoint's own ``generation_config`` may hold
another temperature, top-p or a penalty, of which only the end tokens are taken.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from moeprune.errors import CheckpointError, UsageError
from moeprune.observe.batches import WHOLE, Share
from moeprune.observe.decoding import Completion, Decoding, check_generates, end_tokens
from moeprune.observe.domains import Ids
from moeprune.observe.placed import input_device
from moeprune.observe.quiet import foreign_errors, quiet
from moeprune.observe.steering import steered

__all__ = ["Completion", "Decoding", "check_generates", "end_tokens", "generate", "num_groups"]


def generate(
    model: Any,
    prompts: Sequence[Ids],
    *,
    how: Decoding,
    ends: Sequence[int],
    batch_tokens: int,
    kept: Mapping[int, Completion] | None = None,
    on_done: Callable[[Sequence[int], Sequence[Completion]], None] | None = None,
    share: Share = WHOLE,
    tokenizer: Any = None,
    names: Sequence[str] | None = None,
) -> tuple[Completion, ...]:
    """Let the model go on after each prompt.

    Prompts of like length run side by side, padded on the left; those of equal length alone, where
    the model may not leave out padding (code that comes with a checkpoint, some MiniMax). Tokens
    that are drawn depend on the prompts of the batch that they are drawn in, and on no other batch;
    those of named draws on the name alone.
    With names, and in single precision, a completion of which the batch's rounding could have
    chosen a token is written once more, alone.

    Args:
        model: a causal language model; it is left as it was.
        prompts: token ids.
        how: tokens are chosen.
        ends: tokens after which a completion ends.
        batch_tokens: positions of one batch: prompts, padding and budgets.
        kept: number of the prompt -> its completion, of earlier batches of the same request.
        on_done: given the numbers and completions of each finished batch.
        share: which of the batches are run.
        tokenizer: of the model, where there are stop texts.
        names: of each prompt's draws: tokens of the same name are drawn with the same luck, in any
            batch and from any model (see :mod:`moeprune.observe.paired_draws`).

    Returns:
        A completion a prompt, each of at least one token; of prompts in other batches than those of
        ``share`` where they were kept.

    Raises:
        CheckpointError: the model's own code fails, or has not all tokens of the prompts.
        UnsupportedModelError: see :func:`check_generates`.
        UsageError: a batch does not fit the GPU's memory.
    """
    check_generates(model)
    _check_vocabulary(model, prompts)
    found: dict[int, Completion] = dict(kept or {})
    place = input_device(model)
    devices = [place] if place.type == "cuda" else []
    with _plain_settings(model), torch.random.fork_rng(devices=devices), torch.inference_mode():
        for number, rows in enumerate(_groups(model, prompts, how, batch_tokens)):
            if not share.holds(number) or all(row in found for row in rows):
                continue
            torch.manual_seed(_seed(how.seed, rows[0]))
            done = _written(model, rows, prompts, how, ends, tokenizer, names)
            found |= zip(rows, done, strict=True)
            if on_done is not None:
                on_done(rows, done)
    return tuple(found[row] for row in range(len(prompts)) if row in found)


def num_groups(model: Any, prompts: Sequence[Ids], *, how: Decoding, batch_tokens: int) -> int:
    """How many batches all of the prompts make."""
    return sum(1 for _ in _groups(model, prompts, how, batch_tokens))


def _check_vocabulary(model: Any, prompts: Sequence[Ids]) -> None:
    size = int(model.get_input_embeddings().num_embeddings)
    largest = max((int(ids.max()) for ids in prompts), default=0)
    if largest >= size:
        raise CheckpointError(
            f"the tokenizer gives token {largest}, the model has {size}. The tokenizer files "
            "belong to another model."
        )


def _seed(seed: int, row: int) -> int:
    """Of a batch, by its first prompt: a run that goes on draws what the first would have."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{row}".encode()).digest()[:7], "little")


@contextlib.contextmanager
def _plain_settings(model: Any) -> Iterator[None]:
    """Without the checkpoint's generation settings, which transformers would fill in."""
    from transformers import GenerationConfig

    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


def _groups(
    model: Any, prompts: Sequence[Ids], how: Decoding, batch_tokens: int
) -> Iterator[list[int]]:
    """Numbers of prompts that run side by side, longest first."""
    pads = _pads(model)
    rows: list[int] = []
    for row in sorted(range(len(prompts)), key=lambda row: (-prompts[row].size, row)):
        longest = prompts[rows[0] if rows else row].size
        full = (longest + how.max_new_tokens) * (len(rows) + 1) > batch_tokens
        if rows and (full or not (pads or prompts[row].size == longest)):
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


def _written(
    model: Any,
    rows: Sequence[int],
    prompts: Sequence[Ids],
    how: Decoding,
    ends: Sequence[int],
    tokenizer: Any,
    names: Sequence[str] | None,
) -> list[Completion]:
    """Completions of one batch."""

    def together(some: Sequence[int]) -> list[Completion]:
        mine = None if names is None else [names[row] for row in some]
        return _batch(model, [prompts[row] for row in some], how, ends, tokenizer, mine)

    done = together(rows)
    return [together([row])[0] if one.close else one for row, one in zip(rows, done, strict=True)]


def _pads(model: Any) -> bool:
    """Whether padding on the left is left out while a model writes."""
    # Whether code that comes with a checkpoint does that, nobody has tested.
    if type(model).__module__.startswith("transformers_modules."):
        return False
    # MiniMax's cache tells its length by the first layer. Of linear attention that has none, and
    # from the second token on the mask of the others stands in the wrong place (transformers 5.24).
    config = model.config.get_text_config()
    layers = getattr(config, "layer_types", None)
    return not (config.model_type == "minimax" and layers and layers[0] == "linear_attention")


def _batch(
    model: Any,
    prompts: Sequence[Ids],
    how: Decoding,
    ends: Sequence[int],
    tokenizer: Any,
    names: Sequence[str] | None,
) -> list[Completion]:
    from transformers import GenerationConfig

    width = max(ids.size for ids in prompts)
    ids_BS = np.full((len(prompts), width), ends[0] if ends else 0, np.int64)
    mask_BS = np.zeros_like(ids_BS)
    for line, ids in enumerate(prompts):
        ids_BS[line, width - ids.size :] = ids
        mask_BS[line, width - ids.size :] = 1
    sampled = how.do_sample and names is None
    settings = GenerationConfig(
        max_new_tokens=how.max_new_tokens,
        do_sample=sampled,
        **({"temperature": how.temperature, "top_k": 0, "top_p": 1.0} if sampled else {}),
        eos_token_id=list(ends) or None,
        pad_token_id=ends[0] if ends else 0,
        use_cache=True,
    )
    exact = model.dtype in (torch.float32, torch.float64)
    extra = steered(how, names, tokenizer, rows=len(prompts), width=width, exact=exact)
    with (
        quiet(),
        foreign_errors(
            f"{type(model).__name__} fails while it writes",
            "Let another engine write: calibrate reads that by --generations FILE, and compare by "
            "what lm_eval logs.",
            error=CheckpointError,
            also=(ArithmeticError, AssertionError),
        ),
    ):
        try:
            found_BS = model.generate(
                torch.from_numpy(ids_BS).to(input_device(model)),
                attention_mask=torch.from_numpy(mask_BS).to(input_device(model)),
                generation_config=settings,
                **extra.told,
            )
        except torch.OutOfMemoryError as problem:
            raise UsageError(
                f"{len(prompts)} prompts of up to {width} tokens and what follows them do not "
                "fit the GPU's memory; give a smaller --max-new-tokens, or a smaller batch "
                "(calibrate --batch-tokens, eval --batch-size)."
            ) from problem
    lengths = extra.stopping.lengths if extra.stopping else [None] * len(prompts)
    lines = found_BS.cpu().numpy()[:, width:]
    done = [_ended(ids, ends, length) for ids, length in zip(lines, lengths, strict=True)]
    if extra.ties is None:
        return done
    close = extra.ties.within([one.ids.size for one in done])
    return [replace(one, close=near) for one, near in zip(done, close, strict=True)]


def _ended(ids: Any, ends: Sequence[int], length: int | None) -> Completion:
    """A completion up to its first end token or its stop text; padding follows that."""
    places = np.flatnonzero(np.isin(ids, list(ends)))
    found = [int(places[0]) + 1] if places.size else []
    found += [] if length is None else [length]
    if not found:
        return Completion(ids=ids.astype(np.int32), finished=False)
    return Completion(ids=ids[: min(found)].astype(np.int32), finished=True)
