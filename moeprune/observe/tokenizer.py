"""The model's own tokenizer: loaded without running checkpoint code unless that is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.core.chat import THINKING, has_template, thinking_switch
from moeprune.errors import CheckpointError, DomainError, UsageError
from moeprune.observe.around import inner_ids, special_ends
from moeprune.observe.beginnings import first_ids
from moeprune.observe.quiet import foreign_errors, quiet
from moeprune.observe.rows import Document
from moeprune.observe.written import written

Ids = NDArray[np.int32]


def load_tokenizer(path: Path, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of the checkpoint in ``path``.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    from transformers import AutoTokenizer

    with (
        quiet(),
        foreign_errors(
            f"{path}: the tokenizer cannot be read",
            "Copy the tokenizer files of the original model into the folder.",
            error=CheckpointError,
        ),
    ):
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        # Without files transformers makes an empty tokenizer; other damage shows at the first use.
        tokens = tokenizer("The quick brown fox, 1 + 2 = 3.", add_special_tokens=False)["input_ids"]
    if not tokens or set(tokens) == {tokenizer.unk_token_id}:
        raise CheckpointError(
            f"{path}: the tokenizer knows no word; its files are missing. "
            "Copy the tokenizer files of the original model into the folder."
        )
    return tokenizer


def encode(
    document: Document,
    *,
    tokenizer: Any,
    length: int | None,
    chat_template: bool = True,
    template: Mapping[str, Any] | None = None,
) -> Ids:
    """Token ids of a document, special tokens included, cut to ``length``. (T,) int32.

    A chat is rendered with the tokenizer's own template, which writes its special tokens itself;
    without the template it is the messages' texts with a blank line between, read as a plain text.

    Args:
        document: the text.
        tokenizer: of the model.
        length: tokens to keep; None: all.
        chat_template: render chats with it.
        template: what else it is told.

    Raises:
        DomainError: a chat, and the tokenizer has no chat template or the template refuses it.
    """
    text, special = written(document, tokenizer, chat_template=chat_template, told=template)
    return _first(text, document.where, tokenizer, length, special=special)


def encode_question(document: Document, *, tokenizer: Any, length: int | None, **how: Any) -> Ids:
    """As :func:`encode`, without the special tokens that end a text: something is to follow it.

    Raises:
        DomainError: as there.
    """
    if not isinstance(document.text, str):
        return encode(document, tokenizer=tokenizer, length=length, **how)
    begin = begin_of(tokenizer, document.where)
    ids = _first(document.text, document.where, tokenizer, length, special=False)
    return np.concatenate([begin, ids])[:length]


def encode_answer(text: str, where: str, *, tokenizer: Any) -> Ids:
    """Token ids of a text that goes on from another: nothing around it that a beginning has.

    Raises:
        DomainError: the tokenizer fails on it.
    """
    return inner_ids(text, lambda part: token_ids(part, where, tokenizer, special=False))


def begin_of(tokenizer: Any, where: str) -> Ids:
    """The special tokens that the tokenizer writes before a text.

    Raises:
        DomainError: the tokenizer fails.
    """
    begin, _ = special_ends(
        lambda part: token_ids(part, where, tokenizer, special=True),
        lambda part: token_ids(part, where, tokenizer, special=False),
    )
    return begin


def template_switch(tokenizer: Any, thinking: str) -> dict[str, Any]:
    """What a chat template is told, so that a model starts to answer, and thinks or does not.

    Args:
        tokenizer: of the model.
        thinking: ``"on"``, ``"off"`` or ``"default"``: what the template does untold.

    Raises:
        UsageError: the template has no such switch.
    """
    told: dict[str, Any] = {"add_generation_prompt": True}
    if thinking == "default":
        return told
    if has_template(tokenizer):
        with foreign_errors(
            "the tokenizer's chat template refuses a message of a user",
            "Leave --thinking out, and give rows with 'prompt'.",
            error=UsageError,
            also=(ArithmeticError,),
        ):
            switch = thinking_switch(tokenizer)
        if switch is not None:
            return {**told, switch: thinking == "on"}
    raise UsageError(
        f"--thinking {thinking}: the tokenizer's chat template has no switch for it "
        f"({', '.join(THINKING)}). Leave --thinking out."
    )


def encode_running(document: Document, *, tokenizer: Any, length: int) -> list[Ids]:
    """A running text in consecutive pieces of ``length`` tokens, none of its tokens lost.

    Each piece starts as the tokenizer starts a text (with begin tokens where the model has some),
    since models behave differently without it.
    """
    assert isinstance(document.text, str)
    ids = token_ids(document.text, document.where, tokenizer, special=False)
    begin = begin_of(tokenizer, document.where)
    room = max(1, length - begin.size)
    pieces = [ids[start : start + room] for start in range(0, ids.size, room)]
    return [np.concatenate([begin, piece])[-length:] for piece in pieces]


def _first(text: str, where: str, tokenizer: Any, length: int | None, *, special: bool) -> Ids:
    def ids_of(part: str) -> Ids:
        return token_ids(part, where, tokenizer, special=special)

    if length is None:
        return ids_of(text)
    return first_ids(text, length, tokenizer=tokenizer, ids_of=ids_of)


def token_ids(text: str, where: str, tokenizer: Any, *, special: bool) -> Ids:
    """Token ids of all of a text. (T,) int32.

    Raises:
        DomainError: the tokenizer fails on it.
    """
    with foreign_errors(
        f"{where}: the tokenizer fails on this text", "Leave the text out.", error=DomainError
    ):
        # verbose=False: a text longer than the model's window is cut afterwards, no need to warn.
        found = tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
    return np.asarray(found, dtype=np.int32)
