"""Options that would change nothing of what is asked: refused, since their user means something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeprune.core.tasks import Task
from moeprune.errors import UsageError
from moeprune.stages.eval_harness import Harness
from moeprune.stages.eval_words import CHUNK, THINK_END, EvalWords

_WRITING = ("generate", "degeneration")
_WRITTEN = "generate_until"


def check_used(
    words: EvalWords,
    *,
    files: Sequence[Task],
    probes: Sequence[Task],
    harness: Harness,
    chats: bool,
) -> None:
    """Check that each option that is stated is one for something that is asked.

    Args:
        words: of the user.
        files: tasks that files state.
        probes: prompts that are beginnings of texts.
        harness: what lm-eval asks.
        chats: a text for perplexity was written by the chat template.

    Raises:
        UsageError: it is not.
    """
    kinds = {task.kind for task in (*files, *probes)}
    lm_eval = [
        part["output_type"]
        for entry in harness.entries.values()
        for part in entry["protocol"]["parts"].values()
    ]
    written = bool(kinds & {*_WRITING}) or _WRITTEN in lm_eval
    questions = bool(kinds or lm_eval)
    texts = bool(words.corpus or words.held_out or words.split)
    asked = any(task.kind != "perplexity" for task in files)
    for option, value, used, what in _stated(words):
        serves = {
            "questions": questions,
            "solved": asked or bool(lm_eval),
            "written": written,
            "chat": questions or chats,
            "thinking": questions,
            "thought": bool(lm_eval) and bool(words.thinking),
            "chunk": texts or bool(probes),
            "texts": texts,
        }[used]
        if not serves:
            raise UsageError(f"{option} {value} is for {what}, and none is asked. Leave it out.")


def _stated(words: EvalWords) -> Iterator[tuple[str, object, str, str]]:
    """Option, value, what it serves, and that in words; of those that the user states."""
    said = {True: "on", False: "off"}
    every: list[tuple[str, object, str, str]] = [
        ("--limit", words.limit, "questions", "questions"),
        ("--shots", words.shots, "solved", "questions with an answer"),
        ("--max-new-tokens", words.max_new_tokens, "written", "written answers"),
        ("--temperature", words.temperature, "written", "written answers"),
        ("--chunks", words.chunks, "texts", "texts of --corpus and --held-out"),
    ]
    yield from (one for one in every if one[1] is not None)
    if words.thinking is not None:
        yield "--thinking", said[words.thinking], "thinking", "questions"
    if words.chat_template:  # "off" is true of bare text
        yield "--chat-template", "on", "chat", "questions and rows with 'messages'"
    if words.think_end != THINK_END:
        what = "tasks of lm-eval under --thinking on"
        yield "--think-end", repr(words.think_end), "thought", what
    if words.chunk != CHUNK:
        yield "--chunk", words.chunk, "chunk", "texts of --corpus, --held-out or --degeneration"
