"""How tensors that hold all experts of a layer fall apart into linear maps of one expert.

What lies in such a tensor its name says; which way round it is stored, the shapes of what goes into
the experts and of what comes out say together. Only ``w13`` (Inkling) and GPT-OSS let the outputs
of gate and up take turns.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from moeprune.architectures._families import Family
from moeprune.core.layout import ExpertTensor, TensorInfo
from moeprune.core.split import Split

_STACK = re.compile(
    r"(?P<owner>.+?)(?:\.experts(?:\.mlp)?)?\."
    r"(?P<stem>gate_up_proj|gate_proj|up_proj|down_proj|w13|w1|v1|w2|fc1|fc2|(?:in|out)put_linear)"
    r"(?P<rest>[._].+)?"
)
_GATED = ("gate_proj", "up_proj")
_MAPS = {
    "gate_up_proj": _GATED,
    "w13": _GATED,
    "fc1": _GATED,
    "input_linear": _GATED,
    "gate_proj": ("gate_proj",),
    "w1": ("gate_proj",),
    "up_proj": ("up_proj",),
    "v1": ("up_proj",),
}
_OUTPUTS = ("down_proj", "w2", "fc2", "output_linear")
_MAPS |= dict.fromkeys(_OUTPUTS, ("down_proj",))
_WEIGHTS = ("", ".weight", "_weight", "_blocks")  # what a weight's name adds to its stem
_BLOCK = 32  # numbers of a block of MXFP4, which is the last but one axis

Shape = tuple[int, int]


def splits_of(
    placed: Mapping[str, ExpertTensor], tensors: Mapping[str, TensorInfo], family: Family
) -> dict[str, Split]:
    """Stored name -> how it falls apart, of every stack of experts' weights.

    Biases have none and stay as they are: loaders of such a family read them so. Nor have stacks
    whose shapes do not go together in any orientation.

    Args:
        placed: how the tensors depend on the experts.
        tensors: all tensors of the checkpoint.
        family: of the model.
    """
    modules: dict[str, dict[str, str]] = defaultdict(dict)
    for name, rule in placed.items():
        found = _STACK.fullmatch(name)
        if rule.role != "expert" or rule.axis != 0 or found is None:
            continue
        if (found["rest"] or "") in _WEIGHTS:
            modules[f"{found['owner']}.experts"][name] = found["stem"]
    splits: dict[str, Split] = {}
    for module, stems in modules.items():
        shapes = {stem: _matrix(tensors[name], placed[name]) for name, stem in stems.items()}
        ways = _ways(shapes, blocks=any(placed[name].block > 1 for name in stems))
        for name, stem in stems.items():
            if stem in ways:
                maps, transposed = ways[stem]
                splits[name] = Split(
                    module=module,
                    maps=maps,
                    transposed=transposed,
                    interleaved=len(maps) > 1 and (stem == "w13" or family.interleaved),
                )
    return {name: splits[name] for name in placed if name in splits}


def _matrix(info: TensorInfo, rule: ExpertTensor) -> Shape | None:
    """What one expert has of a stack of weights; None: no matrix."""
    slab = (rule.block, *info.shape[1:]) if rule.block > 1 else info.shape[1:]
    if len(slab) == 3:
        slab = (slab[0], slab[1] * _BLOCK)
    return (slab[0], slab[1]) if len(slab) == 2 else None


def _ways(
    shapes: Mapping[str, Shape | None], *, blocks: bool
) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Stem -> its maps, and whether it is stored (in, out); empty: they do not go together.

    Args:
        shapes: stem -> what one expert has of it, of one module.
        blocks: whether the experts are blocks of rows of one matrix (DBRX), where all maps have
            the rows of the inner width.
    """
    last = [stem for stem in shapes if stem in _OUTPUTS]
    first = [stem for stem in shapes if stem not in _OUTPUTS]
    if len(last) != 1 or not first or None in shapes.values():
        return {}
    found = {}
    rows, columns = shapes[last[0]] or (0, 0)
    transposed = set()
    for stem in first:
        maps = _MAPS[stem]
        shape = shapes[stem]
        if stem == "input_linear" and shape == (columns, rows):
            maps = (stem,)  # JetMoE's attention has nothing that gates
        if blocks:
            plain, turned = False, shape == (rows, columns)
        else:
            plain = shape == (len(maps) * columns, rows)
            turned = not plain and shape == (columns, len(maps) * rows)
        if not plain and not turned:
            return {}
        found[stem] = maps, turned and not blocks
        transposed.add(turned)
    if len(transposed) > 1:
        return {}
    gated = found[first[0]][0] != ("input_linear",)
    found[last[0]] = _MAPS[last[0]] if gated else (last[0],), transposed.pop()
    return found
