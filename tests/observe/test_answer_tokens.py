"""Which tokens are of an answer, against what the names of the tokens say they hold."""

from __future__ import annotations

from typing import Any

import chat_templates
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trained_tokenizers import MAKERS, TEXTS, Slow, byte_level, held

from moeprune.errors import DomainError
from moeprune.observe.rows import Document
from moeprune.observe.targets import encode_answers
from moeprune.observe.tokenizer import encode

WORDS = sorted({word for text in TEXTS for word in text.split(" ")})
PARTS = st.lists(
    st.one_of(st.sampled_from([*WORDS, " ", "  ", "\n", "4 + 4 =", " yes", "é", "😀"])), max_size=8
).map("".join)


@pytest.fixture(scope="module", params=sorted(MAKERS))
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]()


def row(prompt: str, completion: str) -> Document:
    return Document(text=prompt + completion, where="row", asked=len(prompt))


@settings(max_examples=60, deadline=None)
@given(prompt=PARTS.filter(bool), completion=PARTS.filter(bool), length=st.integers(1, 30))
@example(prompt="f(x):\n", completion="  ", length=1)  # one token, and the tokenizer's own behind
def test_targets_are_the_tokens_that_hold_some_of_the_completion(
    tokenizer: Any, prompt: str, completion: str, length: int
) -> None:
    document = row(prompt, completion)
    ids, targets = encode_answers(document, tokenizer=tokenizer, length=999)
    np.testing.assert_array_equal(ids, encode(document, tokenizer=tokenizer, length=999))
    tokens = held(tokenizer, ids.tolist())
    ends = np.cumsum([len(token) for token in tokens])
    if ends[-1] == len((prompt + completion).encode()) + 1:  # a space before the first word
        border = len(prompt.encode()) + 1
    elif b"<unk>" in tokens or ends[-1] != len((prompt + completion).encode()):
        return  # some of the text is not in the tokens
    else:
        border = len(prompt.encode())
    due = ends > border
    due[0] = False
    np.testing.assert_array_equal(targets, due)
    cut = encode_answers(document, tokenizer=tokenizer, length=length)
    np.testing.assert_array_equal(cut[0], ids[:length])
    np.testing.assert_array_equal(cut[1], targets[:length])


@settings(max_examples=40, deadline=None)
@given(prompt=PARTS.filter(bool), completion=PARTS.filter(bool))
def test_a_tokenizer_without_places_finds_all_of_them_and_few_more(
    tokenizer: Any, prompt: str, completion: str
) -> None:
    document = row(prompt, completion)
    ids, targets = encode_answers(document, tokenizer=tokenizer, length=999)
    same, found = encode_answers(document, tokenizer=Slow(tokenizer), length=999)
    np.testing.assert_array_equal(same, ids)
    assert not (targets & ~found).any()
    before = tokenizer(prompt)["input_ids"]
    agree = [one == other for one, other in zip(before, ids, strict=False)]
    first = agree.index(False) if False in agree else len(agree)
    assert not found[:first].any()  # nothing that the prompt alone begins with


@pytest.mark.parametrize(
    ("prompt", "completion", "due"),
    [
        ("Question: yes or no?\nAnswer: ", "yes", " yes"),  # one token over the border
        ("Question: yes or no?\nAnswer:", " yes", " yes"),
        ("4 + 4 =", "8", "8"),
        ("The answer is", " no\n\n", " no\n\n"),
        ("a", "", ""),
        ("", "yes", "yes"),
    ],
)
def test_by_hand(prompt: str, completion: str, due: str) -> None:
    for ends in (False, True):
        tokenizer = byte_level(ends=ends)
        ids, targets = encode_answers(row(prompt, completion), tokenizer=tokenizer, length=99)
        text = tokenizer.decode(ids[targets])
        # Where nothing stands before it, the first token is predicted by nothing.
        first = "" if prompt or ends else "yes"
        assert text == (due + ("<|end|>" if ends and due else "")).removeprefix(first)


def test_a_text_is_all_answer(tokenizer: Any) -> None:
    document = Document(text="The answer is yes.\n", where="row")
    _, targets = encode_answers(document, tokenizer=tokenizer, length=99)
    assert targets.tolist() == [False] + [True] * (targets.size - 1)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


