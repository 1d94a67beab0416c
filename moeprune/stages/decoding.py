"""``calibrate --mode decode``: whose prompts, who writes, and what is counted of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.artefact import write_bytes
from moeprune.core.completions import Completions
from moeprune.core.layout import MoeLayout
from moeprune.core.progress import OnProgress, Progress
from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.stages.decode_words import DecodeWords, generations_file, written_file
from moeprune.stages.measuring import Stop
from moeprune.stages.texts import positions_of
from moeprune.stages.together import Work
from moeprune.stages.written import Written

if TYPE_CHECKING:
    from moeprune.observe.domains import Corpus
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


def answered(
    asked: Asked,
    model: Any,
    *,
    tokenizer: Any,
    seed: int,
    batch_tokens: int,
    output: Path | None,
    resume: bool,
    stop: Stop,
    on_progress: OnProgress,
    work: Work,
) -> tuple[list[Corpus], dict[str, Any]]:
    """What is to be observed, and what the stats say of it; generated where no file gives it.

    What the model wrote is saved as it comes, and as a whole before it is observed.

    Raises:
        StoppedError: ``stop`` said so.
        MoePruneError: the model cannot write, or a domain has nothing to count.
    """
    from moeprune.observe.continued import continued, generations_text

    done = asked.completions
    if done is None:
        done = _generated(
            asked,
            model,
            tokenizer=tokenizer,
            seed=seed,
            batch_tokens=batch_tokens,
            path=None if output is None else work.own_file(written_file(output)),
            resume=resume,
            stop=stop,
            on_progress=on_progress,
            work=work,
        )
        if output is not None and work.speaks:
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
    *,
    tokenizer: Any,
    seed: int,
    batch_tokens: int,
    path: Path | None,
    resume: bool,
    stop: Stop,
    on_progress: OnProgress,
    work: Work,
) -> tuple[tuple[Completion, ...], ...]:
    from moeprune.observe.generate import (
        Decoding,
        check_generates,
        end_tokens,
        generate,
        num_groups,
    )

    check_generates(model)
    ends = end_tokens(model, tokenizer)
    how = Decoding(
        max_new_tokens=asked.words.max_new_tokens or 0,
        temperature=asked.words.temperature or 0.0,
        seed=seed,
    )
    request = {
        **asdict(how),
        "ends": list(ends),
        "batch_tokens": batch_tokens,
        "dtype": str(model.dtype),
        "prompts": {domain.name: [domain.sha256, *domain.shard] for domain in asked.prompts},
    }
    written = Written(path, request, resume=resume)
    total = sum(len(domain.ids) for domain in asked.prompts)

    def report() -> int:
        done = sum(len(written.of(domain.name)) for domain in asked.prompts)
        on_progress(Progress("generate", done, total, "prompts"))
        return done

    def keep(domain: str, rows: Sequence[int], done: Sequence[Completion]) -> None:
        written.add(domain, rows, done)
        if report() < total and stop():
            raise written.stopped(report(), total)

    report()
    sizes = [num_groups(domain.ids, how=how, batch_tokens=batch_tokens) for domain in asked.prompts]
    work.check_lockstep({d.name: sorted(written.of(d.name)) for d in asked.prompts})
    for prompts, share in zip(asked.prompts, work.shares(sizes), strict=True):
        generate(
            model,
            prompts.ids,
            how=how,
            ends=ends,
            batch_tokens=batch_tokens,
            kept=written.of(prompts.name),
            on_done=partial(keep, prompts.name),
            share=share,
        )
    return tuple(work.completions(written.of(domain.name)) for domain in asked.prompts)
