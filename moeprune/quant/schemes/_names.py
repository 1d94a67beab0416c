"""How quantisation settings name the linear maps that are not quantised."""

from __future__ import annotations

import re

from moeprune.quant._written import Written

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_EXPERTS = r"[.]experts(?:[.]|$)"  # also the module that holds all of them


def ignored(written: Written) -> list[str]:
    """Patterns that cover every plain module and no quantised one, whatever loaders call it.

    Layers have one pattern together, which begins anywhere: loaders put prefixes of their own in
    front. A module that differs from a quantised one in its numbers alone is named in full. The
    head has no tensor where it shares that of the embedding, so it is named always. The last covers
    all that is not called like a quantised module: transformers renames modules of some families.
    """
    pattern_of = {name: _pattern(name) for name in written.plain}
    wrong = {
        pattern
        for pattern in set(pattern_of.values())
        if any(re.match(pattern, name) for name in _distinct(written.quantised))
    }
    found = {
        name if pattern in wrong else _spelled(name, pattern)
        for name, pattern in pattern_of.items()
    }
    return [*sorted(found | ({"lm_head"} - set(written.quantised))), _all_else(written)]


def _all_else(written: Written) -> str:
    """A pattern of every name that is neither an experts module's, nor in one, nor quantised."""
    named = {
        _EXPERTS if ".experts." in name else _pattern(name).removeprefix(".*")
        for name in _distinct(written.quantised)
    }
    return f"re:(?!.*(?:{'|'.join(sorted(named))}))"


def all_plain(written: Written) -> list[str]:
    """The full names of all plain modules: loaders of ``fp8`` compare whole names."""
    return sorted({*written.plain, "lm_head"} - set(written.quantised))


def skipped(written: Written) -> list[str]:
    """Names that make loaders of bitsandbytes skip every plain module and no quantised one.

    transformers 5 asks how a module's path begins or ends, transformers 4 what its last part is or
    what stands before a dot, vLLM and SGLang what any part is or how the path begins. So a plain
    module gives its last part, and the topmost part of its path below which nothing is quantised;
    the path down to there where its last part would skip a quantised module too.
    """
    above = {path for name in written.quantised for path in _paths(name)}
    likes = _distinct(written.quantised)
    found = {"lm_head"} - set(written.quantised)
    for name in written.plain:
        paths = _paths(name)
        root = next((path for path in paths if path not in above), name)
        parts = name.split(".")[root.count(".") :]
        safe = [part for part in parts if not part.isdigit() and not _skips(part, likes)]
        found.update(safe[:1])
        found.add(parts[-1] if parts[-1] in safe else root)
    return sorted(found)


def _paths(name: str) -> list[str]:
    """The module and all that it lies in, the outermost first."""
    ends = [match.start() for match in re.finditer(r"[.]", name)]
    return [*(name[:end] for end in ends), name]


def _skips(key: str, names: set[str]) -> bool:
    return any(
        name.endswith(key) or key in name.split(".") or f"{key}." in name or name.startswith(key)
        for name in names
    )


def _pattern(name: str) -> str:
    """Any number in place of each of the name's, any prefix in front of what follows the first."""
    first = _NUMBER.search(name)
    if first is None:
        return re.escape(name) + "$"
    start = name.rindex(".", 0, first.start() - 1) + 1 if "." in name[: first.start() - 1] else 0
    parts = [re.escape(part).replace(r"\.", "[.]") for part in _NUMBER.split(name[start:])]
    return ".*" + r"\d+".join(parts) + "$"


def _spelled(name: str, pattern: str) -> str:
    return f"re:{pattern}" if pattern.startswith(".*") else name


def _distinct(names: tuple[str, ...]) -> set[str]:
    """One name for all that differ in their numbers alone: patterns do not tell them apart."""
    return set({_NUMBER.sub("0", name): name for name in names}.values())
