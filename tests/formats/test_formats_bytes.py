"""Every stored format as bytes: kept experts keep theirs, and settings name the right ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import plan_keeping
from quantisers import ALL, OTHERS, quantised, weights

import moeprune
from moeprune.cli.inspect_text import inspect_text
from moeprune.core.plan import PrunePlan
from moeprune.errors import CheckpointError, UnsupportedModelError
from moeprune.stages.export import export
from moeprune.stages.identify import open_model
from moeprune.stages.stored import check_runnable
from moeprune.stages.verify import verify


def hand_plan(model: Path) -> PrunePlan:
    """Eight of twelve experts stay: others in each layer, the last one among them."""
    facts = open_model(model).facts
    keep = [
        tuple(sorted({(5 * e + 3 * row) % (count - 1) for e in range(7)} | {count - 1}))
        for row, count in enumerate(facts.num_experts)
    ]
    assert len({len(ids) for ids in keep}) == 1, keep
    return plan_keeping(model, keep)


def same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return False
    return torch.equal(
        mine.contiguous().flatten().view(torch.uint8),
        theirs.contiguous().flatten().view(torch.uint8),
    )


def names_in(settings: Any) -> list[str]:
    """All texts that name an expert, keys included, with patterns read as plain names."""
    found: list[str] = []
    if isinstance(settings, dict):
        for key, value in settings.items():
            found += [key, *names_in(value)]
    elif isinstance(settings, list):
        found = [name for item in settings for name in names_in(item)]
    elif isinstance(settings, str):
        found = [settings]
    plain = [name.removeprefix("-:").replace("\\", "") for name in found]
    return [name for name in plain if re.search(r"experts\.\d", name)]


@pytest.mark.parametrize("name", ALL)
def test_bytes_and_names(name: str, tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", ALL[name])
    plan = hand_plan(source)
    out = export(source, plan=plan, output=tmp_path / "out")
    report = verify(out, source=source)
    assert report.ok, report.to_text()
    kept = dict(zip(plan.layer_ids, plan.keep, strict=True))

    def moved(text: str) -> str | None:
        """A name with its expert's new number, by hand; None where the expert left."""
        parts = text.split(".")
        at = parts.index("experts") + 1
        ids = kept[int(parts[parts.index("layers") + 1])]
        if int(parts[at]) not in ids:
            return None
        return ".".join([*parts[:at], str(ids.index(int(parts[at]))), *parts[at + 1 :]])

    full, small = weights(source), weights(out)
    due = {}
    for key, tensor in full.items():
        if ".experts." in key:
            target = moved(key)
            if target is not None:
                due[target] = tensor
        elif key.endswith("mlp.gate.weight"):
            due[key] = tensor[list(kept[int(key.split(".")[2])])]
        else:
            due[key] = tensor
    assert due.keys() == small.keys()
    wrong = [key for key in due if not same(due[key], small[key])]
    assert not wrong, wrong[:5]

    seen = 0
    for file in ("config.json", "quantize_config.json", "hf_quant_config.json"):
        if not (source / file).is_file():
            continue
        before = names_in(json.loads((source / file).read_text()))
        after = names_in(json.loads((out / file).read_text()))
        assert after == [new for text in before if (new := moved(text)) is not None], file
        seen += len(after)
    assert bool(seen) == (ALL[name].plain_layer is not None)


@pytest.mark.parametrize("name", OTHERS)
def test_running_them_here_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    form, reason = OTHERS[name]
    source, _ = quantised(tmp_path / "source", form)
    (tmp_path / "text.txt").write_text("A text.\n")
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        moeprune.calibrate(source, domains={"text": str(tmp_path / "text.txt")})
    assert "\n" not in str(caught.value)
    told = moeprune.inspect(source)
    assert told.not_runnable and told.not_runnable in str(caught.value)
    assert told.not_runnable in inspect_text(told)
    out = export(source, plan=hand_plan(source), output=tmp_path / "out")
    with pytest.raises(UnsupportedModelError, match=reason):
        verify(out, source=source, forward=True)


@pytest.mark.parametrize("name", ALL)
def test_a_lost_companion_is_found(name: str, tmp_path: Path) -> None:
    """Without its scale a weight would be read as its codes."""
    from safetensors.torch import save_file

    source, _ = quantised(tmp_path / "source", ALL[name])
    tensors = weights(source)
    ends = ("scale", "scale_inv", "scales", "absmax")
    for key in [key for key in tensors if ".experts." in key and key.endswith(ends)]:
        if "nested" not in key and "global" not in key and "input" not in key:
            del tensors[key]
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="without which its numbers mean nothing"):
        export(source, plan=hand_plan(source), output=tmp_path / "out")
    opened = open_model(source)
    with pytest.raises(CheckpointError, match="without which its numbers mean nothing"):
        check_runnable(opened.index, opened.layout)
    assert not (tmp_path / "out").exists()


def test_one_lost_companion_is_found_by_name(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    source, _ = quantised(tmp_path / "source", ALL["fp8-blocks"])
    tensors = weights(source)
    del tensors["model.layers.2.mlp.experts.7.up_proj.weight_scale_inv"]
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"experts\.7 has no 'up_proj\.weight_scale_inv'"):
        open_model(source)


