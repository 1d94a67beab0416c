"""Whatever a checkpoint folder holds: one line, or a whole export that verify accepts."""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import plan_keeping

from moeprune.architectures import layout_of
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.core.plan import PrunePlan
from moeprune.errors import MoePruneError
from moeprune.stages.export import export
from moeprune.stages.identify import open_model
from moeprune.stages.verify import verify

INDEX = "model.safetensors.index.json"
EXPERTS, HIDDEN, WIDTH = 4, 4, 2


def layer(prefix: str) -> dict[str, list[int]]:
    shapes = {f"{prefix}.mlp.gate.weight": [EXPERTS, HIDDEN]}
    shapes[f"{prefix}.mlp.gate.e_score_correction_bias"] = [EXPERTS]
    for expert in range(EXPERTS):
        for name in ("gate", "up", "down"):
            shape = [HIDDEN, WIDTH] if name == "down" else [WIDTH, HIDDEN]
            shapes[f"{prefix}.mlp.experts.{expert}.{name}_proj.weight"] = shape
    return shapes


def headers() -> dict[str, dict[str, Any]]:
    """Two shards of a deepseek_v3 of two layers and a next-token layer."""
    shards = []
    for prefixes in (["model.layers.0"], ["model.layers.1", "model.layers.2"]):
        table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        position = 0
        for name, shape in {k: v for p in prefixes for k, v in layer(p).items()}.items():
            end = position + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, end]}
            position = end
        shards.append(table)
    return {f"model-0000{n}-of-00002.safetensors": t for n, t in enumerate(shards, start=1)}


HEADERS = headers()
SHARDS = list(HEADERS)
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 2,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_nextn_predict_layers": 1,
    "layer_types": ["a", "b", "c"],
    "quantization_config": {"quant_method": "x", "ignore": ["model.layers.0.mlp.gate"]},
}
NAMES = [name for table in HEADERS.values() for name in table if name != "__metadata__"]
SIZES = {
    shard: max(v["data_offsets"][1] for k, v in t.items() if k in NAMES)
    for shard, t in HEADERS.items()
}
DATA = bytes(range(1, 252))
INDEX_BODY: dict[str, Any] = {
    "metadata": {"total_size": sum(SIZES.values()), "total_parameters": sum(SIZES.values()) // 2},
    "weight_map": {name: shard for shard, t in HEADERS.items() for name in t if name in NAMES},
}

NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 4, 5, 2**31, 2**63, 2**64, 10**30, 1.5, True])
WORDS = st.sampled_from(
    [
        *("", "..", "a\0b", "\ud800", "é" * 200, "../outside.safetensors", "/etc/passwd"),
        *("BF16", "F32", "F4", "I64", "deepseek_v3", "qwen3_moe", *SHARDS, INDEX, *NAMES[:9]),
        "mtp.layers.0.mlp.gate.weight",
        "model.layers.7.mlp.experts.0.up_proj.weight",
        "model.layers.0.mlp.experts.w",
    ]
)
JUNK = st.recursive(
    st.none() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        *CONFIG,
        *("num_experts", "num_local_experts", "num_layers", "per_layer_config", "num_mtp_layers"),
        *("use_mtp", "mtp_config", "text_config", "ffn_config", "thinker_config"),
    ]
)


