"""Held-out questions with one right answer, asked of a live model.

A question is right if greedy decoding of its prompt gives exactly the answer and then the end
token. One teacher-forced pass tells: greedy decoding follows the answer as long as each of its
tokens is the most likely next one, so no generation loop is needed.

B questions in a batch, S tokens of the longest, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from moeprune.artefact import Json
from moeprune.errors import DomainError


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        id: unique in its domain.
        prompt: what the model is given.
        answer: what it must say next, followed by its end token.
    """

    id: str
    prompt: str
    answer: str


def read_questions(path: Path) -> tuple[Question, ...]:
    """Read a JSONL file of ``{"id", "prompt", "answer"}`` rows.

    Raises:
        DomainError: a line is not such a row, or the file has none.
    """
    import json

    questions = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row: Json = json.loads(line)
            question = Question(str(row["id"]), str(row["prompt"]), str(row["answer"]))
        except (ValueError, KeyError, TypeError) as problem:
            raise DomainError(
                f"{path} line {number} is not a question with id, prompt and answer: {problem!r}."
            ) from problem
        questions.append(question)
    if not questions:
        raise DomainError(f"{path} holds no question.")
    return tuple(questions)


@torch.inference_mode()
def answer_questions(
    model: Any, tokenizer: Any, questions: Sequence[Question], *, batch: int = 64
) -> list[bool]:
    """Whether the model answers each question right by greedy decoding.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer; it must name an end token.
        questions: what to ask.
        batch: questions in one forward pass; the result does not depend on it.
    """
    rows: list[tuple[list[int], int]] = []
    for question in questions:
        prompt = list(tokenizer(question.prompt)["input_ids"])
        answer = list(tokenizer(question.answer, add_special_tokens=False)["input_ids"])
        rows.append(([*prompt, *answer, tokenizer.eos_token_id], len(prompt)))
    right = [False] * len(rows)
    by_length = sorted(range(len(rows)), key=lambda index: len(rows[index][0]))
    for start in range(0, len(by_length), batch):
        chosen = by_length[start : start + batch]
        longest = max(len(rows[index][0]) for index in chosen)
        ids_BS = torch.full((len(chosen), longest), tokenizer.eos_token_id)
        mask_BS = torch.zeros((len(chosen), longest), dtype=torch.long)
        for row, index in enumerate(chosen):
            ids = rows[index][0]
            ids_BS[row, : len(ids)] = torch.tensor(ids)
            mask_BS[row, : len(ids)] = 1
        logits_BSV = model(
            input_ids=ids_BS.to(model.device),
            attention_mask=mask_BS.to(model.device),
            use_cache=False,
        ).logits
        said_BS = logits_BSV.argmax(-1).cpu()
        for row, index in enumerate(chosen):
            ids, prompt_length = rows[index]
            due = ids_BS[row, prompt_length : len(ids)]
            right[index] = bool((said_BS[row, prompt_length - 1 : len(ids) - 1] == due).all())
    return right
