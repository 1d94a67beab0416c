"""What the stages share about quantised checkpoints: the format, and the names in its settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from moeprune.artefact import read_json
from moeprune.checkpoint.index import CONFIG_FILE, CheckpointIndex
from moeprune.checkpoint.names import edit_json_names
from moeprune.core.layout import MoeLayout
from moeprune.errors import CheckpointError
from moeprune.quant import (
    SETTINGS_FILES,
    ExpertNames,
    Renaming,
    StoredFormat,
    check_companions,
    check_loadable,
    check_renumberable,
    expert_of,
    in_place,
    not_loadable,
    places_in_config,
    places_in_file,
    settings_differences,
    stored_format,
)


def experts_of(layout: MoeLayout) -> Collection[str]:
    """Names of the stored tensors that hold routed experts, in the order of the layout."""
    return {name: None for name, rule in layout.tensors.items() if rule.role == "expert"}.keys()


def check_stored(index: CheckpointIndex, layout: MoeLayout) -> StoredFormat | None:
    """The stored format, after a check that no quantised expert lacks its companions.

    Raises:
        CheckpointError: one does.
    """
    stored = stored_format(index.config)
    check_companions(stored, index.tensors, experts_of(layout))
    return stored


def not_runnable(index: CheckpointIndex, layout: MoeLayout) -> str | None:
    """Why the model cannot be run on the numbers that it means, or None.

    Raises:
        CheckpointError: a quantised expert lacks a companion.
    """
    return not_loadable(check_stored(index, layout), index.tensors, experts_of(layout))


def check_runnable(index: CheckpointIndex, layout: MoeLayout) -> None:
    """Check that transformers runs the experts on the numbers that the checkpoint means.

    Raises:
        CheckpointError: a quantised expert lacks a companion.
        UnsupportedModelError: transformers does not.
    """
    check_loadable(check_stored(index, layout), index.tensors, experts_of(layout))


def settings_texts(
    index: CheckpointIndex,
    layout: MoeLayout,
    keep: Sequence[Sequence[int]],
    *,
    config_text: str,
) -> dict[str, str]:
    """The texts of config.json and further settings files once the experts' names have changed.

    Args:
        index: the source.
        layout: of the source.
        keep: L sequences of the ids that stay.
        config_text: config.json with its other changes made.

    Returns:
        File name -> text, of config.json always and of a settings file where it changes.

    Raises:
        CheckpointError: a settings file is no JSON, or a companion is missing.
        UnsupportedModelError: the settings name an expert in a way that cannot be renumbered.
    """
    stored = check_stored(index, layout)
    plugin = stored.plugin if stored else None
    change = renaming(layout, keep, index.entries)
    places = places_in_config(plugin)
    check_renumberable(index.config, places=places)
    texts = {CONFIG_FILE: edit_json_names(config_text, places, change)}
    for name, settings in _settings_files(index):
        check_renumberable(settings, places=places_in_file(plugin), where=name, whole=True)
        text = (index.path / name).read_bytes().decode("utf-8")  # line ends as they are
        edited = edit_json_names(text, places_in_file(plugin), change, where=name)
        if edited != text:
            texts[name] = edited
    return texts


def settings_problems(
    source: CheckpointIndex,
    export: CheckpointIndex,
    layout: MoeLayout,
    keep: Sequence[Sequence[int]],
) -> Iterator[str]:
    """What is wrong with the names of experts in an export's settings, one line each."""
    stored = stored_format(source.config)
    plugin = stored.plugin if stored else None
    change = renaming(layout, keep, source.entries)
    yield from settings_differences(
        source.config,
        export.config,
        places=places_in_config(plugin),
        change=change,
        where=CONFIG_FILE,
    )
    theirs = dict(_settings_files(export))
    for name, settings in _settings_files(source):
        if name not in theirs:
            yield f"{name} of the source is missing"
            continue
        yield from settings_differences(
            settings, theirs[name], places=places_in_file(plugin), change=change, where=name
        )


def named_places(index: CheckpointIndex) -> Callable[[tuple[str, ...]], bool]:
    """Whether a key path of config.json holds names of modules, or leads into such an object."""
    stored = stored_format(index.config)
    places = places_in_config(stored.plugin if stored else None)
    return lambda path: any(in_place(path[:length], places) for length in range(1, len(path) + 1))


def renaming(layout: MoeLayout, keep: Sequence[Sequence[int]], names: Iterable[str]) -> Renaming:
    """What becomes of the names of experts under a plan.

    Args:
        layout: of the source.
        keep: L sequences of the ids that stay.
        names: all tensors of the source; experts outside the layout (of a vision model, of
            next-token-prediction layers that are kept) keep their numbers.
    """
    stored = ExpertNames.of(names)
    whole = {path: e for path, e in stored.parts.items() if max(e) == len(e) - 1}
    numbered = {n: rule for n, rule in layout.tensors.items() if rule.expert is not None}
    kept = {path: tuple(range(len(experts))) for path, experts in whole.items()}
    numbers: dict[str, set[int]] = {}
    for name, rule in numbered.items():
        found = expert_of(name)
        if found is not None and rule.expert is not None:
            experts = layout.num_experts[rule.row]
            stays = rule.expert >= experts or rule.expert in keep[rule.row]
            numbers.setdefault(found[0], set()).update([found[1]] if stays else [])
    return Renaming(
        ExpertNames(whole), kept | {path: tuple(sorted(found)) for path, found in numbers.items()}
    )


def _settings_files(index: CheckpointIndex) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in SETTINGS_FILES:
        if (index.path / name).is_file():
            body = read_json(index.path / name, error=CheckpointError, what="JSON")
            if isinstance(body, dict):
                yield name, body
