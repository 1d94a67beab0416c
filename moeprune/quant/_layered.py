"""Settings of compressed-tensors where layers have schemes of their own: a group for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from moeprune.quant._written import Written

# Loaders that take the first group of any experts for that of all (transformers 5.24) would read
# layers of another scheme as noise, without a word. This group is of no module, comes first, and
# asks for a scale that is nowhere: they fail. Loaders that look for a module's own never meet it.
_GUARD: dict[str, Any] = {
    "targets": ["re:.*experts[.]of[.]no[.]layer$"],
    "format": "nvfp4-pack-quantized",
    "input_activations": None,
    "output_activations": None,
    "weights": {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "strategy": "tensor_group",
        "group_size": 16,
        "dynamic": False,
        "observer": "minmax",
        "observer_kwargs": {},
    },
}
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def layered_settings(written: Mapping[str, Written]) -> dict[str, Any]:
    """``quantization_config`` of config.json.

    Loaders look for the group of a module by its name, in order, and for one that is ignored
    before. Names of modules that differ in layer and expert alone have one pattern together, which
    lists the layers. With one scheme, all that is not ignored has it, as where layers do not
    differ.

    Args:
        written: scheme -> what is written in it; ``plain`` is the same in all.
    """
    from moeprune.quant.schemes import _integers
    from moeprune.quant.schemes._names import ignored

    quantised = [name for one in written.values() for name in one.quantised]
    plain = next(iter(written.values())).plain
    alike = {_without_numbers(name) for name in quantised}
    own = [name for name in plain if _without_numbers(name) in alike]  # experts of plain layers
    rest = Written(
        quantised=tuple(quantised),
        plain=tuple(name for name in plain if _without_numbers(name) not in alike),
        options=next(iter(written.values())).options,
    )
    groups = [
        _integers.group(
            int(scheme.removeprefix("int")),
            one.options.group_size,
            ["Linear"] if len(written) == 1 else layer_patterns(one.quantised),
        )
        for scheme, one in sorted(written.items(), key=lambda item: -int(item[0][3:]))
    ]
    groups = groups if len(groups) == 1 else [_GUARD, *groups]
    return _integers.packed_settings(groups, sorted({*ignored(rest), *layer_patterns(own)}))


def layer_patterns(names: Iterable[str]) -> list[str]:
    """Patterns of module names that list the layers: ``re:.*layers[.](?:0|3)[.]mlp…``.

    Args:
        names: each with a number, the first of which is the layer's.
    """
    layers: dict[tuple[str, str], set[int]] = {}
    for name in names:
        first = _NUMBER.search(name)
        assert first is not None
        start = name.rfind(".", 0, first.start() - 1) + 1  # loaders put prefixes in front
        key = name[start : first.start()], name[first.end() :]
        before, after = (_pattern(part) for part in key)
        layers.setdefault((before, after), set()).add(int(first[0]))
    return [
        f"re:.*{before}(?:{'|'.join(map(str, sorted(found)))}){after}$"
        for (before, after), found in sorted(layers.items())
    ]


def _pattern(part: str) -> str:
    return r"\d+".join(re.escape(text).replace(r"\.", "[.]") for text in _NUMBER.split(part))


def _without_numbers(name: str) -> str:
    return _NUMBER.sub("0", name)
