"""lm-eval's tasks by name: found, allowed, their questions read. No model is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprune.artefact import canonical_json, sha256_bytes
from moeprune.core.foreign import foreign_errors
from moeprune.errors import UsageError
from moeprune.evaluate.harness.facts import content_of, facts_of
from moeprune.evaluate.harness.find import (
    broken_yaml,
    check_allowed,
    check_installed,
    folder_of_tasks,
    manager_of,
)
from moeprune.evaluate.harness.quiet import contained, seeded
from moeprune.evaluate.harness.samples import PREFIX
from moeprune.evaluate.harness.settings import HarnessSettings

_WAY_OUT = (
    "See that its dataset can be reached, on the Hugging Face Hub or in the files that its YAML "
    "names, and that the YAML is right."
)


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
            seeded(settings.seed)  # anew, so that it does not matter what else is asked
            for part in _built(manager, name, settings):
                if part.name in found:
                    first = found[part.name].whole or part.name
                    raise UsageError(
                        f"task {part.name!r} of lm-eval is asked for twice, by {first!r} and by "
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
            facts = facts_of(built, settings)
            content = content_of(built, settings)
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


def _said(what: str, *, also: tuple[type[BaseException], ...] = ()) -> foreign_errors:
    return foreign_errors(what, _WAY_OUT, error=UsageError, also=also)
