"""The family files: what config.json and tensor names cannot say about a model.

``families/<model_type>.json`` holds

========================  ======================================================================
``model_type``            the file's own name, as config.json spells it
``gating``                ``softmax``, ``sigmoid`` or ``sqrtsoftplus``: from router logits to scores
``gating_key``            the config key that states another gating, where the family has several
``renormalises``          whether the router divides the weights of the chosen experts by their
                          sum: ``always``, ``never``, the config key that says so (or the list of
                          its spellings, the first one stated counts), or one of these for each
                          gating
``least_top_k``           the fewest experts a token that transformers' experts run; else 1
``fixed_routing``         why no other number of experts can run, of a router that has none of it
``scale``                 the config key of a factor that the block applies to what all its routed
                          experts add together, after the router's own weights
``scale_values``          what the words mean that this key may hold instead of a number
``scale_unless``          ... but there is no such factor when config.json has one of these values
``routed_output``         name in the block of the linear map that takes the sum of the experts'
                          outputs, where each expert normalises what it gives
``experts``, ``router``   names of the two modules in memory, after ``layers.<i>.``
``observer``              how calibration sees the experts: ``function`` (transformers' registry of
                          experts functions), or the name of another way
``groups``                true: the router is group-limited when config.json says n_group > 1
``groups_when``           ... and only when config.json has these values too
``extra_rows``            router rows after the last expert's: a number, or the config key of it
``router_axis``           the axis of a router weight that counts the experts; 0 where not stated
``stored_sets``           expert sets that one module stores, numbered on; each loses the same ids
``sets``                  name of a further expert set of each layer -> its two modules in memory
``stacks``                names of the parts of the model that each run all layers in memory, with
                          the same experts, where there are several (an encoder and a decoder)
``interleaved``           true: in a stack of all experts, outputs of gate and up take turns
``merged``                how the module in memory holds all experts, of a family of which
                          transformers reads no single ones: a name in ``_merged.py``
``idle``                  true: they are choices that a token may take in place of a routed expert
``loop``                  the config keys of the first layer that a forward pass repeats, of the
                          layer after the last one, and of the number of passes
``defaults``              values of the keys that config.json may leave out
========================  ======================================================================

or just ``model_type`` and ``same_as``, for a wrapper whose language model is another family's.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from moeprune.errors import UnknownFamilyError, UnsupportedModelError

GATINGS = ("softmax", "sigmoid", "sqrtsoftplus")

Renormalises = str | tuple[str, ...] | Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family file, parsed; the module's docstring explains every field."""

    model_type: str
    gating: str
    experts: str
    router: str
    observer: str
    gating_key: str | None = None
    renormalises: Renormalises = ()
    fixed_routing: str = ""
    least_top_k: int = 1
    routed_output: str = ""
    scale: str | None = None
    scale_values: Mapping[str, float] = field(default_factory=dict)
    scale_unless: Mapping[str, Any] = field(default_factory=dict)
    groups: bool = False
    groups_when: Mapping[str, Any] = field(default_factory=dict)
    extra_rows: int | str = 0
    router_axis: int = 0
    stored_sets: int = 1
    sets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    stacks: tuple[str, ...] = ()
    interleaved: bool = False
    merged: str = ""
    idle: bool = False
    loop: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.gating in GATINGS, self.gating


def family_names() -> tuple[str, ...]:
    """Every ``model_type`` that has a file, sorted."""
    files = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in files if name.endswith(".json")))


def load_family(*model_types: object) -> Family:
    """The family of the first of ``model_types`` that has a file.

    Args:
        model_types: spellings from the most to the least specific level of config.json.

    Raises:
        UnknownFamilyError: none has one; the message offers the nearest name.
        UnsupportedModelError: no name is given.
    """
    known = family_names()
    stated = [name for name in model_types if isinstance(name, str) and name]
    for name in stated:
        if name in known:
            body = _read(name)
            return _parsed(_read(body["same_as"]) if "same_as" in body else body)
    if not stated:
        raise UnsupportedModelError(
            "config.json states no model_type. Add the one of the model's family."
        )
    near = difflib.get_close_matches(stated[0], known, n=1)
    hint = f"the nearest known name is {near[0]!r}; " if near else ""
    raise UnknownFamilyError(
        f"no family is named {stated[0]!r} (model_type in config.json): {hint}"
        "docs/extend.md tells how to add a family file."
    )


def _parsed(body: dict[str, Any]) -> Family:
    sets = {name: tuple(modules) for name, modules in body.get("sets", {}).items()}
    lists = {name: tuple(body.get(name, ())) for name in ("loop", "stacks")}
    spellings = body.get("renormalises", ())
    if isinstance(spellings, list):
        spellings = tuple(spellings)
    return Family(**body | {**lists, "sets": sets, "renormalises": spellings})


def _folder() -> resources.abc.Traversable:
    return resources.files(__package__) / "families"


def _read(name: str) -> dict[str, Any]:
    body = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    assert body["model_type"] == name, f"families/{name}.json says {body['model_type']!r}"
    return dict(body)
