"""What a model wrote for itself, apart from what it answered.

Models that think mark the end of it: most with ``</think>``; gpt-oss with its ``final`` channel,
whose marks become plain words where special tokens are left out of a text.
"""

from __future__ import annotations

import re

_END = re.compile(
    r"</(?:think|thinking|thought|seed:think)>|\[/THINK\]|<\|channel\|>final<\|message\|>"
    r"|assistantfinal"
)
_BEGINNING = re.compile(
    r"\s*(?:<(?:think|thinking|thought|seed:think)>|\[THINK\]|<\|channel\|>analysis<\|message\|>"
    r"|analysis(?=[A-Z]))"
)


def answer_part(text: str) -> str:
    """The text after the last thought; nothing where a thought was begun and not ended.

    A thought that the prompt began and the budget cut short has no mark and is taken for an answer:
    that it was cut short is told apart.
    """
    end = 0
    for found in _END.finditer(text):
        end = found.end()
    if not end and _BEGINNING.match(text):
        return ""
    return text[end:]
