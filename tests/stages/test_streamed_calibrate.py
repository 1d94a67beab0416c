"""calibrate --memory: the same file as without it, whatever happens on the way."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked
import pytest
from killing import After
from safetensors.torch import load_file, save_file
from two_domains import two_domains

import moeprune
from moeprune.errors import CheckpointError, StoppedError, UsageError
from moeprune.observe import load as observe_load
from moeprune.observe.streamed import memory as streamed_memory
from moeprune.observe.streamed import sizing
from moeprune.stages import larger, waves
from moeprune.stages.journal import Journal


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return two_domains(tmp_path_factory.mktemp("texts"))


@pytest.fixture
def short_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several waves, of which each has a part in files."""
    sized = waves.Waves._sized

    def shorter(*arguments: Any) -> Any:
        return replace(sized(*arguments), positions=200, activations=0, spills=True)

    monkeypatch.setattr(waves.Waves, "_sized", shorter)


class InTheNextWave:
    """Asks to stop in the middle of the wave that comes after the first that is saved."""

    def __init__(self, progress: Path) -> None:
        self.progress, self.left = progress, 10
        self.begun = self.saved()

    def saved(self) -> bytes:
        return self.progress.read_bytes() if self.progress.exists() else b""

    def __call__(self) -> bool:
        self.left -= self.saved() != self.begun
        return self.left == 0


def run(model: Path, texts: dict[str, str], output: Path, **options: Any) -> Any:
    how = {"batch_tokens": 60, "device": "cpu", **options}
    return moeprune.calibrate(model, domains=texts, output=output, **how)


def test_the_file_is_the_same(tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    story: list[str] = []
    reports: list[Any] = []
    asked = After(0)
    run(tiny("deepseek_v3"), texts, tmp_path / "whole", on_story=story.append)
    assert story == []
    run(
        tiny("deepseek_v3"),
        texts,
        tmp_path / "waves",
        memory="6GB",
        on_story=story.append,
        on_progress=reports.append,
        stop=asked,
    )
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "waves").read_bytes()
    assert len(story) == 1
    assert re.search(
        r"in [\d.]+ [MG]B of memory: \d+ waves? of up to \d+ tokens, 266 kB read", story[0]
    )
    told = re.search(r"(\d+) waves? of", story[0])
    assert told is not None
    units = 5  # embeddings, layers, norm; a batch goes on before each, and once more
    batches, rest = divmod(-asked.left - int(told[1]), units + 1)
    assert rest == 0 and batches > int(told[1])  # and the end of a wave is one more question
    assert [report.done for report in reports] == sorted(report.done for report in reports)
    assert reports[-1].done == reports[-1].total
    assert sorted(path.name for path in tmp_path.iterdir()) == ["waves", "whole"]


@pytest.mark.parametrize("loss", [False, True])
@pytest.mark.usefixtures("short_waves")
def test_stopped_in_every_wave(
    loss: bool, tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    run(tiny("qwen3_moe"), texts, tmp_path / "whole", loss_aware=loss)
    stops = 0
    while not (tmp_path / "s").exists():
        try:
            # In the middle of the second wave: the first one is kept.
            stop = InTheNextWave(tmp_path / "s.progress")
            how = {"memory": "6GB", "loss_aware": loss}
            run(tiny("qwen3_moe"), texts, tmp_path / "s", stop=stop, **how)
        except StoppedError as stopped:
            assert "stopped in the middle of a wave, which is given up" in str(stopped)
            assert f"{tmp_path / 's'}.progress holds the waves before it" in str(stopped)
            stops += 1
    assert stops >= 2
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "s").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "whole"]


