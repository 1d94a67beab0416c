"""plan.json: its text and its keys, read from a file that a person may have edited."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moeprune.artefact import Json, check_schema
from moeprune.core.plan_details import check_details, check_predicted
from moeprune.core.quantisation import LayerSchemes
from moeprune.core.rows import rows_of
from moeprune.errors import PlanError

if TYPE_CHECKING:
    from moeprune.core.plan import PrunePlan

SCHEMA = "moeprune.plan/1"

_TEXTS = ("method", "criterion", "allocation", "worst_domain", "worst_predicted", "kept_sha256")
_MAX_DEPTH = 32
_MAX_NUMBER = 2**63 - 1


def to_json(plan: PrunePlan) -> dict[str, Any]:
    """The JSON object of a plan; what was not computed has no key."""
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "model": {
            "name": plan.model_name,
            "fingerprint": plan.model_fingerprint,
            "model_type": plan.model_type,
            "top_k": plan.top_k,
            "num_groups": plan.num_groups,
            "top_groups": plan.top_groups,
        },
        "stats": plan.stats_sha256,
        "method": plan.method,
        "criterion": plan.criterion,
        "allocation": plan.allocation,
        "ratio": plan.ratio,
        "options": dict(plan.options),
        "layers": [
            {"layer": layer}
            | ({"set": expert_set} if expert_set else {})
            | {"num_experts": count, "keep": list(ids)}
            | ({"scheme": scheme} if scheme else {})
            for (layer, expert_set), count, ids, scheme in zip(
                rows_of(plan.layer_ids, plan.sets),
                plan.num_experts,
                plan.keep,
                plan.quantize.schemes if plan.quantize else ("",) * plan.num_layers,
                strict=True,
            )
        ],
        "quantize": plan.quantize.to_json() if plan.quantize else None,
        "domain_loss": dict(plan.domain_loss),
        "worst_domain": plan.worst_domain,
        "worst_domain_loss": plan.worst_domain_loss,
        "predicted": dict(plan.predicted),
        "worst_predicted": plan.worst_predicted,
        "lower_bound": plan.lower_bound,
        "routing": dict(plan.routing),
        "size": dict(plan.size),
        "stability": dict(plan.stability),
        "kept_sha256": plan.kept_sha256,
        "details": dict(plan.details),
        "reasons": list(plan.reasons),
        "warnings": list(plan.warnings),
    }
    optional = {"lower_bound": plan.lower_bound is None}
    optional |= {"kept_sha256": plan.kept_sha256 is None, "quantize": plan.quantize is None}
    optional |= {"details": not plan.details, "reasons": not plan.reasons}
    optional |= {"predicted": not plan.predicted, "worst_predicted": plan.worst_predicted is None}
    return {key: value for key, value in body.items() if not optional.get(key)}


def from_json(body: Any, *, path: object) -> dict[str, Any]:
    """The arguments of ``PrunePlan`` from the JSON object.

    Only ``schema``, ``model`` and ``layers`` are needed, so a plan can be written by hand.
    ``ratio`` is not read: it follows from the layers.

    Raises:
        PlanError: a key is missing or its value has another type; the message names it.
    """
    if not isinstance(body, dict):
        raise PlanError(f"{path} is not a plan: it holds no JSON object.")
    check_schema(body, schema=SCHEMA, path=path, error=PlanError)
    _check_values(body, path)
    model = _get(body, "model", dict, path)
    layers = _get(body, "layers", list, path)
    values: dict[str, Any] = {
        "model_name": _get(model, "name", str, path, within="model."),
        "model_fingerprint": _get(model, "fingerprint", str, path, within="model."),
        "model_type": _get(model, "model_type", str, path, within="model."),
    }
    for key in ("top_k", "num_groups", "top_groups"):
        values[key] = _get(model, key, int, path, within="model.")
    rows = [_row(entry, index, path) for index, entry in enumerate(layers)]
    values["layer_ids"] = tuple(layer for layer, _, _, _ in rows)
    values["num_experts"] = tuple(count for _, _, count, _ in rows)
    values["keep"] = tuple(ids for _, _, _, ids in rows)
    sets = tuple(expert_set for _, expert_set, _, _ in rows)
    values["sets"] = sets if any(sets) else ()
    schemes = tuple(entry.get("scheme") for entry in layers)
    values["quantize"] = LayerSchemes.from_json(body.get("quantize"), schemes, path=path)
    for key in _TEXTS:
        if body.get(key) is not None:
            values[key] = _get(body, key, str, path)
    for key in ("options", "domain_loss", "predicted", "routing", "size", "stability", "details"):
        if key in body:
            values[key] = _get(body, key, dict, path)
    for key in ("worst_domain_loss", "lower_bound"):
        if body.get(key) is not None:
            values[key] = _number(body[key], key, path)
    for name, loss in values.get("domain_loss", {}).items():
        _number(loss, f"domain_loss.{name}", path)
    check_predicted(values.get("predicted", {}), values.get("worst_predicted"), path)
    check_details(values.get("details", {}), values.get("domain_loss", {}), path)
    if body.get("stats") is not None:
        values["stats_sha256"] = _get(body, "stats", str, path)
    for key in ("reasons", "warnings"):
        lines = _get(body, key, list, path) if key in body else []
        values[key] = tuple(str(line) for line in lines)
    return values


def _check_values(body: Json, path: object) -> None:
    """Every value must be one that the card, moeprune.json and other readers can take."""
    level = [body]
    for _ in range(_MAX_DEPTH):
        for value in level:
            if type(value) is float and not math.isfinite(value):
                raise PlanError(f"{path} holds NaN or Infinity; use a number, or null.")
            if type(value) is int and abs(value) > _MAX_NUMBER:
                raise PlanError(f"{path} holds a number of {len(str(value))} digits; correct it.")
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise PlanError(f"{path} is nested more than {_MAX_DEPTH} levels deep; a plan needs four.")


def _row(entry: Any, index: int, path: object) -> tuple[int, str, int, tuple[int, ...]]:
    if not isinstance(entry, dict):
        raise PlanError(
            f"{path}: entry {index} of 'layers' is {entry!r}; "
            'it should be {"layer": …, "num_experts": …, "keep": […]}.'
        )
    layer = _get(entry, "layer", int, path, within=f"layers[{index}].")
    within = f"layer {layer}: "
    expert_set = _get(entry, "set", str, path, within=within) if "set" in entry else ""
    count = _get(entry, "num_experts", int, path, within=within)
    keep = _get(entry, "keep", list, path, within=within)
    for expert in keep:
        if type(expert) is not int:
            raise PlanError(
                f"{path}: layer {layer} keeps {expert!r}, which is not the number of an expert."
            )
    return layer, expert_set, count, tuple(keep)


def _get(body: Mapping[str, Any], key: str, kind: type, path: object, *, within: str = "") -> Any:
    if key not in body:
        raise PlanError(f"{path}: {within}{key} is missing; a plan needs it.")
    value = body[key]
    if type(value) is not kind:
        raise PlanError(f"{path}: {within}{key} is {value!r}; it should be {_KINDS[kind]}.")
    return value


def _number(value: Any, name: str, path: object) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise PlanError(f"{path}: {name} is {value!r}; it should be a number from 0 to 1.")
    return float(value)


_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}
