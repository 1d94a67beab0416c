"""lm-eval's tasks by name: found, allowed, their questions read. No model is needed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprune.artefact import canonical_json, sha256_bytes
from moeprune.core.foreign import foreign_errors
from moeprune.errors import UsageError
from moeprune.evaluate.harness.find import (
    broken_yaml,
    check_allowed,
    check_installed,
    folder_of_tasks,
    manager_of,
)
from moeprune.evaluate.harness.quiet import contained
from moeprune.evaluate.harness.samples import PREFIX
from moeprune.evaluate.harness.settings import HarnessSettings

_WAY_OUT = (
    "See that its dataset can be reached, on the Hugging Face Hub or in the files that its YAML "
    "names, and that the YAML is right."
)
_REVISION = re.compile(r"@([0-9a-f]{40})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessPart:
    """One task of lm-eval, its questions read.

    Attributes:
        name: lm-eval's, ``mmlu_anatomy``.
        whole: the group or tag that was asked for, ``mmlu``; None: the task itself was.
        built: lm-eval's object.
        facts: what ``run.json`` says of it.
        sha256: of all that decides what is asked, but the settings.
    """

    name: str
    whole: str | None
    built: Any
    facts: Mapping[str, Any]
    sha256: str

    @property
    def task(self) -> str:
        """What it is reported and joined as."""
        return f"{PREFIX}{self.whole or self.name}"

    @property
    def writes(self) -> bool:
        """Whether its answers are written."""
        return bool(self.facts["output_type"] == "generate_until")


def read_harness(
    names: Sequence[str],
    settings: HarnessSettings,
    *,
    include: Sequence[str | Path] = (),
    trust_remote_code: bool = False,
) -> tuple[HarnessPart, ...]:
    """Find tasks of lm-eval, and read their questions.

    Args:
        names: of tasks, groups or tags, with or without ``lm_eval:`` before them.
        settings: how they will be asked.
        include: folders of YAML tasks, whose names go before lm-eval's own.
        trust_remote_code: allow tasks that run what the model writes, or code of a dataset.

    Returns:
        The tasks, groups and tags resolved, in the order of ``names``.

    Raises:
        UsageError: lm-eval is not installed, there is no such task, it is not allowed, or its
            questions cannot be read.
    """
    check_installed()
    wanted = [name.removeprefix(PREFIX) for name in names]
    found: dict[str, HarnessPart] = {}
    with contained():
        manager = manager_of(wanted, [folder_of_tasks(path) for path in include])
        for name in wanted:
            check_allowed(manager, name, trust_remote_code=trust_remote_code)
            for part in _built(manager, name, settings):
                if part.name in found:
                    raise UsageError(
                        f"task {part.name!r} of lm-eval is asked for twice, the second time by "
                        f"{name!r}. Name it once."
                    )
                found[part.name] = part
    return tuple(found.values())


def entries(parts: Sequence[HarnessPart], settings: HarnessSettings) -> dict[str, dict[str, Any]]:
    """What ``run.json`` says of these tasks: name -> ``kind``, ``sha256``, ``protocol``."""
    from lm_eval import __version__

    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        entry = found.setdefault(
            part.task,
            {
                "kind": "lm_eval",
                "protocol": {**settings.to_json(), "lm_eval": __version__, "parts": {}},
            },
        )
        entry["protocol"]["parts"][part.name] = {**part.facts, "sha256": part.sha256}
    for entry in found.values():
        entry["sha256"] = sha256_bytes(canonical_json(entry["protocol"]).encode())
    return found


def _built(manager: Any, name: str, settings: HarnessSettings) -> list[HarnessPart]:
    import datasets

    with _said(
        f"task {name!r} of lm-eval cannot be read",
        also=(
            *broken_yaml(),
            datasets.exceptions.DatasetsError,
            AssertionError,
            StopIteration,  # a file without a row
        ),
    ):
        loaded = manager.load([name])
    whole = None if name in loaded["tasks"] else name
    found: list[HarnessPart] = []
    for part, built in loaded["tasks"].items():
        _apply(built, settings)
        with _said(f"the questions of task {part!r} of lm-eval cannot be read"):
            facts = _facts(built, settings)
            content = _content(built, settings)
        body = {"name": part, "facts": facts, "content": content}
        digest = sha256_bytes(canonical_json(body).encode())
        found.append(HarnessPart(name=part, whole=whole, built=built, facts=facts, sha256=digest))
    return found


def _apply(built: Any, settings: HarnessSettings) -> None:
    """The settings, by the rules of ``lm_eval.simple_evaluate``."""
    if settings.generation and built.get_config("output_type") == "generate_until":
        built.set_config(key="generation_kwargs", value=dict(settings.generation), update=True)
    own = built.get_config("num_fewshot")
    if settings.shots is not None and own != 0:
        built.set_config(key="num_fewshot", value=settings.shots)
    elif own is None:
        built.set_config(key="num_fewshot", value=0)


def _facts(built: Any, settings: HarnessSettings) -> dict[str, Any]:
    config = built.config
    total = len(built.eval_docs)
    return {
        "version": str(built.VERSION),
        "output_type": config.output_type,
        "shots": int(config.num_fewshot or 0),
        "questions": min(total, settings.limit or total),
        "higher_is_better": {str(k): bool(v) for k, v in built.higher_is_better().items()},
        "dataset": {
            "path": config.dataset_path,
            "name": config.dataset_name,
            "revision": _revision(built),
        },
        "config": _config_hash(built),
    }


def _revision(built: Any) -> str | None:
    """The commit of the Hub that the questions came from, where it is known."""
    stated = (built.config.dataset_kwargs or {}).get("revision")
    if stated:
        return str(stated)
    data = getattr(built, "dataset", None) or {}
    for split in data.values():
        info = getattr(split, "info", None)
        for url in getattr(info, "download_checksums", None) or ():
            commit = _REVISION.search(str(url))
            if commit:
                return commit[1]
    return None


def _config_hash(built: Any) -> str:
    """Of the task's configuration, wherever its file lies."""
    body = built.dump_config()
    body["metadata"] = {
        key: value for key, value in (body.get("metadata") or {}).items() if key != "config_source"
    }
    if (body.get("dataset_kwargs") or {}).get("data_files"):
        body["dataset_kwargs"] = {**body["dataset_kwargs"], "data_files": None}
    return hashlib.sha256(_dumped(body).encode("utf-8", "surrogatepass")).hexdigest()


def _content(built: Any, settings: HarnessSettings) -> str:
    """Of the questions, and of those that may stand before them."""
    total = len(built.eval_docs)
    told = hashlib.sha256()
    for number, document in enumerate(built.eval_docs):
        if number >= min(total, settings.limit or total):
            break
        told.update(_dumped(document).encode("utf-8", "surrogatepass"))
    if built.config.num_fewshot:
        for document in built.fewshot_docs() or ():
            told.update(b"\0" + _dumped(document).encode("utf-8", "surrogatepass"))
    return told.hexdigest()


def _dumped(body: Any) -> str:
    return json.dumps(body, sort_keys=True, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    text = str(value)
    # The text of an object may hold its address, which changes from run to run.
    return type(value).__name__ if " at 0x" in text else text


def _said(what: str, *, also: tuple[type[BaseException], ...] = ()) -> foreign_errors:
    return foreign_errors(what, _WAY_OUT, error=UsageError, also=also)
