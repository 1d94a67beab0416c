"""What verify expects of an export's config.json, its settings and its own files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from moeprune.checkpoint.audit import ABSENT, config_differences, same_value
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.errors import MoePruneError
from moeprune.quant import settings_paths
from moeprune.stages.exported import Exported
from moeprune.stages.forms import PER_LAYER, count_of, form_config, form_problems
from moeprune.stages.next_token import NextToken
from moeprune.stages.stored import named_places, settings_problems
from moeprune.stages.unlisted import lay_out


def config_problems(
    source: CheckpointIndex,
    out: CheckpointIndex,
    next_token: NextToken,
    made: Exported,
    code: Collection[str] = (),
) -> list[str]:
    """What is wrong, one line each.

    Args:
        source: the checkpoint that was pruned.
        out: the export.
        next_token: what became of the source's next-token layers.
        made: how it was exported.
        code: parts that its own code must hold beside those of its form and policy.
    """
    layout, changes = next_token.layout, next_token.config_changes
    keep = made.keep(layout)
    problems = [
        f"config.json {'.'.join(path)} is not {value!r}, the next-token layers are gone"
        for path, value in changes.items()
        if not same_value(_at(out.config, path), value)
    ]
    run = made.gain.config_changes(layout) if made.gain is not None else {}
    problems += [
        f"config.json {'.'.join(path)} is not {value}, the number of experts that run"
        for path, value in run.items()
        if not same_value(_at(out.config, path), value)
    ]
    owned = {*layout.count_keys, *changes, *run}
    added = {path[0] for path in form_config(made.form, source, layout, keep, made.policy, code)}
    added |= {"quantization_config"} if made.quantisation is not None else set()
    names = named_places(source)
    gone = settings_paths(source.config) if made.requantised else []
    for path, mine, theirs in config_differences(source.config, out.config):
        if any(path[: len(place)] == place for place in gone) and theirs in (None, ABSENT):
            continue
        if path not in owned and path[0] not in added and not names(path):
            problems.append(f"config.json {'.'.join(path)}: {theirs!r}, the source has {mine!r}")
    problems += form_problems(made.form, source, out, layout, keep, made.policy, code)
    try:
        if not made.requantised:
            problems += settings_problems(source, out, layout, keep)
        problems += _count_problems(out, next_token, made)
    except MoePruneError as error:
        problems.append(f"the export cannot be read back: {error}")
    return problems


def _count_problems(out: CheckpointIndex, next_token: NextToken, made: Exported) -> Iterator[str]:
    """Whether config.json and the tensors of the export, read on their own, tell the plan."""
    layers = next_token.layout.layer_ids
    due = count_of(made.form, made.keep(next_token.layout))
    if made.form == PER_LAYER:
        # The tensors are compared with the source's; what a loader allocates is the widest layer.
        for path in next_token.layout.count_keys:
            if not same_value(_at(out.config, path), max(due)):
                yield f"config.json {'.'.join(path)} is not {max(due)}, the widest layer's count"
        return
    layout, _ = lay_out(out.config, next_token.counted(out.tensors))
    for layer, have, count in zip(layers, layout.num_experts, due, strict=True):
        if have != count:
            yield f"layer {layer} has {have} experts, the plan keeps {count}"


def _at(config: Any, path: Sequence[str]) -> Any:
    for key in path:
        config = config.get(key) if isinstance(config, dict) else None
    return config
