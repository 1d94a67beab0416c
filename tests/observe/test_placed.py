"""Weights off the devices: the same sums where transformers runs so, one line where it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import FAMILIES

from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.observe.domains import Corpus
from moeprune.observe.generate import Decoding, generate
from moeprune.observe.launch import Launch, launched
from moeprune.observe.load import load_causal_lm
from moeprune.observe.placed import check_fetched, device_of
from moeprune.observe.prefill import passes, prefill
from moeprune.observe.sums import FoldedSums
from moeprune.stages.identify import open_model


def corpus() -> Corpus:
    draw = np.random.RandomState(0)
    documents = tuple(draw.randint(0, 256, size=n).astype(np.int32) for n in (30, 20, 11, 45, 7))
    numbers = tuple(range(5))
    return Corpus(name="d", source="d", sha256="", total=5, numbers=numbers, documents=documents)


def off_devices(path: Path, folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path, device_map={"": "disk"}, offload_folder=str(folder)
    )
    assert all(weight.is_meta for weight in model.parameters())
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_on_a_disk_give_the_same_sums(family: str, tiny: Any, tmp_path: Path) -> None:
    layout = open_model(tiny(family)).layout
    model = off_devices(tiny(family), tmp_path)
    if family == "llama4_text":
        with pytest.raises(UnsupportedModelError, match="llama4_text does not run with weights"):
            check_fetched(model, layout)
        return
    check_fetched(model, layout)
    want = prefill(load_causal_lm(tiny(family)), corpus(), layout=layout, batch_tokens=100)
    found = prefill(model, corpus(), layout=layout, batch_tokens=100)
    for name, array in want.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert all(weight.is_meta for weight in model.parameters())  # as it was


def test_no_loss_goes_back_through_weights_on_a_disk(tiny: Any, tmp_path: Path) -> None:
    layout = open_model(tiny("qwen3_moe")).layout
    model = off_devices(tiny("qwen3_moe"), tmp_path)
    sums = FoldedSums.of(layout, loss=True)
    with pytest.raises(UnsupportedModelError, match=r"--device auto.*--loss-aware.*--memory"):
        list(passes(model, corpus(), sums, layout=layout, batch_tokens=100))


def test_weights_on_a_disk_write_the_same_text(tiny: Any, tmp_path: Path) -> None:
    prompts = [np.arange(n, dtype=np.int32) for n in (3, 9)]
    how = {"how": Decoding(max_new_tokens=5), "ends": [257], "batch_tokens": 100}
    want = generate(load_causal_lm(tiny("qwen3_moe")), prompts, **how)
    found = generate(off_devices(tiny("qwen3_moe"), tmp_path), prompts, **how)
    assert [one.ids.tolist() for one in found] == [one.ids.tolist() for one in want]


def test_a_process_takes_the_gpu_of_its_number() -> None:
    second = Launch(rank=5, world=8, local_rank=1, local_world=4)
    assert device_of(second, None, gpus=4) == "cuda:1"
    assert device_of(second, "cuda", gpus=4) == "cuda:1"
    assert device_of(second, "cuda:3", gpus=4) == "cuda:3"
    assert device_of(second, None, gpus=0) is None
    assert device_of(Launch(), "auto", gpus=4) == "auto"
    assert device_of(Launch(cpu=True), None, gpus=4) == "cpu"
    with pytest.raises(UsageError, match=r"has 1 GPU for 4 processes\. Start 1 a machine"):
        device_of(second, None, gpus=1)
    with pytest.raises(UsageError, match="--device auto spreads a model over all devices"):
        device_of(second, "auto", gpus=4)
    alone = Launch(rank=1, world=2, local_rank=0, local_world=1)
    assert device_of(alone, "auto", gpus=4) == "auto"


def test_what_launchers_write_is_read() -> None:
    assert launched({}) == launched({"WORLD_SIZE": "4"}) == Launch()
    numbered = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    there = {"MASTER_ADDR": "here", "MASTER_PORT": "1"}
    assert launched(numbered | there) == Launch(rank=3, world=4, local_rank=1, local_world=2)
    assert launched({"ACCELERATE_USE_CPU": "True"}) == Launch(cpu=True)
    with pytest.raises(UsageError, match=r"not where the others are \(MASTER_ADDR, MASTER_PORT\)"):
        launched(numbered)
    with pytest.raises(UsageError, match="RANK='first', which is no number"):
        launched(numbered | there | {"RANK": "first"})
    with pytest.raises(UsageError, match="RANK=4, WORLD_SIZE=4"):
        launched(numbered | there | {"RANK": "4"})
