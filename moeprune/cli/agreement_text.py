"""How far experts are selected as in another model, as tables of cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moeprune.cli.compare_cells import plural
from moeprune.cli.text import table

_NOTHING = "-"


def agreement_text(found: Mapping[str, Any]) -> str:
    """What ``moeprune eval`` prints of a run: a line a rank, and where it is least."""
    domains = found["domains"]
    several = len(domains) > 1
    rows = [["experts", "same", "95% interval", "least in layer", *["least in text"] * several]]
    for name, share, limits in _lines(found):
        layers = [(_layer(layer), _of(layer, name)) for layer in found["layers"]]
        texts = [(text, _of(own, name)) for text, own in domains.items()]
        places = [_least(layers), *[_least(texts)] * several]
        rows.append([name, percent(share), _interval(limits), *places])
    mine, theirs = found["k"]
    fewer = f"; k is {mine} here and {theirs} there" if mine != theirs else ""
    return f"{agreement_title(found)}{fewer}\n{table(rows)}"


def agreement_title(found: Mapping[str, Any]) -> str:
    """Of what, with what, on how much."""
    return (
        f"experts selected as in {found['with']['name']}: {plural(found['tokens'], 'token')} of "
        f"{plural(found['documents'], 'text')}, {plural(len(found['layers']), 'layer')}"
    )


def agreement_cells(found: Mapping[str, Any]) -> dict[str, str]:
    """Line -> cell, for a table of several runs: shares, and how many experts there were."""
    mine, theirs = found["k"]
    cells = {name: percent(share) for name, share, _ in _lines(found)}
    return cells | {"k": str(mine) if mine == theirs else f"{mine} of {theirs}"}


def percent(share: float) -> str:
    """``98.61%``; only what is whole is ``100.00%``."""
    text = f"{share:.2%}"
    return "99.99%" if text == "100.00%" and share < 1 else text


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, float, Any]]:
    limits = found["intervals"]
    for rank, share in enumerate(found["ranks"]):
        yield f"rank {rank + 1}", share, limits["ranks"][rank]
    yield "all, any order", found["same_set"], limits["same_set"]
    yield "mean overlap", found["overlap"], limits["overlap"]


def _of(part: Mapping[str, Any], name: str) -> float | None:
    if name.startswith("rank "):
        rank = int(name.removeprefix("rank ")) - 1
        return float(part["ranks"][rank]) if rank < len(part["ranks"]) else None
    return float(part["overlap" if name == "mean overlap" else "same_set"])


def _least(parts: list[tuple[str, float | None]]) -> str:
    known = [(share, place) for place, share in parts if share is not None]
    share, place = min(known, key=lambda item: item[0])
    return f"{place}: {percent(share)}" if share < 1 else _NOTHING


def _layer(layer: Mapping[str, Any]) -> str:
    return f"{layer['layer']} {layer['set']}" if layer.get("set") else str(layer["layer"])


def _interval(limits: Any) -> str:
    return _NOTHING if limits is None else f"[{percent(limits[0])}, {percent(limits[1])}]"
