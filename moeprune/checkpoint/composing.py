"""The text of the model code that a folder carries: one file, put together from parts.

The template builds layers of different widths and reroutes. What reads a stored format that
transformers alone does not is a part, added where the folder needs it: the text of ordinary modules
of this package, so that ``import moeprune`` and the folder run the same code.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import combinations

MODELING_FILE = "modeling_moeprune.py"
_RULE = "# The text of moeprune/routing/rule.py follows here.\n"
_FIRST = "\nFORMAT = 1\n"
# With parts, a folder needs its code even where it states no counts and no k1 and k2.
_WITH_PARTS = (
    (
        "        # Without the block, it is an ordinary model of the family.\n"
        "        return (native if block is None else _exported(native)), config\n",
        "        return _exported(native), config\n",
    ),
    (
        "        block = _checked(self.config.moeprune)\n",
        '        block = getattr(self.config, "moeprune", None)\n'
        "        block = {} if block is None else _checked(block)\n",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Code that a folder carries beside the template.

    Attributes:
        modules: files of the package, in the order in which their texts follow; each may import
            from those before it, and from nothing else of the package.
        call: what the file does last, e.g. ``register_nf4()``.
    """

    modules: tuple[str, ...]
    call: str


PARTS: Mapping[str, Part] = {}


def modeling_text(parts: Collection[str] = ()) -> str:
    """The file that goes into the folder: the template, the one rule of rerouting, and the parts.

    Args:
        parts: names in ``PARTS``; their order does not matter.
    """
    return _composed(tuple(name for name in PARTS if name in parts))


def is_modeling_text(text: bytes) -> bool:
    """Whether these are the bytes of such a file, with whichever parts."""
    names = tuple(PARTS)
    sets = (chosen for size in range(len(names) + 1) for chosen in combinations(names, size))
    return any(text == _composed(chosen).encode() for chosen in sets)


@cache
def _composed(parts: tuple[str, ...]) -> str:
    before, _, after = _read(f"checkpoint/{MODELING_FILE}.txt").partition(_RULE)
    rule = _read("routing/rule.py")
    # The template imports what the rule needs.
    text = before + rule[rule.index("\ndef ") + 1 :] + after
    if not parts:
        return text
    for plain, other in _WITH_PARTS:
        assert text.count(plain) == 1, "the template has changed"
        text = text.replace(plain, other)
    modules = [name for part in parts for name in PARTS[part].modules]
    bodies = [_body(_read(name)) for name in dict.fromkeys(modules)]
    known = set(text[: text.index(_FIRST)].splitlines())
    imports = {line for lines, _ in bodies for line in lines} - known
    head, tail = text.split(_FIRST, 1)
    text = "".join([head, "".join(f"{line}\n" for line in sorted(imports)), _FIRST, tail])
    calls = "".join(f"{PARTS[part].call}\n" for part in parts)
    return "\n\n".join([text.rstrip("\n"), *(body for _, body in bodies), calls])


def _body(text: str) -> tuple[list[str], str]:
    """The imports of a module from outside the package, one a line; and what follows them.

    Its docstring becomes a comment: it tells a reader of the folder what the code below does.
    """
    tree = ast.parse(text)
    lines: list[str] = []
    end = 0
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
            if source.partition(".")[0] not in ("moeprune", "__future__"):
                lines.append(ast.unparse(node))
            end = node.end_lineno or 0
    comment = "".join(
        f"# {line}".rstrip() + "\n" for line in (ast.get_docstring(tree) or "").splitlines()
    )
    return lines, comment + "".join(text.splitlines(keepends=True)[end:]).strip("\n")


def _read(name: str) -> str:
    # Read as bytes: line ends must not depend on the system.
    return (resources.files("moeprune") / name).read_bytes().decode("utf-8")
