"""``calibrate --mode decode``: who writes, and what is counted of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.artefact import write_bytes
from moeprune.core.completions import Completions
from moeprune.core.progress import OnProgress, Progress
from moeprune.stages.asking import Asked
from moeprune.stages.decode_words import generations_file, written_file
from moeprune.stages.measuring import Stop
from moeprune.stages.together import Work
from moeprune.stages.written import Written

if TYPE_CHECKING:
    from moeprune.observe.domains import Corpus
    from moeprune.observe.generate import Completion


def answered(
    asked: Asked,
    model: Any,
    *,
    identity: Mapping[str, str],
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
            identity=identity,
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
    identity: Mapping[str, str],
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
        "max_new_tokens": how.max_new_tokens,
        "temperature": how.temperature,
        "seed": how.seed,
        "model": dict(identity),
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
    sizes = [
        num_groups(model, domain.ids, how=how, batch_tokens=batch_tokens)
        for domain in asked.prompts
    ]
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
