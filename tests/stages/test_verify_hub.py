"""verify against a source on the Hub: it takes what it compares, and finds the same."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hubclient import call_client, environment
from hubfiles import FileHub, experts_by_three, hub_of
from plans import plan_keeping
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint

import moeprune

KEEP = (0, 1, 2, 6, 8, 9, 10, 11)  # 3 to 5 leave with their whole files
TOKEN = "hf_ThisIsASecretThatNobodyMaySee0123456789"
RUN = "import sys; from moeprune.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``source`` in 13 weight files, of which 10 are needed, and ``out``."""
    folder = tmp_path_factory.mktemp("verified")
    source = tiny_checkpoint("qwen3_moe", folder / "source", moe_intermediate_size=768)
    experts_by_three(source)
    plan = plan_keeping(source, [KEEP] * 3)
    moeprune.export(source, plan=plan, output=folder / "out")
    return folder


@pytest.fixture
def hub(made: Path) -> Iterator[FileHub]:
    with hub_of(made / "source") as running:
        yield running


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(made / "out", tmp_path / "work" / "out"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def verified(hub: FileHub, out: Path, home: Path, **options: Any) -> dict[str, Any]:
    (outcome,), printed = call_client(
        hub.url,
        [("verify", [str(out)], {"source": "org/name", **options})],
        home=home,
        HF_TOKEN=TOKEN,
    )
    assert TOKEN not in printed + str(outcome)
    return outcome


def needed(made: Path) -> list[str]:
    """Files with a tensor that is not of the experts 3 to 5."""
    index = json.loads((made / "source" / "model.safetensors.index.json").read_text())
    gone = [f".experts.{e}." for e in (3, 4, 5)]
    return sorted(
        {file for name, file in index["weight_map"].items() if not any(x in name for x in gone)}
    )


def test_only_what_is_compared_comes_and_none_of_it_stays(
    made: Path, hub: FileHub, out: Path, home: Path
) -> None:
    outcome = verified(hub, out, home)
    local = moeprune.verify(made / "out", source=made / "source").to_json()
    assert json.loads(outcome["result"]) == local and local["ok"]
    assert hub.whole == needed(made) and len(hub.whole) == 10
    assert sum(last + 1 - first for _, first, last in hub.ranges) < 3_000_000  # headers, routers
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert not list(home.rglob("*.safetensors"))
    total = sum((made / "source" / name).stat().st_size for name in hub.whole)
    total += local["bytes_compared"]
    assert outcome["progress"] == sorted(outcome["progress"])
    assert outcome["progress"][-1] == [total, total]


def test_what_lies_in_the_cache_is_not_asked_for(
    made: Path, hub: FileHub, out: Path, home: Path
) -> None:
    call_client(hub.url, [("resolve", ["org/name"], {})], home=home)
    hub.whole.clear()
    assert json.loads(verified(hub, out, home)["result"])["ok"]
    assert not hub.whole and not hub.ranges
    assert len([path for path in home.rglob("*.safetensors") if path.is_file()]) == 13
    for more in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        (outcome,), _ = call_client(
            hub.url, [("verify", [str(out)], {"source": "org/name"})], home=home, **more
        )
        assert json.loads(outcome["result"])["ok"], more


def test_a_wrong_export_is_found(made: Path, hub: FileHub, out: Path, home: Path) -> None:
    shard = sorted(out.glob("*.safetensors"))[4]
    tensors = load_file(shard)
    name = sorted(tensors)[0]
    tensors[name][-1, -1] += 1
    save_file(tensors, shard, metadata={"format": "pt"})
    found = json.loads(verified(hub, out, home)["result"])
    local = moeprune.verify(out, source=made / "source")
    assert not found["ok"] and found["problems"] == list(local.problems)
    assert f"{name}: bytes differ" in found["problems"][0]


def test_nothing_is_asked_for_a_folder_that_is_no_export(
    made: Path, hub: FileHub, home: Path, tmp_path: Path
) -> None:
    for folder in (made / "source", tmp_path):
        outcome = verified(hub, folder, home)
        assert outcome["error"] == "CheckpointError" and "Name an exported" in outcome["text"]
    assert not hub.requests


def test_a_source_of_other_weights_is_refused_by_its_headers(
    made: Path, hub: FileHub, out: Path, home: Path, tmp_path: Path
) -> None:
    other = tiny_checkpoint("qwen3_moe", tmp_path / "o", moe_intermediate_size=768, seed=1)
    experts_by_three(other)
    hub.files = {path.name: path.read_bytes() for path in other.iterdir()}
    outcome = verified(hub, out, home)
    assert outcome["error"] == "MismatchError" and not hub.whole


def test_a_file_that_changes_meanwhile(made: Path, hub: FileHub, out: Path, home: Path) -> None:
    last = needed(made)[-1]
    whole = hub.files[last]

    def swap(name: str) -> None:
        if name != last and hub.whole:
            hub.files[last] = whole[:-1] + bytes([whole[-1] ^ 1])

    hub.during = swap
    outcome = verified(hub, out, home)
    assert outcome["error"] == "HubError" and f"{last} of org/name changed" in outcome["text"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_killed_and_run_again(made: Path, hub: FileHub, out: Path, home: Path) -> None:
    reached = home.parent / "reached"

    def hang(name: str) -> None:
        if hub.whole[-1:] == [needed(made)[3]]:
            reached.touch()
            time.sleep(0.2)

    hub.during = hang
    command = [sys.executable, "-c", RUN, "verify", str(out), "--source", "org/name"]
    env = environment(hub.url, home=home)
    for kill, left in ((signal.SIGKILL, ["out", "out.partial"]), (signal.SIGINT, ["out"])):
        process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE)
        while not reached.exists():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        process.send_signal(kill)
        process.communicate()
        assert process.returncode != 0
        assert sorted(path.name for path in out.parent.iterdir()) == left
        reached.unlink()
        hub.whole.clear()
    hub.during = lambda _: None
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "verified" in done.stdout, done
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_full_disk(made: Path, hub: FileHub, out: Path, home: Path) -> None:
    """The second weight file does not fit."""
    program = (
        "import errno, sys, os, huggingface_hub as hub\n"
        "from moeprune.cli.main import main\n"
        "real, calls = hub.hf_hub_download, []\n"
        "def full(*args, **options):\n"
        "    calls.append(args)\n"
        "    if len(calls) == 2: raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
        "    return real(*args, **options)\n"
        "hub.hf_hub_download = full\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "verify", str(out), "--source", "org/name"]
    done = subprocess.run(
        command, env=environment(hub.url, home=home), capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "disk of" in done.stderr and "is full" in done.stderr
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_forward_takes_the_whole_model_to_the_cache(
    made: Path, hub: FileHub, out: Path, home: Path
) -> None:
    found = json.loads(verified(hub, out, home, forward=True)["result"])
    assert found["ok"] and found["logits"]["largest_difference"] < 1e-5
    assert len(hub.whole) == 13
    assert len([path for path in home.rglob("*.safetensors") if path.is_file()]) == 13


def test_a_quantised_export_takes_the_same_files(
    made: Path, hub: FileHub, home: Path, tmp_path: Path
) -> None:
    source = made / "source"
    plan = plan_keeping(source, [KEEP] * 3)
    (tmp_path / "work").mkdir()
    out = moeprune.export(
        source, plan=plan, output=tmp_path / "work" / "out", quantize="int4", shard_size="3MB"
    )
    outcome = verified(hub, out, home)
    report = json.loads(outcome["result"])
    assert report["ok"], outcome
    assert report["quantised"] == 3 * 3 * 3 * len(KEEP)
    assert hub.whole == needed(made)
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["out"]
