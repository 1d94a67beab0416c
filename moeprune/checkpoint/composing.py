"""The text of the model code that a folder carries: one file, put together from parts.

The template builds layers of different widths and reroutes. What reads a stored format that
transformers alone does not is a part, added where the folder needs it: the text of ordinary modules
of this package, so that ``import moeprune`` and the folder run the same code.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import combinations

MODELING_FILE = "modeling_moeprune.py"
_RULE = "# The text of moeprune/routing/rule.py follows here.\n"
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
_LOADING = "        loaded = model_class.from_pretrained(path, *args, config=config, **kwargs)\n"
_BROUGHT = "        shutil.copyfile(__file__, target)\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Code that a folder carries beside the template.

    Attributes:
        modules: files of the package, in the order in which their texts follow; each may import
            from those before it, and from nothing else of the package.
        call: what the file does last, e.g. ``register_nf4()``; "": nothing.
        around: name of a context, of the class and the config of a model, in which the model is
            loaded; or "".
        saved: name of a function of the folder that a model has been saved in; or "".
    """

    modules: tuple[str, ...]
    call: str = ""
    around: str = ""
    saved: str = ""


MERGING, NF4, LAYERED = "merging", "nf4", "layered"
PARTS: Mapping[str, Part] = {
    # Single experts, for modules that hold all of a layer; and what transformers trips over.
    MERGING: Part(
        modules=("loading/decoding.py", "loading/merging.py"),
        around="merging_experts",
        saved="close_folder",
    ),
    # Experts in four bits, for transformers 5: packed in memory, or plain.
    NF4: Part(
        modules=(
            "loading/four_bit.py",
            "loading/stored_bytes.py",
            "loading/four_bit_layout.py",
            "loading/packed_experts.py",
            "loading/expert_plans.py",
            "loading/expert_weights.py",
            "loading/nf4.py",
        ),
        call="register_nf4()",
    ),
    # Layers of different schemes.
    LAYERED: Part(modules=("loading/decoding.py", "loading/layered.py"), call="register_layered()"),
}


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
    around = [PARTS[part].around for part in parts if PARTS[part].around]
    if around:
        assert text.count(_LOADING) == 1, "the template has changed"
        contexts = ", ".join(f"{name}(model_class, config)" for name in around)
        text = text.replace(_LOADING, f"        with {contexts}:\n    {_LOADING}")
    assert text.count(_BROUGHT) == 1, "the template has changed"
    saved = "".join(f"    {PARTS[part].saved}(folder)\n" for part in parts if PARTS[part].saved)
    text = text.replace(_BROUGHT, _BROUGHT + saved)
    modules = [name for part in parts for name in PARTS[part].modules]
    bodies = [_body(_read(name)) for name in dict.fromkeys(modules)]
    docstring, code = _docstring_and_rest(text)
    calls = "\n".join(PARTS[part].call for part in parts if PARTS[part].call)
    imports = _import_lines([code, *map(_read, modules)])
    blocks = [f"{docstring}\n\n{imports}\n\n{_body(code).strip()}", *bodies, calls]
    return "\n\n\n".join(filter(None, blocks)) + "\n"


def _docstring_and_rest(text: str) -> tuple[str, str]:
    end = ast.parse(text).body[0].end_lineno or 0
    lines = text.splitlines(keepends=True)
    return "".join(lines[:end]).rstrip(), "".join(lines[end:])


def _import_lines(texts: Iterable[str]) -> str:
    """Every import of these modules from outside the package, each once, sorted as usual."""
    plain: set[str] = set()
    names: dict[str, set[str]] = {}
    for node in (node for text in texts for node in ast.parse(text).body):
        if isinstance(node, ast.Import):
            plain.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found = {ast.unparse(alias) for alias in node.names}
            names.setdefault(node.module, set()).update(found)
    lines = [(name, f"import {name}\n") for name in sorted(plain)]
    lines += [
        (module, f"from {module} import {', '.join(sorted(found))}\n")
        for module, found in sorted(names.items())
    ]
    groups: tuple[list[str], list[str]] = ([], [])
    for module, line in lines:
        top = module.partition(".")[0]
        if top not in ("moeprune", "__future__"):
            groups[top not in sys.stdlib_module_names].append(line)
    return "\n".join("".join(group) for group in groups)


def _body(text: str) -> str:
    """What follows the imports of a module; its docstring goes before it, as a comment."""
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    told = (ast.get_docstring(tree) or "").splitlines()
    # Two columns further to the right, a full line would be too long.
    wrapped = [part for line in told for part in textwrap.wrap(line, 98) or [""]]
    comment = [f"# {line}".rstrip() for line in wrapped]
    lines = text.splitlines()[imports[-1].end_lineno :]
    return "\n".join([*comment, *lines]).strip("\n")


def _read(name: str) -> str:
    # Read as bytes: line ends must not depend on the system.
    return (resources.files("moeprune") / name).read_bytes().decode("utf-8")
