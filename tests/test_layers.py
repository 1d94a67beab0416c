"""The layers of the design hold: imports point downward, heavy libraries stay where they may be."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "moeprune"

LAYER = {
    "": 0,
    "core": 1,
    "live": 1,
    **dict.fromkeys(
        (
            "architectures",
            "criteria",
            "allocators",
            "analysis",
            "quant",
            "loading",
            "checkpoint",
            "observe",
            "routing",
            "evaluate",
            "report",
            "hub",
        ),
        2,
    ),
    "stages": 3,
    "cli": 4,
}
# library -> folders that may import it
ONLY_IN = {
    "click": {"cli"},
    "transformers": {"observe", "routing", "evaluate", "loading"},
    "accelerate": {"observe", "routing", "evaluate"},
    "torch": {"live", "observe", "routing", "evaluate", "loading", "quant"},
    "bitsandbytes": {"loading"},
    "compressed_tensors": {"loading"},
    "huggingface_hub": {"hub"},
    "lm_eval": {"evaluate"},
    "tokenizers": {"observe", "evaluate"},
    "scipy": {"allocators", "evaluate"},
    "pickle": set(),
}
# The package's front doors serve the stages by name, lazily.
FRONT_DOORS = {"__init__.py", "__main__.py"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def folder_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downward(path: Path) -> None:
    here = folder_of(path)
    assert here in LAYER, f"folder {here} has no layer"
    for name in imports(path):
        library, _, rest = name.partition(".")
        if library in ONLY_IN:
            assert here in ONLY_IN[library], f"{path} imports {library}"
        if library != "moeprune" or (path.name in FRONT_DOORS and here == ""):
            continue
        head = rest.split(".")[0]
        target = head if head in LAYER else ""
        if target != here:
            assert LAYER[target] < LAYER[here], f"{path} imports {name}"


def test_every_folder_has_a_layer_and_modules_stay_small() -> None:
    for path in modules():
        assert folder_of(path) in LAYER
        lines = len(path.read_text(encoding="utf-8").splitlines())
        # core/stats.py is one type and its merge; everything else is a question of two jobs.
        limit = 340 if path.relative_to(PACKAGE).as_posix() == "core/stats.py" else 300
        assert lines <= limit, f"{path} has {lines} lines"


def test_no_print_outside_the_command_line() -> None:
    for path in modules():
        if folder_of(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_print = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
            assert not is_print, f"{path}:{getattr(node, 'lineno', 0)} prints"


def test_no_broad_except() -> None:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler):
                names = (
                    {getattr(item, "id", "") for item in node.type.elts}
                    if isinstance(node.type, ast.Tuple)
                    else {getattr(node.type, "id", "") if node.type else "bare"}
                )
                where = f"{path}:{node.lineno}"
                assert not names & {"Exception", "bare"}, f"{where} catches {names}"


def test_public_names_have_docstrings() -> None:
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), f"{path} has no docstring"
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path}: {node.name} has no docstring"


def test_modules_of_tests_have_names_of_their_own() -> None:
    # pytest imports them by their base names: of two alike one is not run.
    found = Counter(path.name for path in Path(__file__).parent.rglob("*.py"))
    assert [name for name, number in found.items() if number > 1] == []
