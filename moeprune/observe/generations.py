"""Read what some engine wrote: prompts and completions from a JSONL file.

A row holds a prompt (``prompt``, or ``messages``) and its ``completion``, texts; or their token
ids, as ``prompt_ids`` and ``completion_ids`` (also ``prompt_token_ids`` and ``token_ids``). Ids are
taken where they spell the texts in this model's tokenizer, or there are no texts; else the texts
are tokenised, so that another model can read the file. ``finished`` (or ``finish_reason``) tells
whether the model ended by itself. Null is as good as no key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moeprune.errors import DomainError, UsageError
from moeprune.kinds import kind_of
from moeprune.observe.domains import Ids, check_draw, drawn, sha256_of
from moeprune.observe.generate import Completion
from moeprune.observe.named import named_domains
from moeprune.observe.prompts import Prompts, check_prompt
from moeprune.observe.rows import Document, row_prompt, row_string
from moeprune.observe.sources import split_name
from moeprune.observe.textfiles import jsonl_rows
from moeprune.observe.tokenizer import encode_answer, encode_question

_PROMPT = ("prompt_ids", "prompt_token_ids")
_COMPLETION = ("completion_ids", "token_ids")
_CUT = ("length", "abort")  # reasons why a completion has no end of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How rows become tokens.

    Attributes:
        tokenizer: of the model.
        template: what its chat template is told.
        length: tokens that a prompt may have.
        positions: of the model, None = it states none.
    """

    tokenizer: Any
    template: Mapping[str, Any]
    length: int
    positions: int | None


def read_generations(
    files: Sequence[str], *, how: Reading, samples: int | None, seed: int
) -> list[tuple[Prompts, tuple[Completion, ...]]]:
    """Every domain of the files, with its completions.

    Args:
        files: ``FILE``, whose rows name their ``domain``, or ``NAME=FILE``, all of one domain.
        how: rows become tokens.
        samples: at most that many rows a domain, drawn by ``seed``, in their order.
        seed: of the draw.

    Raises:
        DomainError: a row does not serve, or names no domain.
        UsageError: a domain stands in two files, or a number is out of range.
    """
    check_draw(length=how.length, samples=samples, seed=seed)
    rows, sources = _by_domain(files)
    named_domains(sources)
    return [
        _domain_of(
            domain,
            split_name(sources[domain])[1].name,
            [_read(*named[row], how) for row in drawn(len(named), samples, seed)],
        )
        for domain, named in rows.items()
    ]


def _by_domain(
    files: Sequence[str],
) -> tuple[dict[str, list[tuple[Mapping[str, Any], str]]], dict[str, str]]:
    """The rows of each domain with their places, and the file that they stand in."""
    rows: dict[str, list[tuple[Mapping[str, Any], str]]] = {}
    sources: dict[str, str] = {}
    for text in files:
        if list(files).count(text) > 1:
            raise UsageError(f"--generations {text} is given twice. Give it once.")
        name, path = split_name(text)
        own: dict[str, str] = {}  # domains that the rows state themselves
        for row, where in jsonl_rows(path):
            if not isinstance(row, Mapping):
                raise DomainError(
                    f"{where} is a JSON {type(row).__name__}; write one object a line."
                )
            domain = name if name is not None else _domain(row, where)
            own[str(row.get("domain", domain))] = where
            if name is not None and len(own) > 1:
                first, other = own
                raise UsageError(
                    f"{path} holds the domains {first!r} and {other!r}, and --generations {text} "
                    f"would make one of them. Leave {name}= out."
                )
            if sources.setdefault(domain, text) != text:
                raise UsageError(
                    f"domain {domain!r} stands in {sources[domain]} and {text}. Put its rows into "
                    "one file, or name one of them with --generations NAME=FILE."
                )
            rows.setdefault(domain, []).append((row, where))
        if not own:
            kind = kind_of(path) or "a file"
            raise DomainError(f"{path} is {kind} with no row; rows hold 'prompt' and 'completion'.")
    return rows, sources


def _domain(row: Mapping[str, Any], where: str) -> str:
    if "domain" not in row:
        raise DomainError(
            f"{where} has no 'domain'. Write one into each row, or give --generations NAME=FILE."
        )
    return row_string(row, "domain", where)


