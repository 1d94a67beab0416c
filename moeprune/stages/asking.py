"""``calibrate --mode decode``: the prompts, and the completions where a file holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moeprune.core.layout import MoeLayout
from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.stages.decode_words import DecodeWords
from moeprune.stages.texts import positions_of

if TYPE_CHECKING:
    from moeprune.observe.generate import Completion
    from moeprune.observe.prompts import Prompts

# Its attention treats what was prefilled as a reference that never leaves the window.
_REFERENCE = "unlimited_ocr"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Prompts of every domain, and what was written after them where a file says it.

    Attributes:
        words: settled.
        length: tokens that a prompt may have, as stated in the stats.
        prompts: of every domain.
        completions: one a prompt; None: not written yet.
    """

    words: DecodeWords
    length: int
    prompts: tuple[Prompts, ...]
    completions: tuple[tuple[Completion, ...], ...] | None


def check_decodes(layout: MoeLayout) -> None:
    """Check that a family writes token by token, and that one pass shows how it did.

    Raises:
        UnsupportedModelError: it does not.
    """
    if layout.observer == "canvas":
        raise UnsupportedModelError(
            f"family {layout.model_type} writes by denoising whole canvases, not token by token, "
            "so there is no decoding to observe; --mode prefill counts its canvases too."
        )
    if layout.model_type.startswith(_REFERENCE):
        raise UnsupportedModelError(
            f"family {layout.model_type} sees all of a prompt but only the last tokens of what it "
            "writes, so one pass over both does not show its decoding. Use --mode prefill."
        )


def ask(
    words: DecodeWords,
    *,
    sources: Mapping[str, str],
    config: Mapping[str, Any],
    tokenizer: Any,
    length: int,
    samples: int | None,
    seed: int,
    shard: tuple[int, int],
    on_warning: Callable[[str], None] | None = None,
) -> Asked:
    """Read the prompts, and the completions where there are some; all of it before the model.

    Args:
        words: of the user.
        sources: domain -> source of prompts, where nothing was written already.
        config: of the model.
        tokenizer: of the model.
        length: tokens that a prompt may have; never more than the model has positions for.
        samples: prompts of a domain at most.
        seed: of their draw.
        shard: ``(index, of)``.
        on_warning: told where prompts of a stream are too long, and left out.

    Raises:
        MoePruneError: a source, a file or an option does not serve.
    """
    from moeprune.observe.generations import Reading, read_generations
    from moeprune.observe.prompts import read_prompts
    from moeprune.observe.tokenizer import template_switch

    positions = positions_of(config)
    length = min(length, positions or length)
    words = words.settled(positions)
    thinking = words.thinking or "default"
    template = template_switch(tokenizer, thinking)
    read: list[tuple[Prompts, tuple[Completion, ...]]] = []
    if words.generations:
        how = Reading(tokenizer=tokenizer, template=template, length=length, positions=positions)
        read = read_generations(words.generations, how=how, samples=samples, seed=seed)
        whole = [found for found, _ in read]
    else:
        budget = words.max_new_tokens or 0
        room = length if positions is None else min(length, positions - budget)
        if room < 1:
            raise UsageError(
                f"--max-new-tokens {budget} leaves no room for a prompt: the model has "
                f"{positions} positions. Give a smaller one."
            )
        whole = [
            read_prompts(
                name,
                source,
                tokenizer=tokenizer,
                template=template,
                length=length,
                room=room,
                prompt_length=words.prompt_length,
                samples=samples,
                seed=seed,
                on_warning=on_warning,
            )
            for name, source in sources.items()
        ]
    if thinking != "default" and not any(found.has_chats for found in whole):
        raise UsageError(
            f"--thinking {thinking} is told to the chat template, and no row has 'messages'. "
            "Leave it out."
        )
    prompts = tuple(found.take_shard(*shard) for found in whole)
    done = None
    if words.generations:
        done = tuple(
            tuple(completions[number] for number in mine.numbers)
            for mine, (_, completions) in zip(prompts, read, strict=True)
        )
    return Asked(
        words=words,
        length=length,
        prompts=prompts,
        completions=done,
    )
