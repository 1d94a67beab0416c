"""The command under torchrun and accelerate: one voice, one error line, killed and gone on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import forked
import pytest
from fakehub import serve
from hubclient import environment as hub_environment
from launching import assert_same, environment, torchrun
from tiny import tiny_checkpoint

import moeprune
from moeprune.cli.main import main
from moeprune.core.stats import CalibrationStats


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    tiny_checkpoint("mixtral", folder / "model")
    texts = [f"Text {i} of a domain. " + "And more of it. " * (i % 9) for i in range(160)]
    (folder / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return folder


def words(place: Path, output: Path, *more: str) -> list[str]:
    text = ["--domain", f"é={place / 'a.jsonl'}", "--batch-tokens", "200", "--device", "cpu"]
    return ["calibrate", str(place / "model"), "-o", str(output), *text, *more]


def alone(place: Path) -> Path:
    output = place / "alone"
    if not output.exists():
        domains = {"é": str(place / "a.jsonl")}
        moeprune.calibrate(
            place / "model", output=output, domains=domains, batch_tokens=200, device="cpu"
        )
    return output


def test_an_error_is_one_line_of_one_process(place: Path, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    done = subprocess.run(
        torchrun(2, "-m", "moeprune", *words(place, tmp_path / "there")),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1  # torchrun's own; of the processes, it says:
    assert re.findall(r"exitcode +: (\d+)", done.stderr) in (["2"], ["2", "2"])
    assert done.stdout == ""
    own = [line for line in done.stderr.splitlines() if line.startswith("moeprune:")]
    assert own == [
        f"moeprune: {tmp_path / 'there'} exists; name another file, or pass --overwrite."
    ]
    assert "calibrate.py" not in done.stderr  # no traceback of ours among torchrun's


def test_wrong_options_are_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        for wrong in (["--nonsense"], ["-o", "s", "--shard", "4/4"], ["-o", "s", "--seed", "x"]):
            assert main(["calibrate", "model", *wrong]) == 2
            assert len(capsys.readouterr().err.splitlines()) == lines


def test_accelerate_starts_several_of_which_one_downloads(place: Path, tmp_path: Path) -> None:
    """On a machine one process downloads, whoever started them."""
    launcher = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    # With --cpu accelerate starts one process, whatever --num_processes says, unless by MPI.
    several = ["--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
    with serve() as hub:
        hub.files = {path.name: path.read_bytes() for path in (place / "model").iterdir()}
        output = tmp_path / "stats"
        local = words(place, output, "--json")
        command = ["org/name" if word == str(place / "model") else word for word in local]
        online = hub_environment(hub.url, home=tmp_path / "home") | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*launcher, *several, "-m", "moeprune", *command],
            env=online,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert json.loads(done.stdout)["output"] == str(output)
        assert done.stderr.count("warning: documents are cut") == 1
        whole = [
            path
            for method, path in hub.requests
            if (method, path[-17:]) == ("GET", "model.safetensors")
        ]
    assert len(whole) == 1
    found, want = CalibrationStats.load(output), CalibrationStats.load(alone(place))
    assert found.model.name == "org/name"
    assert found.model.fingerprint == want.model.fingerprint
    replace(found, model=want.model).save(tmp_path / "renamed")
    assert_same(alone(place), tmp_path / "renamed")


def children(process: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "status").read_text()
            except OSError:  # ended meanwhile
                continue
            if re.search(rf"^PPid:\t{process}$", status, re.M):
                found.append(int(entry.name))
    return sorted(found)


def test_killed_processes_leave_nothing_half_written_and_go_on(place: Path, tmp_path: Path) -> None:
    output = tmp_path / "stats"
    command = torchrun(2, "-m", "moeprune", *words(place, output))
    launch = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    journals = [tmp_path / f"stats.progress.{rank}-of-2" for rank in (0, 1)]
    end = time.monotonic() + 90
    while not all(journal.exists() for journal in journals):
        assert launch.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    os.kill(children(launch.pid)[-1], signal.SIGKILL)  # the launcher then ends the other one
    _, said = launch.communicate(timeout=60)
    assert launch.returncode == 1
    assert not any(line.startswith("Traceback") for line in said.splitlines() if "moeprune" in line)
    # Beside them, empty: locks that the killed processes hold no more.
    left = {path.name for path in tmp_path.iterdir() if not path.name.endswith("-lock")}
    assert left == {journal.name for journal in journals}
    for process in forked.launch(2, "-m", "moeprune", *words(place, output)):
        assert process.returncode == 0, process.communicate()[1][-2000:]
    assert {path.name for path in tmp_path.iterdir()} == {"stats"}
    assert_same(alone(place), output)
