"""Continuations of prompts, written by the model itself with a key-value cache.

Sampling is what was asked for and nothing else: a checkpoint's own ``generation_config`` may hold
another temperature, top-p or a penalty, of which only the end tokens are taken.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from moeprune.errors import CheckpointError, UnsupportedModelError, UsageError
from moeprune.observe.batches import WHOLE, Share
from moeprune.observe.domains import Ids
from moeprune.observe.placed import input_device
from moeprune.observe.quiet import foreign_errors, quiet


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a model wrote.

    Attributes:
        ids: int32 token ids, with the end token where there is one.
        finished: it ended by itself; else the budget was used up.
    """

    ids: Ids
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How the next token is chosen.

    Attributes:
        max_new_tokens: the budget of a completion.
        temperature: 0 = the most probable token; else one drawn from softmax(logits/temperature).
        seed: of the draws.
    """

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0

    @property
    def do_sample(self) -> bool:
        """Whether tokens are drawn."""
        return self.temperature > 0


def check_generates(model: Any) -> None:
    """Check that transformers can write text with this model.

    Raises:
        UnsupportedModelError: it cannot.
    """
    can = getattr(model, "can_generate", None)
    if can is None or not can():
        raise UnsupportedModelError(
            f"{type(model).__name__} has no generate of transformers, so --mode decode cannot let "
            "it write. Use --generations FILE with what another engine wrote, or --mode prefill."
        )


def end_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Tokens after which a completion ends: the checkpoint's, and the tokenizer's own.

    One that the model does not have, as −1, is a way to say that there is none.

    Raises:
        CheckpointError: generation_config.json states something else than token ids.
    """
    stated = getattr(model.generation_config, "eos_token_id", None)
    found = stated if isinstance(stated, list | tuple) else [stated]
    if any(end is not None and type(end) is not int for end in found):
        raise CheckpointError(
            f"generation_config.json: eos_token_id {str(stated)[:80]!r} is no token id, nor a list "
            "of them. Correct it."
        )
    ends = {end for end in (*found, tokenizer.eos_token_id) if end is not None}
    size = int(model.get_input_embeddings().num_embeddings)
    return tuple(sorted(end for end in ends if 0 <= end < size))


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
) -> tuple[Completion, ...]:
    """Let the model go on after each prompt.

    Prompts of like length run side by side, padded on the left; those of equal length alone, where
    the model is code that comes with the checkpoint. Tokens that are drawn depend on the prompts of
    the batch that they are drawn in, and on no other batch.

    Args:
        model: a causal language model; it is left as it was.
        prompts: token ids.
        how: tokens are chosen.
        ends: tokens after which a completion ends.
        batch_tokens: positions of one batch: prompts, padding and budgets.
        kept: number of the prompt -> its completion, of earlier batches of the same request.
        on_done: given the numbers and completions of each finished batch.
        share: which of the batches are run.

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
            done = _batch(model, [prompts[row] for row in rows], how, ends)
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
    # Whether code that comes with a checkpoint leaves out padding on the left, nobody has tested.
    pads = not type(model).__module__.startswith("transformers_modules.")
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


def _batch(
    model: Any, prompts: Sequence[Ids], how: Decoding, ends: Sequence[int]
) -> list[Completion]:
    from transformers import GenerationConfig

    width = max(ids.size for ids in prompts)
    ids_BS = np.full((len(prompts), width), ends[0] if ends else 0, np.int64)
    mask_BS = np.zeros_like(ids_BS)
    for line, ids in enumerate(prompts):
        ids_BS[line, width - ids.size :] = ids
        mask_BS[line, width - ids.size :] = 1
    settings = GenerationConfig(
        max_new_tokens=how.max_new_tokens,
        do_sample=how.do_sample,
        **({"temperature": how.temperature, "top_k": 0, "top_p": 1.0} if how.do_sample else {}),
        eos_token_id=list(ends) or None,
        pad_token_id=ends[0] if ends else 0,
        use_cache=True,
    )
    with (
        quiet(),
        foreign_errors(
            f"{type(model).__name__} fails while it writes",
            "Use --generations FILE with what another engine wrote.",
            error=CheckpointError,
            also=(ArithmeticError, AssertionError),
        ),
    ):
        try:
            found_BS = model.generate(
                torch.from_numpy(ids_BS).to(input_device(model)),
                attention_mask=torch.from_numpy(mask_BS).to(input_device(model)),
                generation_config=settings,
            )
        except torch.OutOfMemoryError as problem:
            raise UsageError(
                f"{len(prompts)} prompts of up to {width} tokens and what follows them do not "
                "fit the GPU's memory; give a smaller --batch-tokens or --max-new-tokens."
            ) from problem
    return [_ended(line[width:], ends) for line in found_BS.cpu().numpy()]


def _ended(ids: Any, ends: Sequence[int]) -> Completion:
    """A completion up to its first end token; padding follows that."""
    places = np.flatnonzero(np.isin(ids, list(ends)))
    if not places.size:
        return Completion(ids=ids.astype(np.int32), finished=False)
    return Completion(ids=ids[: places[0] + 1].astype(np.int32), finished=True)
