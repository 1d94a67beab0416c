"""Small tokenizers of every kind, and what each of their tokens holds, told by its name alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from chat_templates import TOKENS
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer, UnigramTrainer
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

TEXTS = [
    "The answer is yes; the answer is no. What is 12 + 30? It is 42, and 4 + 4 = 8.",
    "def f(x):\n    return  x + 1\n\n# 漢字, ÜBER naïve café 😀😀 e\u0301 don't I'll",
    "Question: yes or no?\nAnswer: yes\n\nQuestion: no or yes?\nAnswer: no",
]
SPECIAL = ["<|pad|>", *TOKENS]


def _finished(tokenizer: Tokenizer, ends: bool) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens(list(SPECIAL))
    if ends:
        tokenizer.post_processor = processors.Sequence(
            [
                *([tokenizer.post_processor] if tokenizer.post_processor else []),
                processors.TemplateProcessing(
                    single="<s> $A <|end|>",
                    special_tokens=[
                        (text, tokenizer.token_to_id(text)) for text in ("<s>", "<|end|>")
                    ],
                ),
            ]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", bos_token="<s>", eos_token="<|end|>"
    )


def byte_level(*, trim: bool = False, cuts: bool = True, ends: bool = False) -> Any:
    """The kind of GPT-2 and Qwen; without ``cuts`` tokens run across words and lines."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cuts)
    tokenizer.decoder = decoders.ByteLevel()
    if trim:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS * 20, BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    return _finished(tokenizer, ends)


def pieces(*, ends: bool = False) -> Any:
    """The kind of Llama 2 and Mixtral: a space before the first word, single bytes for the rest."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    letters = sorted(set("".join(TEXTS[:1] + TEXTS[2:])) - {" "})
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=letters,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS[:1] * 20 + TEXTS[2:] * 20, trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _finished(tokenizer, ends)


def unigram(*, ends: bool = False) -> Any:
    """The kind of sentencepiece's own model."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"])
    trainer.show_progress = False
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    return _finished(tokenizer, ends)


class Slow:
    """A tokenizer that does not say which characters its tokens hold."""

    is_fast = False

    def __init__(self, fast: Any) -> None:
        self._fast = fast

    def __call__(self, text: str, **how: Any) -> Any:
        assert "return_offsets_mapping" not in how
        return self._fast(text, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fast, name)


MAKERS: dict[str, Callable[[], Any]] = {
    "byte-level": byte_level,
    "byte-level, ends": lambda: byte_level(ends=True),
    "byte-level, trimmed": lambda: byte_level(trim=True, ends=True),
    "byte-level, across words": lambda: byte_level(cuts=False),
    "pieces": pieces,
    "pieces, ends": lambda: pieces(ends=True),
    "unigram": unigram,
    "unigram, ends": lambda: unigram(ends=True),
    "bytes": ByT5Tokenizer,
}

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def held(tokenizer: Any, ids: Sequence[int], *, around: bool = True) -> list[bytes]:
    """The bytes of the text that each token holds, from its name.

    ``around``: tokens that begin and end a text are the tokenizer's own, and hold nothing.
    """
    if isinstance(tokenizer, ByT5Tokenizer):
        return [bytes([token - 3]) if token >= 3 else b"" for token in ids]
    letters = _letters()
    found = []
    for token in tokenizer.convert_ids_to_tokens(list(ids)):
        if token in SPECIAL:
            found.append(b"" if around and token in ("<s>", "<|end|>") else token.encode())
        elif isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel):
            found.append(bytes(letters[letter] for letter in token))
        elif byte := _BYTE.fullmatch(token):
            found.append(bytes([int(byte[1], 16)]))
        else:
            found.append(token.replace("▁", " ").encode())
    return found


def _letters() -> dict[str, int]:
    """GPT-2's letter for each byte, by asking for every byte of Unicode's first letters."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {
        chr(256 + place): byte for place, byte in enumerate(hidden)
    }