def _domain_of(
    name: str, source: str, rows: Sequence[tuple[Ids, Document | None, Completion]]
) -> tuple[Prompts, tuple[Completion, ...]]:
    prompts = Prompts(
        name=name,
        source=source,
        sha256=sha256_of(ids for prompt, _, done in rows for ids in (prompt, done.ids)),
        total=len(rows),
        numbers=tuple(range(len(rows))),
        ids=tuple(prompt for prompt, _, _ in rows),
        documents=tuple(document for _, document, _ in rows),
    )
    return prompts, tuple(done for _, _, done in rows)


def _read(
    row: Mapping[str, Any], where: str, how: Reading
) -> tuple[Ids, Document | None, Completion]:
    row = {key: value for key, value in row.items() if value is not None}
    finished = _finished(row, where)
    prompt, done = _ids(row, _PROMPT, where), _ids(row, _COMPLETION, where)
    text = row_string(row, "completion", where) if "completion" in row else None
    asked = row_string(row, "prompt", where) if isinstance(row.get("prompt"), str) else None
    document = None
    if "messages" in row or "prompt" in row:
        document = Document(text=row_prompt(row, where), where=where, whole=True)
    ours = prompt is not None and (
        _spells(how.tokenizer, prompt, asked)
        and (done is None or _spells(how.tokenizer, done, text, behind=prompt))
    )
    if not ours and prompt is not None and document is None:
        raise DomainError(f"{where}: 'prompt_ids' are of another tokenizer. Add the 'prompt'.")
    if ours and prompt is not None and document is not None and document.is_chat:
        _check_told(prompt, document, how)
    if prompt is None or not ours:
        if document is None:
            raise DomainError(f"{where} has no 'prompt'; a row needs 'prompt' and 'completion'.")
        prompt = encode_question(
            document, tokenizer=how.tokenizer, length=None, template=how.template
        )
    if done is None or not _spells(how.tokenizer, done, text, behind=prompt):
        if text is None:
            raise DomainError(f"{where} has no 'completion'; a row needs what the model wrote.")
        done = _completion(text, where, how, finished=finished)
    if not prompt.size:
        raise DomainError(f"{where}: the prompt has no token. Leave the row out.")
    check_prompt(prompt, where, how.length)
    if how.positions is not None and prompt.size + done.size > how.positions + 1:
        raise DomainError(
            f"{where}: prompt and completion have {prompt.size + done.size} tokens, the model has "
            f"{how.positions} positions. Leave the row out."
        )
    return prompt, document, Completion(ids=done, finished=finished)


def _check_told(prompt: Ids, document: Document, how: Reading) -> None:
    """What the template is told is no option where ids are given; it must be what made them."""
    if len(how.template) < 2:
        return
    told = encode_question(document, tokenizer=how.tokenizer, length=None, template=how.template)
    if not np.array_equal(told, prompt):
        raise DomainError(
            f"{document.where}: its 'prompt_ids' were made with another --thinking. Leave it out."
        )


def _completion(text: str, where: str, how: Reading, *, finished: bool) -> Ids:
    ids = encode_answer(text, where, tokenizer=how.tokenizer)
    # The text does not spell the end token, which was written last and never fed back.
    end = how.tokenizer.eos_token_id
    return np.append(ids, np.int32(0 if end is None else end)) if finished else ids


def _spells(tokenizer: Any, ids: Ids, text: str | None, *, behind: Ids | None = None) -> bool:
    """Whether ids are a text in this tokenizer, special tokens and those at the ends aside.

    Alone, or behind a prompt: some tokenizers spell the space before a first word only there.
    """
    if text is None:
        return True
    for skip in (False, True):
        head = [] if behind is None else behind.tolist()
        start = tokenizer.decode(head, skip_special_tokens=skip)
        for part in (ids.tolist(), ids[:-1].tolist(), ids[1:].tolist()):
            if tokenizer.decode(part, skip_special_tokens=skip) == text or (
                head and tokenizer.decode(head + part, skip_special_tokens=skip) == start + text
            ):
                return True
    return False


def _ids(row: Mapping[str, Any], names: Sequence[str], where: str) -> Ids | None:
    for name in names:
        if name not in row:
            continue
        found = row[name]
        if not isinstance(found, list) or any(
            type(token) is not int or not 0 <= token < 2**31 for token in found
        ):
            raise DomainError(f"{where}: {name!r} must be a list of token ids.")
        return np.asarray(found, np.int32)
    return None


def _finished(row: Mapping[str, Any], where: str) -> bool:
    if "finished" in row:
        if not isinstance(row["finished"], bool):
            raise DomainError(f"{where}: 'finished' must be true or false.")
        return row["finished"]
    return row.get("finish_reason") not in _CUT