def test_states_of_uneven_length(tmp_path: Path) -> None:
    """NF4 with double quantisation: experts differ by digits; the plan never promises too much."""
    source, _ = quantised(tmp_path / "source", ALL["bitsandbytes-nf4"])
    sizes = {t.numel() for key, t in weights(source).items() if "quant_state" in key}
    assert len(sizes) > 1
    facts, plan = open_model(source).facts, hand_plan(source)
    freed = sum(len(ids) * size for ids, size in zip(plan.removed, facts.expert_bytes, strict=True))
    out = export(source, plan=plan, output=tmp_path / "out")
    stated = json.loads((out / "moeprune.json").read_text())["size"]
    exact = sum(t.numel() * t.element_size() for t in weights(out).values())
    assert stated["bytes_after"] == exact
    assert 0 <= stated["bytes_before"] - freed - exact < 100 * sum(map(len, plan.removed))


@pytest.mark.parametrize("name", ["fp8-blocks", "gptq", "modelopt-fp8"])
def test_verify_finds_wrong_names(name: str, tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", ALL[name])
    out = export(source, plan=hand_plan(source), output=tmp_path / "out")
    for file in ("config.json", "quantize_config.json", "hf_quant_config.json"):
        if not (out / file).is_file():
            continue
        good = (out / file).read_text()
        assert "experts" in good
        (out / file).write_text(re.sub(r"(experts\W{1,3})2\b", r"\g<1>9", good, count=1))
        assert (out / file).read_text() != good
        report = verify(out, source=source)
        assert not report.ok and any(file in problem for problem in report.problems)
        (out / file).write_text(good)
    assert verify(out, source=source).ok


def test_the_rest_of_the_settings_is_still_compared(tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", ALL["gptq"])
    out = export(source, plan=hand_plan(source), output=tmp_path / "out")
    config = (out / "config.json").read_text()
    (out / "config.json").write_text(config.replace('"group_size": 32', '"group_size": 64'))
    report = verify(out, source=source)
    assert not report.ok and "group_size" in report.problems[0]


def test_config_text_changes_nowhere_else(tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", ALL["fp8-blocks"])
    text = (source / "config.json").read_text().replace('"fmt": "e4m3"', '"fmt" :\t"\\u00654m3"')
    (source / "config.json").write_text(text)
    out = export(source, plan=hand_plan(source), output=tmp_path / "out")
    before, after = text.splitlines(), (out / "config.json").read_text().splitlines()
    other = [line for line in before if "experts" not in line]
    assert other == [line for line in after if "experts" not in line]
    assert '"fmt" :\t"\\u00654m3"' in "".join(after)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modules_to_not_convert": ["model.layers.0.mlp.experts.99"]}, "name an expert"),
        ({"notes": {"model.layers.0.mlp.experts.1": 8}}, "does not know what it means"),
        ({"modules_to_not_convert": "model.layers.0.mlp.experts.1"}, "does not know what it means"),
        ({"quant_method": "tomorrow", "skip": [r"experts\.3"]}, "does not know what it means"),
    ],
)
def test_names_that_cannot_be_told_are_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source, _ = quantised(tmp_path / "source", ALL["fp8-rows"])
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] |= settings
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        export(source, plan=hand_plan(source), output=tmp_path / "out")
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("mtp", ["prune", "keep", "drop"])
def test_names_of_next_token_layers(mtp: str, tmp_path: Path) -> None:
    """Their experts follow the last layer's, or stay as they are; the settings say the same."""
    from safetensors.torch import save_file

    source, _ = quantised(tmp_path / "source", ALL["fp8-blocks"])
    tensors = weights(source)
    tensors |= {
        name.replace("layers.3.", "layers.4."): tensor.clone()
        for name, tensor in tensors.items()
        if "layers.3." in name
    }
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    skip = config["quantization_config"]["modules_to_not_convert"]
    extra = [name.replace("layers.3.", "layers.4.") for name in skip if "layers.3." in name]
    skip += [*extra, r"re:.*layers\.[34]\..*experts\.(1|2)\."]
    (source / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    plan = hand_plan(source)
    out = export(source, plan=plan, output=tmp_path / "out", mtp=mtp)
    report = verify(out, source=source)
    assert report.ok, report.to_text()
    after = json.loads((out / "config.json").read_text())["quantization_config"]
    named = [n for n in names_in(after["modules_to_not_convert"]) if "layers.4." in n]
    stored = {name.removesuffix(".weight") for name in weights(out) if "layers.4." in name}
    if mtp != "drop":
        assert {n for n in named if n in stored} == {n for n in stored if ".experts." in n}
    # The experts that the pattern means: 1 and 2 of the source, in both layers.
    routed = [n for n in weights(out) if re.search(r"layers\.[34]\..*experts\.", n)]
    patterns = [n for n in after["modules_to_not_convert"] if n.startswith("re:")]
    hit = {n.removesuffix(".weight") for n in routed for p in patterns if re.match(p[3:], n)}
    full = weights(source)
    due = {
        new.removesuffix(".weight")
        for new in routed
        for old in (1, 2)
        if same(weights(out)[new], full[re.sub(r"experts\.\d+", f"experts.{old}", new)])
    }
    listed = set(after["modules_to_not_convert"])
    assert due <= hit | listed and not (hit - due)
