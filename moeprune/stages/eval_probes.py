"""Where loops are looked for after beginnings of texts: the sources that calibration takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.core.chat import has_template, thinking_switch
from moeprune.core.tasks import Protocol, Question, Task
from moeprune.errors import UsageError
from moeprune.stages.eval_words import EvalWords

if TYPE_CHECKING:
    from moeprune.evaluate.requests import Request
    from moeprune.observe.prompts import Prompts

PROBE = "degeneration"
_LONG = 1024  # tokens that a model may write where loops are looked for, if it reads twice that
_TEXTS = (".txt", ".parquet")


def budget_of(words: EvalWords, *, length: int) -> int:
    """Tokens that a model may write where loops are looked for.

    Args:
        words: of the user.
        length: tokens that the model reads at once.
    """
    return words.max_new_tokens or min(_LONG, max(1, length // 2))


def probe_files(words: EvalWords) -> list[str | Path]:
    """Files and folders of prompts, which are tasks."""
    return [name for name in words.probes if _source(name) is None]


def probes_of_texts(
    words: EvalWords, *, tokenizer: Any, length: int
) -> list[tuple[Task, tuple[Request, ...]]]:
    """A task a source, and its prompts: chats up to the answer, the first half of other texts.

    Args:
        words: of the user.
        tokenizer: of the model.
        length: tokens that the model reads at once.

    Raises:
        UsageError: the budget leaves no room, or a source is none.
        DomainError: a source cannot be read, or holds a prompt that is too long.
    """
    sources = [found for found in map(_source, words.probes) if found is not None]
    if not sources:
        return []
    from moeprune.observe.named import named_domains
    from moeprune.observe.prompts import read_prompts

    budget = budget_of(words, length=length)
    if length - budget < 1:
        raise UsageError(
            f"--max-new-tokens {budget} leaves no room for a prompt: the model reads {length} "
            "tokens at once. Give less."
        )
    switch = thinking_switch(tokenizer) if has_template(tokenizer) else None
    told = {} if switch is None or words.thinking is None else {switch: words.thinking}
    found = []
    for name, source in named_domains(sources, option="--degeneration").items():
        prompts = read_prompts(
            name,
            source,
            tokenizer=tokenizer,
            template={"add_generation_prompt": True, **told},
            length=min(words.chunk, length),
            room=length - budget,
            samples=words.limit,
        )
        found.append(_probe(prompts, words, tokenizer=tokenizer, budget=budget))
    return found


def _probe(
    prompts: Prompts, words: EvalWords, *, tokenizer: Any, budget: int
) -> tuple[Task, tuple[Request, ...]]:
    from moeprune.evaluate.requests import Request

    chats = prompts.has_chats
    if chats and words.chat_template is False:
        raise UsageError(
            f"--degeneration {prompts.source} holds 'messages', which only a chat template writes "
            "as one text. Pass --chat-template on, or give rows with 'text'."
        )
    temperature = words.temperature or 0.0
    task = Task(
        name=f"{PROBE}-{prompts.name}",
        protocol=Protocol(
            kind=PROBE,
            question="",
            chat_template=chats,
            thinking=words.thinking if chats else None,
            max_new_tokens=budget,
            temperature=temperature,
            limit=words.limit,
        ),
        questions=tuple(
            Question(id=str(number), domain=prompts.name, text=str(tokenizer.decode(ids.tolist())))
            for number, ids in zip(prompts.numbers, prompts.ids, strict=True)
        ),
        details={"source": prompts.source, "sha256": prompts.sha256},
    )
    seeds: Iterable[int] = range(words.seeds) if temperature > 0 else (0,)
    requests = tuple(
        Request(question=question, prompt=ids, seed=seed)
        for question, ids in zip(task.questions, prompts.ids, strict=True)
        for seed in seeds
    )
    return task, requests


def _source(name: str | Path) -> str | None:
    """``NAME=SOURCE`` where it is one of a text; None: a file of questions."""
    from moeprune.observe.sources import BUILTIN
    from moeprune.observe.tables import HUB

    text = str(name)
    if text.startswith(BUILTIN):
        return f"{text.removeprefix(BUILTIN)}={text}"
    if Path(text).suffix in _TEXTS and "=" not in text:
        return f"{Path(text).stem}={text}"
    if text.startswith(HUB):
        raise UsageError(f"--degeneration {text} needs a name. Write NAME={text}.")
    return text if "=" in text and not Path(text).exists() else None
