"""Prompts with their completions, as documents of which the decoded tokens are counted.

A model that writes with a key-value cache reads the whole prompt at once (prefill), which gives the
first token of the completion; then every token of the completion is fed back alone and gives the
next one. So a token's forward pass happens in decoding if it stands in the completion, but for the
last one, which is never fed back. Those are counted; in a causal model their routing does not
depend on whether they are read alone or all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moeprune.artefact import canonical_json
from moeprune.errors import DomainError
from moeprune.observe.domains import Corpus, Ids
from moeprune.observe.generate import Completion
from moeprune.observe.prompts import Prompts
from moeprune.observe.tokenizer import begin_of


def continued(prompts: Prompts, completions: Sequence[Completion]) -> Corpus:
    """The documents that the model read while it wrote; only what it decoded is counted.

    A prompt whose completion is one token has nothing to count, and is left out.

    Args:
        prompts: of one domain, or a shard of it.
        completions: one a prompt; the last token of each was never fed back.

    Raises:
        DomainError: nothing is left of a whole domain.
    """
    kept = [row for row, done in enumerate(completions) if done.ids.size > 1]
    if not kept and prompts.shard == (0, 1):
        raise DomainError(
            f"domain {prompts.name!r} ({prompts.source}) has no completion of more than one token, "
            "and the last one is never fed back: there is nothing to count. Give it other prompts."
        )
    return Corpus(
        name=prompts.name,
        source=prompts.source,
        sha256=prompts.sha256,
        total=prompts.total,
        numbers=tuple(prompts.numbers[row] for row in kept),
        documents=tuple(read_ids(prompts.ids[row], completions[row]) for row in kept),
        shard=prompts.shard,
        duplicates=prompts.duplicates,
        starts=tuple(int(prompts.ids[row].size) for row in kept),
    )


def read_ids(prompt: Ids, completion: Completion) -> Ids:
    """The tokens that a model read while it wrote a completion."""
    return np.concatenate([prompt, completion.ids[:-1]]).astype(np.int32)


def generations_text(
    prompts: Sequence[Prompts], completions: Sequence[Sequence[Completion]], tokenizer: Any
) -> str:
    """JSONL of every prompt and what the model wrote: same input, same text.

    Each row holds ``domain``, ``prompt`` (the text that the model was given), ``messages`` (where a
    chat template made it), ``prompt_ids``, ``completion`` (text, without the end token),
    ``completion_ids`` (with it) and ``finished``.
    """
    lines = []
    begin = begin_of(tokenizer, "generations")
    for domain, done in zip(prompts, completions, strict=True):
        for ids, document, completion in zip(domain.ids, domain.documents, done, strict=True):
            chat = document is not None and document.is_chat
            written = completion.ids[: completion.ids.size - completion.finished]
            row = {
                "domain": domain.name,
                "prompt": tokenizer.decode(_shown(ids, begin, chat=chat)),
                **({"messages": list(document.text)} if chat and document is not None else {}),
                "prompt_ids": ids.tolist(),
                "completion": _text_behind(ids.tolist(), written.tolist(), tokenizer),
                "completion_ids": completion.ids.tolist(),
                "finished": completion.finished,
            }
            lines.append(canonical_json(row) + "\n")
    return "".join(lines)


def _shown(ids: Ids, begin: Ids, *, chat: bool) -> list[int]:
    """A prompt without the begin tokens that the tokenizer writes before a text, not a chat."""
    own = begin.size and not chat and np.array_equal(ids[: begin.size], begin)
    return ids[begin.size if own else 0 :].tolist()


def _text_behind(prompt: list[int], written: list[int], tokenizer: Any) -> str:
    """The text of what was written, with the space that some tokenizers hide at a beginning."""
    head, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + written)
    # A letter may have begun in the prompt.
    return str(whole[len(head) :] if whole.startswith(head) else tokenizer.decode(written))