@pytest.mark.usefixtures("short_waves")
def test_every_whole_wave_is_kept(
    tiny: Any, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long saving takes."""
    run(tiny("qwen3_moe"), texts, tmp_path / "whole")
    keep = Journal.keep

    def seldom(own: Journal, *, now: bool = False) -> None:
        if now:
            keep(own, now=True)

    monkeypatch.setattr(Journal, "keep", seldom)
    for _ in range(2):
        stop = InTheNextWave(tmp_path / "s.progress")
        with pytest.raises(StoppedError, match="holds the waves before it"):
            run(tiny("qwen3_moe"), texts, tmp_path / "s", memory="6GB", stop=stop)
    run(tiny("qwen3_moe"), texts, tmp_path / "s", memory="6GB")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "s").read_bytes()


def test_begun_in_memory_and_ended_in_waves(
    tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    run(tiny("gpt_oss"), texts, tmp_path / "whole")
    with pytest.raises(StoppedError):
        run(tiny("gpt_oss"), texts, tmp_path / "s", stop=After(4))
    run(tiny("gpt_oss"), texts, tmp_path / "s", memory="6GB")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "s").read_bytes()


CODE = """
import dataclasses, json, sys, torch
torch.set_num_threads(1)
import moeprune
from moeprune.stages import waves
from moeprune.stages.journal import Journal
sized = waves.Waves._sized
waves.Waves._sized = lambda *given: dataclasses.replace(sized(*given), positions=200)
moeprune.calibrate(sys.argv[1], domains=json.loads(sys.argv[2]), output=sys.argv[3],
                   batch_tokens=60, device="cpu", memory="6GB", loss_aware=len(sys.argv) > 4)
"""


@pytest.mark.parametrize("loss", [False, True])
def test_killed_and_resumed(loss: bool, tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    run(tiny("qwen3_moe"), texts, tmp_path / "whole", loss_aware=loss)
    output = tmp_path / "killed"
    arguments = [str(tiny("qwen3_moe")), json.dumps(texts), str(output), *["loss"] * loss]
    job = forked.start(["-c", CODE, *arguments])
    limit = time.monotonic() + 60
    while not output.with_name("killed.progress").exists():
        assert time.monotonic() < limit and job.poll() is None
        time.sleep(0.001)
    job.send_signal(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    assert not output.exists()
    run(tiny("qwen3_moe"), texts, output, memory="6GB", loss_aware=loss)
    assert output.read_bytes() == (tmp_path / "whole").read_bytes()


CODE_SPILLED = """
import dataclasses, json, os, signal, sys, torch
torch.set_num_threads(1)
import moeprune
from moeprune.observe.streamed import activations
from moeprune.stages import waves
from moeprune.stages.journal import Journal
activations._SMALL = 1
sized = waves.Waves._sized
small = {"positions": 400, "activations": 0, "spills": True}
waves.Waves._sized = lambda *given: dataclasses.replace(sized(*given), **small)
calls = []
def stop():
    calls.append(1)
    if len(calls) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return False
moeprune.calibrate(sys.argv[1], domains=json.loads(sys.argv[2]), output=sys.argv[3],
                   batch_tokens=60, device="cpu", memory="6GB", stop=stop)
"""


def test_killed_with_activations_in_files_leaves_none(
    tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    arguments = [str(tiny("qwen3_moe")), json.dumps(texts), str(tmp_path / "s")]
    ended = forked.run(["-c", CODE_SPILLED, *arguments])
    assert ended.returncode == -signal.SIGKILL
    left = [path.name for path in tmp_path.iterdir() if not path.name.endswith("-lock")]
    assert left in ([], ["s.progress"])


@pytest.mark.parametrize("loss", [False, True])
def test_too_little_memory_names_what_suffices(
    loss: bool, tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="1 MB of memory is too little: the largest layer") as told:
        run(tiny("mixtral"), texts, tmp_path / "s", memory="1MB", loss_aware=loss)
    named = re.search(r"Give --memory ([\d.]+GB), or a smaller --batch-tokens", str(told.value))
    assert named is not None
    assert "\n" not in str(told.value)
    assert not (tmp_path / "s").exists()
    run(tiny("mixtral"), texts, tmp_path / "s", memory=named[1], loss_aware=loss)
    assert (tmp_path / "s").exists()


def test_a_machine_that_cannot_hold_a_layer(
    tiny: Any, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_memory, "allowed_memory", lambda: 50_000_000)
    with pytest.raises(UsageError, match=r"the largest layer takes .* there are 50 MB here"):
        run(tiny("mixtral"), texts, tmp_path / "s")


def test_more_is_not_named_than_there_is(
    tiny: Any, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to who gave more than there is, nor to who gave nothing."""
    there = streamed_memory.used_memory() + 150_000_000
    monkeypatch.setattr(streamed_memory, "allowed_memory", lambda: there)
    monkeypatch.setattr(sizing, "_PACKED", 1e-3)  # a batch that takes much
    for memory in ("20GB", None):
        with pytest.raises(UsageError) as told:
            run(tiny("mixtral"), texts, tmp_path / "s", memory=memory)
        assert f"there are {sizing.size(there)} here" in str(told.value)
        assert "--memory" not in str(told.value)


def test_a_model_that_cannot_be_built_is_not_loaded_where_it_cannot_fit(
    tiny: Any, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "m"
    shutil.copytree(tiny("mixtral"), model)
    tensors = load_file(model / "model.safetensors")
    del tensors["model.layers.1.self_attn.o_proj.weight"]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.setattr(streamed_memory, "allowed_memory", lambda: 50_000)

    def load(*_: Any, **__: Any) -> Any:
        raise AssertionError("loaded")

    monkeypatch.setattr(observe_load, "load_causal_lm", load)
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.o_proj.* not in the files"):
        run(model, texts, tmp_path / "s")


def test_without_being_asked(
    tiny: Any, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []
    run(tiny("mixtral"), texts, tmp_path / "whole", on_story=story.append)
    assert story == []
    used = streamed_memory.used_memory()
    monkeypatch.setattr(streamed_memory, "allowed_memory", lambda: used + 900_000_000)
    # What the process of the tests has in use by now differs; more than it has is what counts.
    monkeypatch.setattr(larger, "BESIDE", 50_000_000_000)
    run(tiny("mixtral"), texts, tmp_path / "waves", on_story=story.append)
    (line,) = story
    assert re.match(r"loaded whole the model takes 50\.0 GB, there are \d\.\d GB: the", line)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "waves").read_bytes()


def test_a_way_back_that_does_not_fit_is_read_a_layer_at_a_time(
    tiny: Any, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model fits; of the loss, the inputs of all its layers would have to, too."""
    there = larger.BESIDE + 200_000_000
    monkeypatch.setattr(streamed_memory, "allowed_memory", lambda: there)
    told: dict[bool, list[str]] = {}
    for loss in (False, True):
        told[loss] = []
        run(
            tiny("mixtral"),
            texts,
            tmp_path / f"{loss}",
            batch_tokens=10**6,
            loss_aware=loss,
            on_story=told[loss].append,
        )
    assert not told[False]
    assert "forward and back" in told[True][0] and "loaded whole the model takes" in told[True][0]


def test_memory_that_is_no_size_or_does_not_go_with_other_options(
    tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    for options, message in (
        ({"memory": "much"}, "--memory 'much' is not a size"),
        ({"memory": "4GB", "device": "auto"}, "--device auto spreads"),
        ({"memory": "4GB", "mode": "decode"}, "cannot write token by token; give --generations"),
    ):
        with pytest.raises(UsageError, match=message):
            run(tiny("mixtral"), texts, tmp_path / "s", **options)


def test_decode_mode_from_generations(tiny: Any, tmp_path: Path) -> None:
    rows = [
        {"prompt": f"Question {number}? ", "completion": f"Because {number}. " * (1 + number % 3)}
        for number in range(9)
    ]
    given = tmp_path / "given.jsonl"
    given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, memory in (("whole", None), ("waves", "6GB")):
        moeprune.calibrate(
            tiny("qwen3_moe"),
            output=tmp_path / name,
            mode="decode",
            generations=[f"qa={given}"],
            batch_tokens=80,
            memory=memory,
        )
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "waves").read_bytes()


def test_stopped_in_the_first_wave(tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match="the first, so there is nothing to keep"):
        run(tiny("mixtral"), texts, tmp_path / "s", memory="6GB", stop=After(2))
    assert list(tmp_path.iterdir()) == []


def test_until_the_plan_is_stable(tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    """Rounds of documents, each in waves; what it takes is measured and told once."""
    story: list[str] = []
    how: dict[str, Any] = {"stop_when_stable": 1.0, "batch_tokens": 40}
    run(tiny("qwen3_moe"), texts, tmp_path / "whole", **how)
    run(tiny("qwen3_moe"), texts, tmp_path / "waves", memory="6GB", on_story=story.append, **how)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "waves").read_bytes()
    assert len(story) == 1
