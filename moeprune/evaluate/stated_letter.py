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

# What is of the same word as a letter; not \w, since Chinese stands around letters without a space.
_WORD = r"[A-Za-z0-9_À-ɏ'’]"
_GOES_ON = r"because|since|as|for|and|but|which|that|with|due|in|of"
# A letter that is no word: "The answer is A because" is one, "The answer is A dog" is none.
_CAPITAL = rf"(?:[B-HJ-Z]|A(?!\s+(?!(?:{_GOES_ON})\b)[a-z])|I(?!\s+[a-z]))(?!{_WORD})"
_SMALL = r"[a-z](?=\s*(?:[).,:;\]}]|$))"
# "answer A is wrong" speaks of A and does not state it.
_SPOKEN_OF = r"(?![)\].:]*\s+(?:is|are|was|were|isn|would|could|can|cannot|does|doesn|seems|may)\b)"
_LETTER = rf"(?P<letter>{_CAPITAL}|{_SMALL}){_SPOKEN_OF}"
# A gap of signs, of one line or up to the next.
_SIGNS = r"[^\w\n]{0,6}\n?[^\w\n]{0,4}"
_BE = r"(?:is|are|was|be|being|becomes|would be|should be|must be|will be)"
_LIKELY = r"(?: (?:most )?(?:probably|likely|definitely|clearly|therefore|thus|indeed|simply))?"

_STATED = re.compile(
    rf"""
    (?:
        \b(?i:answers?|(?:correct|right|best|final)\ (?:choice|option|letter|one|statement))
        (?i:\ (?:choice|option|letter|to\ (?:this|the)\ question))?
        [^\w\n]{{0,4}}(?i:\b{_BE}\b{_LIKELY.replace(" ", "[ ]")})?{_SIGNS}
        (?i:(?:the\ )?(?:option|choice|letter)\ )?[^\w\n]{{0,4}}
      | \b(?i:choose|select|pick|go\ with)\ (?i:(?:option|choice|letter|answer)\ )?[^\w\n]{{0,4}}
      | (?:答案|故选|应选|选择|正确的?选项|正确的|选)(?:应该是|应为|应是|是|为|选)?[^\w\n]{{0,6}}
      | \\boxed[^\w\n]{{1,3}}(?:\\?(?:text|mathrm|mathbf|textbf)[^\w\n]{{1,2}})?
    )
    {_LETTER}
    """,
    re.VERBOSE,
)
_JUDGED = re.compile(
    rf"(?<!{_WORD})(?P<letter>[A-Z])(?:[^\w\n]{{0,4}} is (?:the )?(?:correct|right|best|answer)\b"
    r"|(?:选项|项)?是?正确)"
)
_LABEL = re.compile(r"\W*(?P<letter>[A-Za-z])(?:[^\w\s]*[).:\]}*,。，：]|\W*$)")
_ALONE = re.compile(rf"(?<!{_WORD})(?P<letter>[B-HJ-Z]|[AI](?!\s+[a-z]))(?!{_WORD})")


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
    alone = [match["letter"] for match in _ALONE.finditer(text)]
    return alone[-1] if alone else None
