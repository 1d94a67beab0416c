"""What is to be done after an import is done once, after it, and leaves no trace."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path

import pytest

from moeprune.on_import import after_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"watched_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "inner.py").write_text("VALUE = 1\n\ndef f():\n    return VALUE\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return f"{name}.inner"


def test_after_the_module_has_run(module: str) -> None:
    seen, finders = [], list(sys.meta_path)
    after_import(module, lambda: seen.append(sys.modules[module].VALUE))
    importlib.import_module(module.partition(".")[0])
    assert seen == []
    found = importlib.import_module(module)
    assert seen == [1] and sys.meta_path == finders
    assert type(found.__loader__).__name__ == "SourceFileLoader"
    assert found.__spec__ is not None and found.__spec__.loader is found.__loader__
    assert "return VALUE" in inspect.getsource(found.f)
    importlib.reload(found)
    assert seen == [1]


def test_at_once_where_it_has_run_already(module: str) -> None:
    importlib.import_module(module)
    seen: list[int] = []
    after_import(module, lambda: seen.append(1))
    assert seen == [1]


def test_a_module_that_is_not_there_fails_as_ever(module: str) -> None:
    after_import(f"{module}x", lambda: None)
    with pytest.raises(ModuleNotFoundError, match="innerx"):
        importlib.import_module(f"{module}x")


def test_two_of_one_module(module: str) -> None:
    seen: list[int] = []
    after_import(module, lambda: seen.append(1))
    after_import(module, lambda: seen.append(2))
    importlib.import_module(module)
    assert sorted(seen) == [1, 2]


def test_asking_whether_the_module_is_there_changes_nothing(module: str) -> None:
    seen, finders = [], list(sys.meta_path)
    after_import(module, lambda: seen.append(1))
    for _ in range(2):
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.loader is not None and seen == []
        assert "VALUE = 1" in spec.loader.get_source(module)  # type: ignore[attr-defined]
    importlib.import_module(module)
    assert seen == [1] and sys.meta_path == finders


def test_an_import_that_failed_and_is_tried_again(module: str, tmp_path: Path) -> None:
    seen: list[int] = []
    (inner,) = tmp_path.glob("watched_*/inner.py")
    text = inner.read_text()
    inner.write_text("raise RuntimeError('not yet')\n")
    after_import(module, lambda: seen.append(1))
    with pytest.raises(RuntimeError, match="not yet"):
        importlib.import_module(module)
    inner.write_text(text)
    importlib.invalidate_caches()
    importlib.import_module(module)
    assert seen == [1]
