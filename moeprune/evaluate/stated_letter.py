r"""The letter of the choice that a text states.

The first of these that finds one decides:

1. the last statement: ``the answer is (B)``, ``Answer: **B**``, ``\boxed{B}``, ``B is correct``,
   ``the correct option is B``, ``答案是 B``, ``选 B``;
2. a label at the very beginning: ``B``, ``(B)``, ``**B.** Paris``, ``b) Paris``;
3. a line at the end that is nothing but a letter;
4. the last capital letter that stands alone, but for the words ``A`` and ``I``.

Signs of Markdown and LaTeX around a letter are not looked at. A small letter counts where nothing
but a sign of punctuation, or the end, follows it.
"""

from __future__ import annotations

import re
import unicodedata

# A letter that is no word, and a gap of signs before it, of one line or up to the next.
_CAPITAL = r"(?:[A-HJ-Z](?![\w'’])|I(?![\w'’]|\s+[a-z]))"
_SMALL = r"(?:[a-z](?=\s*(?:[).,:;\]}]|$)))"
_LETTER = rf"(?P<letter>{_CAPITAL}|{_SMALL})"
_SIGNS = r"[^\w\n]{0,6}\n?[^\w\n]{0,4}"
_BE = r"(?:is|are|was|be|being|becomes|would be|should be|must be|will be)"

_STATED = re.compile(
    rf"""
    (?:
        \b(?i:answers?|(?:correct|right|best|final)\ (?:choice|option|letter|one|statement))
        (?i:\ (?:choice|option|letter|to\ (?:this|the)\ question))?
        [^\w\n]{{0,4}}(?i:\b{_BE}\b)?{_SIGNS}
        (?:(?i:(?:option|choice|letter)\ ))?[^\w\n]{{0,4}}
      | \b(?i:choose|select|pick)\ (?:(?i:option|choice|letter|answer)\ )?[^\w\n]{{0,4}}
      | (?:答案|故选|应选|选择|正确选项|选)(?:应该是|应为|应是|是|为|选)?[^\w\n]{{0,6}}
      | \\boxed[^\w\n]{{1,3}}(?:\\?(?:text|mathrm|mathbf|textbf)[^\w\n]{{1,2}})?
    )
    {_LETTER}
    """,
    re.VERBOSE,
)
_JUDGED = re.compile(
    r"(?<!\w)(?P<letter>[A-Z])[^\w\n]{0,4}\ is\ (?:the\ )?(?:correct|right|best|answer)\b"
)
_LABEL = re.compile(r"[^\w]*(?:(?P<letter>[A-Za-z])(?:[^\w\s]*[).:\]}*,。，：]|\W*$))")
_ALONE = re.compile(r"(?<![\w'’])(?:(?P<letter>[B-HJ-Z])|(?P<word>[AI])(?!\s+[a-z]))(?![\w'’])")


def stated_letter(text: str) -> str | None:
    """The capital letter of the choice that ``text`` states; None: it states none."""
    text = unicodedata.normalize("NFKC", text).replace("*", "").replace("$", "").strip()
    stated = [*_STATED.finditer(text), *_JUDGED.finditer(text)]
    if stated:
        return max(stated, key=lambda match: match.start("letter"))["letter"].upper()
    label = _LABEL.match(text)
    if label:
        return label["letter"].upper()
    last = _LABEL.fullmatch(text.rpartition("\n")[2].strip())
    if last:
        return last["letter"].upper()
    alone = [match["letter"] or match["word"] for match in _ALONE.finditer(text)]
    return alone[-1] if alone else None