TWO = [user("1+1?"), assistant("It is 2."), user("2+2?"), assistant("4")]
THOUGHT = [
    user("1+1?"),
    assistant("<think>\nhm\n</think>\n\n2"),
    user("2+2?"),
    assistant("<think>\nso\n</think>\n\n4"),
]
CHANNELS = [user("1?"), assistant("one", thinking="hm"), user("2?"), assistant("2", thinking="so")]
FIRST = [assistant("Hello"), user("hi"), assistant("yes")]
FINAL = "<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("template", "chat", "due"),
    [
        ("CHATML", TWO, ["It is 2.<|im_end|>", "4<|im_end|>"]),
        ("CHATML", FIRST, ["Hello<|im_end|>", "yes<|im_end|>"]),
        ("CHATML", [*TWO[:2], assistant("2")], ["It is 2.<|im_end|>", "2<|im_end|>"]),
        ("CHATML", [*TWO, user("5")], ["It is 2.<|im_end|>", "4<|im_end|>"]),
        ("CHATML", TWO[:1], []),
        ("THINKS", TWO, ["It is 2.<|im_end|>", "<think>\n\n</think>\n\n4<|im_end|>"]),
        ("THINKS", THOUGHT, ["2<|im_end|>", "<think>\nso\n</think>\n\n4<|im_end|>"]),
        (
            "EMPTY_THOUGHTS",
            THOUGHT,
            ["\n<think></think>\n2", "\n<think>so</think>\n4"],
        ),
        (
            "THINKS",
            [user("1?"), assistant("<think>hm</think>2"), user("2?"), assistant("4")],
            ["2<|im_end|>", "<think>\n\n</think>\n\n4<|im_end|>"],
        ),
        ("EMPTY_THOUGHTS", TWO, ["\n<think></think>\nIt is 2.", "\n<think></think>\n4"]),
        ("BEGINS_A_THOUGHT", TWO, ["It is 2.<|end|>", "4<|end|>"]),
        ("BEGINS_A_THOUGHT", THOUGHT, ["\n\n2<|end|>", "\n\n4<|end|>"]),
        ("CHANNELS", TWO, [f"{FINAL}It is 2.<|end|>", f"{FINAL}4<|return|>"]),
        (
            "CHANNELS",
            CHANNELS,
            [
                f"{FINAL}one<|end|>",
                f"<|channel|>analysis<|message|>so<|end|><|start|>assistant{FINAL}2<|return|>",
            ],
        ),
        ("CHANNELS", FIRST, [f"{FINAL}Hello<|end|>", f"{FINAL}yes<|return|>"]),
        # A token over the border belongs to the answer: " It" is one, " 4" as well.
        ("BRACKETS", TWO, [" It is 2.<|end|>", " 4<|end|>"]),
        ("HEADERS", TWO, ["It is 2.<|end|>", "4<|end|>"]),
        ("HEADERS", [user("a"), assistant("  yes \n")], ["yes<|end|>"]),
        ("MARKS", TWO, ["It is 2.<|im_end|>", "4<|im_end|>"]),
    ],
)
@pytest.mark.parametrize("slow", [False, True])
def test_of_a_chat_what_the_assistant_writes(
    template: str, chat: list[dict[str, Any]], due: list[str], slow: bool
) -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = getattr(chat_templates, template)
    shown = Slow(tokenizer) if slow else tokenizer
    for asked in (0, 2):
        document = Document(text=tuple(chat), where="row", asked=asked)
        ids, targets = encode_answers(document, tokenizer=shown, length=999)
        np.testing.assert_array_equal(ids, encode(document, tokenizer=tokenizer, length=999))
        kept = due[sum(message["role"] == "assistant" for message in chat[:asked]) :]
        assert runs(tokenizer, ids, targets) == kept


def runs(tokenizer: Any, ids: Any, targets: Any) -> list[str]:
    """The texts of targets that stand side by side."""
    tokens = held(tokenizer, ids.tolist(), around=False)
    edges = np.flatnonzero(np.diff(targets.astype(int), prepend=0, append=0)).reshape(-1, 2)
    return [b"".join(tokens[start:end]).decode() for start, end in edges]


@pytest.mark.parametrize("template", ["CHATML", "THINKS", "CHANNELS", "MARKS"])
def test_a_cut_chat_has_the_targets_of_the_whole_one(template: str) -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = getattr(chat_templates, template)
    document = Document(text=tuple(THOUGHT + TWO), where="row")
    ids, targets = encode_answers(document, tokenizer=tokenizer, length=999)
    for length in range(1, ids.size):
        cut = encode_answers(document, tokenizer=tokenizer, length=length)
        np.testing.assert_array_equal(cut[0], ids[:length])
        np.testing.assert_array_equal(cut[1], targets[:length])


def test_of_a_chat_without_template_the_texts_of_the_assistant() -> None:
    tokenizer = byte_level()
    chat = (user("What is it?"), assistant("yes"), user("so"), assistant("no"))
    document = Document(text=chat, where="row")
    ids, targets = encode_answers(document, tokenizer=tokenizer, length=99, chat_template=False)
    assert runs(tokenizer, ids, targets) == ["yes", "no"]


def test_an_answer_that_cannot_be_found_is_refused_in_one_line() -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = (  # earlier answers are written in capitals
        "{% for m in messages %}<|start|>"
        "{% if m['role'] == 'user' or loop.last %}{{ m['content'] }}"
        "{% else %}{{ m['content'] | upper }}{% endif %}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|start|>{% endif %}"
    )
    document = Document(text=tuple(TWO), where="chats.jsonl, line 3")
    with pytest.raises(
        DomainError, match=r"^chats\.jsonl, line 3: .* prompt and completion\.$"
    ) as refused:
        encode_answers(document, tokenizer=tokenizer, length=999)
    assert "\n" not in str(refused.value)
