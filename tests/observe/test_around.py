"""What stands around a text: special tokens at its ends, and the space that a beginning has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import add_tokenizer

from moeprune.observe.continued import generations_text
from moeprune.observe.generate import Completion
from moeprune.observe.generations import Reading, read_generations
from moeprune.observe.prompts import Prompts, read_prompts
from moeprune.observe.rows import Document
from moeprune.observe.tokenizer import encode_answer, encode_running, load_tokenizer


def bytewise(path: Path, single: str) -> Any:
    """One token a byte, with special tokens around a text."""
    from tokenizers import processors

    tokenizer = load_tokenizer(add_tokenizer(path))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        special_tokens=[("<|end|>", 257), ("<|im_start|>", 258), ("<|im_end|>", 259)],
    )
    return tokenizer


def spaced(kind: str) -> Any:
    """Of the kind of Llama 2: a space before every text, hidden when it is decoded."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", *"▁abcdefghijklmnopqrstuvwxyz.", "▁p", "▁pa", "▁▁", "is"]
    words += [f"<0x{byte:02X}>" for byte in range(256)]
    merges = [("▁", "p"), ("▁p", "a"), ("▁", "▁"), ("i", "s")]
    made = Tokenizer(
        models.BPE(
            vocab={word: token for token, word in enumerate(words)},
            merges=merges,
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    if kind == "normalizer":
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def jsonl(path: Path, *rows: Any) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def read(path: str, tokenizer: Any) -> tuple[list[int], list[int]]:
    how = Reading(tokenizer=tokenizer, template={}, length=99, positions=None)
    ((prompts, done),) = read_generations([path], how=how, samples=None, seed=0)
    return prompts.ids[0].tolist(), done[0].ids.tolist()


AROUND = {
    "$A": [],
    "$A <|end|>": [],
    "<|im_start|> $A": [258],
    "<|im_start|> $A <|end|>": [258],
    # Some begin with two tokens, of which neither is called the begin token.
    "<|im_start|> <|im_end|> $A": [258, 259],
}


@pytest.mark.parametrize("single", AROUND)
def test_nothing_that_ends_a_text_stands_before_an_answer(single: str, tmp_path: Path) -> None:
    tokenizer, begin = bytewise(tmp_path / "t", single), AROUND[single]
    rows = [{"prompt": "abc"}, {"text": "abcdefgh"}, {"text": "abc"}]
    how = {"tokenizer": tokenizer, "template": {}}
    found = read_prompts("d", jsonl(tmp_path / "d.jsonl", *rows), length=99, prompt_length=5, **how)
    a = 64  # the token of "a"
    assert [ids.tolist() for ids in found.ids] == [
        [*begin, a, a + 1, a + 2],
        [*begin, *range(a, a + 8)][:5],
        [*begin, a, a + 1, a + 2],
    ]
    row = {"domain": "d", "prompt": "abc", "completion": "de"}
    assert read(jsonl(tmp_path / "g.jsonl", row), tokenizer) == (
        [*begin, a, a + 1, a + 2],
        [a + 3, a + 4, 257],
    )
    # Every piece of a running text begins as a text does.
    pieces = encode_running(Document(text="abcdefg", where=""), tokenizer=tokenizer, length=5)
    assert [piece[: len(begin)].tolist() for piece in pieces] == [begin] * len(pieces)
    assert [t for piece in pieces for t in piece[len(begin) :]] == [*range(a, a + 7)]
    # What is saved spells no token that the tokenizer writes by itself.
    (prompt,) = read_prompts("d", jsonl(tmp_path / "p.jsonl", rows[0]), length=99, **how).ids
    text = generations_text(
        [prompts_of([prompt])], [[Completion(ids=prompt, finished=False)]], tokenizer
    )
    assert json.loads(text)["prompt"] == "abc"


def prompts_of(ids: list[Any]) -> Prompts:
    return Prompts(
        name="d", source="s", sha256="", total=len(ids), numbers=tuple(range(len(ids))),
        ids=tuple(ids), documents=(None,) * len(ids),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["normalizer", "always", "first"])
@pytest.mark.parametrize(
    ("prompt", "completion"),
    [("the capital is", " paris"), ("the pa", "ris"), ("f", ".a"), ("f", "\n a"), ("f", "  pa")],
)
def test_an_answer_has_no_space_that_only_a_beginning_has(
    kind: str, prompt: str, completion: str, tmp_path: Path
) -> None:
    tokenizer = spaced(kind)
    whole = tokenizer(prompt + completion)["input_ids"]
    head = tokenizer(prompt)["input_ids"]
    assert whole[: len(head)] == head, "the case should cut between tokens"
    row = {"domain": "d", "prompt": prompt, "completion": completion, "finish_reason": "length"}
    assert read(jsonl(tmp_path / "texts.jsonl", row), tokenizer) == (head, whole[len(head) :])
    # Its ids are recognised, as a server spells them: the space is in the text, not in a decoding
    # of the ids alone.
    ids = whole[len(head) :]
    other = [ids[0], *ids[:0:-1]] if len(ids) > 2 else ids
    spelt = tokenizer.decode(head + other)[len(tokenizer.decode(head)) :]
    served = {**row, "completion": spelt, "prompt_token_ids": head, "token_ids": other}
    assert read(jsonl(tmp_path / "ids.jsonl", served), tokenizer) == (head, other)
    # And so they are saved.
    done = Completion(ids=np.array(ids, np.int32), finished=False)
    saved = json.loads(
        generations_text([prompts_of([np.array(head, np.int32)])], [[done]], tokenizer)
    )
    assert saved["completion"] == completion and saved["prompt"] == prompt
    assert read(jsonl(tmp_path / "saved.jsonl", saved), tokenizer) == (head, ids)


def test_other_tokenizers_read_an_answer_as_it_stands(tmp_path: Path) -> None:
    tokenizer = bytewise(tmp_path, "<|im_start|> $A <|end|>")
    for text in ("", "a", " a", "\n", "\n\n a", ".", "ü漢"):
        plain = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert encode_answer(text, "", tokenizer=tokenizer).tolist() == plain