def pack(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def mutated(data: st.DataObject, body: Any) -> Any:
    """``body`` with one value replaced, removed or added, somewhere."""
    body = copy.deepcopy(body)
    holder = body
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if isinstance(holder[key], dict | list) and holder[key] and data.draw(st.booleans()):
            holder = holder[key]
            continue
        way = data.draw(st.sampled_from(["set", "set", "number", "remove", "rename", "repeat"]))
        if way == "remove":
            del holder[key]
        elif way == "rename" and isinstance(holder, dict):
            holder[data.draw(WORDS | KEYS)] = holder.pop(key)
        elif way == "repeat":
            value = copy.deepcopy(holder[key])
            if isinstance(holder, dict):
                holder[data.draw(WORDS | KEYS)] = value
            else:
                holder.append(value)
        else:
            holder[key] = data.draw(NUMBERS if way == "number" else JUNK)
        break
    return body


def text_of(body: Any) -> bytes:
    return json.dumps(body).encode()


def write(data: st.DataObject, path: Path) -> None:
    """The checkpoint with a few things wrong, from JSON values down to bytes."""
    path.mkdir()
    bodies: dict[str, Any] = {"config.json": CONFIG, INDEX: INDEX_BODY, **HEADERS}
    for name in data.draw(st.lists(st.sampled_from(list(bodies)), max_size=2)):
        bodies[name] = mutated(data, bodies[name])
    for key in data.draw(st.lists(KEYS, max_size=1)):
        bodies["config.json"] = bodies["config.json"] | {key: data.draw(JUNK | NUMBERS)}
    contents = {
        name: pack(body, (DATA * SIZES[name])[: SIZES[name]]) if name in SIZES else text_of(body)
        for name, body in bodies.items()
    }
    for name in data.draw(st.lists(st.sampled_from(list(contents)), max_size=1)):
        content = bytearray(contents[name])
        for _ in range(data.draw(st.integers(0, 2))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.none() | st.integers(0, len(content)))
        contents[name] = bytes(content[:cut]) + data.draw(st.sampled_from([b"", b"\0", b"}"]))
    for name, content in contents.items():
        (path / name).write_bytes(content)


OPENED: list[str] = []
WATCHING = [False]


@pytest.fixture(scope="module", autouse=True)
def watch() -> None:
    """Record every file this process opens while ``WATCHING[0]``."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and WATCHING[0] and isinstance(arguments[0], str | os.PathLike):
            OPENED.append(os.fspath(arguments[0]))

    sys.addaudithook(hook)  # stays for the process; it does nothing but look at WATCHING


def plan_of(model: Path) -> PrunePlan:
    """A plan that keeps all experts but one."""
    facts = open_model(model).facts
    return plan_keeping(model, [range(1, count) for count in facts.num_experts])


def check(model: Path, data: st.DataObject) -> str:
    out = model.parent / "out"
    mode = data.draw(st.sampled_from(["prune", "drop", "keep"]))
    size = data.draw(st.sampled_from([None, None, 1, 64, "1GB"]))
    try:
        plan = plan_of(model)
        export(model, plan=plan, output=out, mtp=mode, shard_size=size)
    except MoePruneError as problem:
        assert "\n" not in str(problem)
        assert not out.exists()
        return "refused"
    found = CheckpointIndex.open(out)
    for entry in found.entries.values():
        assert 0 < entry.start <= entry.end <= (out / entry.file).stat().st_size
    report = verify(out, source=model)
    assert report.ok, report.problems
    if mode != "keep":
        counts = layout_of(found.config, found.tensors).num_experts
        assert counts == tuple(len(ids) for ids in plan.keep)
    return "exported"


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_refused_in_one_line_or_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    work = tmp_path_factory.mktemp("fuzz")
    (work / "outside.safetensors").write_bytes(pack({}, b""))
    fsync = os.fsync
    os.fsync = lambda _: None  # type: ignore[assignment,misc]
    try:
        write(data, work / "model")
        OPENED.clear()
        WATCHING[0] = True
        check(work / "model", data)
    finally:
        WATCHING[0] = False
        os.fsync = fsync  # type: ignore[misc]
    assert not [name for name in OPENED if "outside" in name or "passwd" in name]
    assert {path.name for path in work.iterdir()} <= {"model", "out", "outside.safetensors"}
    shutil.rmtree(work)


def test_the_start_is_exported(tmp_path: Path) -> None:
    """Else the test above would see refusals only."""
    for name, body in {"config.json": CONFIG, INDEX: INDEX_BODY}.items():
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / name).write_bytes(text_of(body))
    for name, body in HEADERS.items():
        (tmp_path / "model" / name).write_bytes(pack(body, (DATA * SIZES[name])[: SIZES[name]]))
    for mode in ("prune", "drop", "keep"):
        out = export(
            tmp_path / "model", plan=plan_of(tmp_path / "model"), output=tmp_path / mode, mtp=mode
        )
        assert verify(out, source=tmp_path / "model").ok
    config = json.loads((tmp_path / "drop" / "config.json").read_text())
    assert config["layer_types"] == ["a", "b"] and config["num_nextn_predict_layers"] == 0
