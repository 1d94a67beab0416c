"""Experts that a person names to stay: ``{"3": [0, 17], "5": [2]}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeprune.artefact import read_json
from moeprune.core.constraints import id_ranges
from moeprune.core.facts import ModelFacts
from moeprune.core.rows import row_name
from moeprune.errors import UsageError
from moeprune.kinds import kind_of_json

_LIKE = 'like {"3": [0, 17]}: layer to expert ids'
_KEY = re.compile(r"(?:layer )?(-?[0-9]{1,9})(?: \((.+)\))?")


def must_keep_rows(
    asked: str | Path | Mapping[Any, Any], facts: ModelFacts
) -> tuple[tuple[int, ...], ...]:
    """The ids that must stay in each row of a model.

    Args:
        asked: layer -> ids, or a JSON file of that. A layer is named as messages do: ``3``, or
            ``3 (attention)`` for one of several expert sets; -1 is the last MoE layer.
        facts: the model.

    Returns:
        (L,) ids, ascending.

    Raises:
        UsageError: not of that form, no such layer or expert, or nothing named at all.
    """
    where = "must_keep"
    if not isinstance(asked, Mapping):
        where = f"--must-keep {asked}"
        asked = read_json(Path(asked), error=UsageError, what=f"what --must-keep reads, {_LIKE}")
    kind = kind_of_json(asked)
    if kind is not None or not isinstance(asked, Mapping):
        raise UsageError(f"{where} is {kind or 'no JSON object'}; it should be {_LIKE}.")
    rows: list[set[int]] = [set() for _ in facts.layer_ids]
    for key, ids in asked.items():
        row = _row_of(str(key), facts, where)
        count, name = facts.num_experts[row], row_name(*facts.rows[row])
        if not isinstance(ids, list | tuple):
            raise UsageError(f"{where}: {name} has {ids!r}; give a list of expert ids.")
        for expert in ids:
            if type(expert) is not int or not 0 <= expert < count:
                raise UsageError(
                    f"{where}: {name} has no expert {expert!r}; its experts are 0 to {count - 1}."
                )
        rows[row].update(ids)
    if not any(rows):
        raise UsageError(f"{where} names no expert; leave it out, or name some.")
    return tuple(tuple(sorted(row)) for row in rows)


def _row_of(key: str, facts: ModelFacts, where: str) -> int:
    found = _KEY.fullmatch(key.strip())
    layers = tuple(dict.fromkeys(facts.layer_ids))
    if found is not None:
        layer = int(found[1])
        if -len(layers) <= layer < 0:
            layer = layers[layer]
        row = (layer, found[2] or "")
        if row in facts.rows:
            return facts.rows.index(row)
    sets = sorted({name for name in facts.sets if name})
    also = f', and their sets, as in "{layers[0]} ({sets[0]})"' if sets else ""
    raise UsageError(
        f"{where}: {facts.name} has no MoE layer {key!r}; there are {id_ranges(layers)}{also}."
    )
