"""lm-eval's tasks, groups and tags by name: found, and allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moeprune.core.foreign import foreign_errors
from moeprune.errors import UsageError

_OLDEST = [0, 4, 13]


def check_installed() -> None:
    """Check that lm-eval is there.

    Raises:
        UsageError: it is not, or too old.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("lm_eval")
    except PackageNotFoundError:
        raise UsageError(
            'lm_eval: tasks need lm-eval, which is not installed: pip install "moeprune[eval]".'
        ) from None
    numbers = [int(number) for number in re.findall(r"[0-9]+", found)[:3]]
    if numbers < _OLDEST:
        raise UsageError(
            f"lm_eval: tasks need lm-eval {'.'.join(map(str, _OLDEST))} or later, and {found} is "
            'installed: pip install -U "moeprune[eval]".'
        )


def folder_of_tasks(path: str | Path) -> str:
    """A folder of YAML tasks, each of which can be read.

    Raises:
        UsageError: it is none, or a file in it is no YAML.
    """
    if not Path(path).is_dir():
        instead = f" Name the folder it is in: {Path(path).parent}." * Path(path).is_file()
        raise UsageError(f"{path} is not a folder of YAML tasks.{instead}")
    import yaml

    class Loader(yaml.SafeLoader):
        """That leaves ``!function`` and the like alone."""

    Loader.add_multi_constructor("!", lambda loader, tag, node: tag)
    for file in sorted(Path(path).glob("**/*.yaml")):
        broken = f"{file} is no task of lm-eval"
        with foreign_errors(broken, "Correct it.", error=UsageError, also=broken_yaml()):
            yaml.load(file.read_text(encoding="utf-8"), Loader)
    return str(path)


def manager_of(names: Sequence[str], folders: Sequence[str]) -> Any:
    """lm-eval's index of tasks.

    It is of the folders alone where they hold all that is asked for: lm-eval's own ten thousand
    files take seconds.
    """
    from lm_eval.tasks import TaskManager

    if folders:
        own = TaskManager(include_path=list(folders), include_defaults=False)
        if all(_is_whole(own, name) for name in names):
            return own
    return TaskManager(include_path=list(folders) or None)


def check_allowed(manager: Any, name: str, *, trust_remote_code: bool) -> None:
    """Check that there is such a task, group or tag, and that it may run.

    Raises:
        UsageError: there is none, or one of its tasks runs code that was not allowed.
    """
    if name not in manager.task_index:
        near = difflib.get_close_matches(name, manager.all_tasks, n=3, cutoff=0.7)
        hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise UsageError(
            f"lm-eval has no task, group or tag {name!r}. {hint}'lm-eval ls tasks' lists them; "
            "--include FOLDER adds your own."
        )
    if trust_remote_code:
        return
    for leaf, config in _leaves(manager, name):
        if config is not None and config.get("unsafe_code"):
            raise UsageError(
                f"task {leaf!r} of lm-eval runs the programs that the model writes. Do that where "
                "they can do no harm, with --trust-remote-code (and HF_ALLOW_CODE_EVAL=1)."
            )
        if config is not None and (config.get("dataset_kwargs") or {}).get("trust_remote_code"):
            raise UsageError(
                f"the dataset {config.get('dataset_path')!r} of task {leaf!r} runs code of its "
                "own. Read it, then give --trust-remote-code."
            )


def broken_yaml() -> tuple[type[BaseException], ...]:
    """What reading a YAML task may raise beside the usual."""
    import jinja2
    import yaml

    return yaml.YAMLError, jinja2.TemplateError


def _is_whole(manager: Any, name: str) -> bool:
    return name in manager.task_index and all(
        config is not None for _, config in _leaves(manager, name)
    )


def _leaves(manager: Any, name: str) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Tasks below a name, with what their YAML says: None where nothing does."""
    entry = manager.task_index.get(name)
    if entry is None:
        yield name, None
        return
    config = entry.cfg or {}
    if entry.yaml_path is not None and not isinstance(config.get("task"), list):
        yield name, config
        return
    for member in sorted(entry.tags) if entry.yaml_path is None else config["task"]:
        inner = member if isinstance(member, str) else member.get("group") or member.get("task")
        if isinstance(inner, str) and (inner in manager.task_index or isinstance(member, str)):
            yield from _leaves(manager, inner)
            if not isinstance(member, str):
                yield inner, {"dataset_kwargs": member.get("dataset_kwargs")}
        else:
            yield str(inner), member if "dataset_path" in member else None
