"""The file that a folder carries, put together from parts."""

import ast
from collections import Counter

import pytest

from moeprune.checkpoint import composing
from moeprune.checkpoint.composing import PARTS, is_modeling_text, modeling_text


def bound(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names += [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return names


@pytest.mark.parametrize("parts", sorted({(name,) for name in PARTS} | {(*PARTS,)}), ids="+".join)
def test_parts_do_not_get_in_each_others_way(parts: tuple[str, ...]) -> None:
    text = modeling_text(parts)
    tree = ast.parse(text)
    assert [name for name, times in Counter(bound(tree)).items() if times > 1] == []
    sources = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    heads = {str(source).partition(".")[0] for source in sources}
    assert not heads & {"moeprune", "__future__"}
    assert max(map(len, text.splitlines())) <= 100
    for part in (PARTS[name] for name in parts):
        assert not part.call or f"\n{part.call}\n" in text
        assert f" {part.around}(model_class, config)" in text or not part.around
        assert f"\n    {part.saved}(folder)\n" in text or not part.saved
    assert is_modeling_text(text.encode()) and not is_modeling_text((text + "\n").encode())


def test_without_parts_it_is_the_template_and_the_rule() -> None:
    text = modeling_text()
    read = composing._read
    before, after = read("checkpoint/modeling_moeprune.py.txt").split(
        "# The text of moeprune/routing/rule.py follows here.\n"
    )
    assert text.startswith(before) and text.endswith(after)
    assert read("routing/rule.py").endswith(text[len(before) :])
    assert is_modeling_text(text.encode())


def test_the_order_of_parts_does_not_matter() -> None:
    assert modeling_text([*PARTS]) == modeling_text([*PARTS][::-1])
