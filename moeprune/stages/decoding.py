"""``calibrate --mode decode``: whose prompts, who writes, and what is counted of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.artefact import write_bytes
from moeprune.core.completions import Completions
from moeprune.core.layout import MoeLayout
from moeprune.core.progress import OnProgress, Progress
from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.stages.decode_words import DecodeWords, generations_file
from moeprune.stages.texts import positions_of

if TYPE_CHECKING:
    from moeprune.observe.domains import Corpus
    from moeprune.observe.generate import Completion
    from moeprune.observe.prompts import Prompts


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
    """Check that a family writes token by token.

    Raises:
        UnsupportedModelError: it does not.
    """
    if layout.observer == "canvas":
        raise UnsupportedModelError(
            f"family {layout.model_type} writes by denoising whole canvases, not token by token, "
            "so there is no decoding to observe; --mode prefill counts its canvases too."
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
    done: list[tuple[Completion, ...]] = []
    if words.generations:
        how = Reading(tokenizer=tokenizer, template=template, length=length, positions=positions)
        whole = read_generations(words.generations, how=how, samples=samples, seed=seed)
        prompts = [found.take_shard(*shard) for found, _ in whole]
        done = [
            tuple(completions[number] for number in mine.numbers)
            for mine, (_, completions) in zip(prompts, whole, strict=True)
        ]
    else:
        budget = words.max_new_tokens or 0
        room = length if positions is None else min(length, positions - budget)
        if room < 1:
            raise UsageError(
                f"--max-new-tokens {budget} leaves no room for a prompt: the model has "
                f"{positions} positions. Give a smaller one."
            )
        prompts = [
            read_prompts(
                name,
                source,
                tokenizer=tokenizer,
                template=template,
                length=room,
                prompt_length=words.prompt_length,
                samples=samples,
                seed=seed,
            ).take_shard(*shard)
            for name, source in sources.items()
        ]
    if thinking != "default" and not any(found.has_chats for found in prompts):
        raise UsageError(
            f"--thinking {thinking} is told to the chat template, and no row has 'messages'. "
            "Leave it out."
        )
    return Asked(
        words=words,
        length=length,
        prompts=tuple(prompts),
        completions=tuple(done) if words.generations else None,
    )


def answered(
    asked: Asked,
    model: Any,
    *,
    tokenizer: Any,
    seed: int,
    batch_tokens: int,
    output: Path | None,
    on_progress: OnProgress,
) -> tuple[list[Corpus], dict[str, Any]]:
    """What is to be observed, and what the stats say of it; generated where no file gives it.

    What the model wrote is saved before it is observed.

    Raises:
        MoePruneError: the model cannot write, or a domain has nothing to count.
    """
    from moeprune.observe.continued import continued, generations_text

    done = asked.completions
    if done is None:
        done = _generated(asked, model, tokenizer, seed, batch_tokens, on_progress)
        if output is not None:
            text = generations_text(asked.prompts, done, tokenizer)
            write_bytes(generations_file(output), text.encode())
    pairs = list(zip(asked.prompts, done, strict=True))
    lengths = {
        prompts.name: Completions.of((one.ids.size, one.finished) for one in mine)
        for prompts, mine in pairs
    }
    return [continued(prompts, mine) for prompts, mine in pairs], {
        **asked.words.provenance(),
        "completions": {name: found.to_json() for name, found in lengths.items()},
    }


def _generated(
    asked: Asked,
    model: Any,
    tokenizer: Any,
    seed: int,
    batch_tokens: int,
    on_progress: OnProgress,
) -> tuple[tuple[Completion, ...], ...]:
    from moeprune.observe.generate import Decoding, check_generates, end_tokens, generate

    check_generates(model)
    how = Decoding(
        max_new_tokens=asked.words.max_new_tokens or 0,
        temperature=asked.words.temperature or 0.0,
        seed=seed,
    )
    return tuple(
        generate(
            model,
            prompts.ids,
            how=how,
            ends=end_tokens(model, tokenizer),
            batch_tokens=batch_tokens,
            on_prompts=on_prompts,
        )
        for prompts, on_prompts in _counted(asked.prompts, on_progress)
    )


def _counted(
    prompts: Sequence[Prompts], on_progress: OnProgress
) -> list[tuple[Prompts, Callable[[int], None]]]:
    """Each domain with what is to be told of its finished prompts, added up over all of them."""
    done, total = 0, sum(len(domain.ids) for domain in prompts)

    def more(number: int) -> None:
        nonlocal done
        done += number
        on_progress(Progress("generate", done, total, "prompts"))

    return [(domain, more) for domain in prompts]
