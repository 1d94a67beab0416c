"""Runs that meet at one output, disks that fill up, and what killed runs leave behind."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import forked
import pytest
from killing import PRELUDE

import moeprune
from moeprune.errors import OutputError, StoppedError
from moeprune.stages import journal
from moeprune.stages.claim import claimed
from moeprune.stages.journal import Journal


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "d.jsonl"
    rows = [{"text": f"{row} und {row * row} " * (1 + row % 4)} for row in range(9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(model: Path, text: Path, **options: Any) -> Any:
    how = {"domains": {"d": str(text)}, "batch_tokens": 60, "device": "cpu", **options}
    return moeprune.calibrate(model, output=text.with_name("s"), **how)


@pytest.mark.parametrize("mode", [{}, {"mode": "decode", "max_new_tokens": 5}], ids=str)
def test_two_runs_on_one_output(
    mode: dict[str, Any], tiny: Any, text: Path, tmp_path: Path
) -> None:
    """The second one would take the first one's progress, or its result, for its own."""
    refused = []

    def meanwhile() -> bool:
        with pytest.raises(OutputError, match=r"another calibration is writing .*s\. Wait") as no:
            run(tiny("qwen3_moe"), text, resume=False, length=7, **mode)
        refused.append(no)
        return False

    stats = run(tiny("qwen3_moe"), text, stop=meanwhile, **mode)
    assert refused
    assert stats.provenance["length"] != 7
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    run(tiny("qwen3_moe"), text, overwrite=True, **mode)  # nobody holds it any more


def test_a_claim_is_left_when_its_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "s.progress"
    with pytest.raises(ZeroDivisionError), claimed(tmp_path / "s", path):
        assert len(list(tmp_path.iterdir())) == 1
        _ = 1 / 0
    assert not list(tmp_path.iterdir())
    link = tmp_path / "link"
    path.write_bytes(b"")
    link.symlink_to(path)
    with claimed(tmp_path / "s", path), claimed(tmp_path / "t", tmp_path / "t.progress"):
        with pytest.raises(OutputError), claimed(tmp_path / "s", link):
            pass
        with pytest.raises(OutputError), claimed(tmp_path / "s", path):
            pass
    with claimed(tmp_path / "none" / "s", tmp_path / "none" / "s.progress"):
        pass  # the folder is looked at elsewhere


def test_a_disk_that_is_full_for_a_while(
    tiny: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SHARE", 0)  # saves after every batch
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes: list[int] = []
    warnings: list[str] = []

    def stop(full: range) -> bool:
        sizes.append(len((tmp_path / "s.progress").read_bytes()) if len(sizes) else 0)
        limit = 2000 if len(sizes) in full else former[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, former[1]))
        return False

    model = tiny("qwen3_moe")
    try:
        with pytest.raises(OutputError, match=r"cannot write .*s\.progress"):
            run(model, text, stop=lambda: stop(range(1, 99)))  # never worked: said at once
        sizes.clear()
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
        run(model, text, stop=lambda: stop(range(2, 4)), on_warning=warnings.append)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert len(sizes) > 4
    told = [line for line in warnings if "s.progress" in line]
    assert len(told) == 1
    assert "goes on" in told[0]
    want = moeprune.calibrate(
        model, domains={"d": str(text)}, output=tmp_path / "t", batch_tokens=60, device="cpu"
    )
    assert want.domains[0].num_tokens() > 0
    assert (tmp_path / "s").read_bytes() == (tmp_path / "t").read_bytes()


def test_between_waves_too(tmp_path: Path) -> None:
    """What is saved whatever it costs need not be saved now either."""
    folder, warnings = tmp_path / "d", list[str]()
    with pytest.raises(OutputError):
        Journal.open(folder / "s.progress", {}, resume=True).keep(now=True)
    folder.mkdir()
    kept = Journal.open(folder / "s.progress", {}, resume=True, on_warning=warnings.append)
    kept.keep(now=True)
    before = (folder / "s.progress").read_bytes()
    (folder / "s.progress").unlink()
    folder.rmdir()
    kept.keep(now=True)
    kept.keep(now=True)
    assert len(warnings) == 1
    folder.mkdir()
    kept.keep(now=True)
    assert (folder / "s.progress").read_bytes() == before


# Kills a run before each step that touches its folder, and lets the next one go on.
DRIVER = """
from moeprune.stages import journal

model, text, work = sys.argv[1], sys.argv[2], Path(sys.argv[3])
options = eval(sys.argv[4])
every = int(sys.argv[5])
journal._SHARE = 0  # saves after every batch

def job():
    moeprune.calibrate(
        model, domains={"d": text}, output=work / "s", batch_tokens=60, device="cpu", **options
    )

job()  # so that everything is imported before a fork
whole = files()
kills = hidden = 0
while True:
    clear()
    if run(job, dies_at=kills * every):
        break
    kills += 1
    hidden += any(path.name.endswith(".partial") for path in work.iterdir())
    if (work / "s").exists():
        assert (work / "s").read_bytes() == whole["s"]
    else:
        assert run(job)
        assert files() == whole, (kills, sorted(files()))
print(kills, hidden)
"""


@pytest.mark.parametrize(
    ("options", "every"),
    [({}, 2), ({"mode": "decode", "max_new_tokens": 5}, 4), ({"memory": "1GB"}, 2)],
    ids=str,
)
def test_killed_before_a_step_that_touches_the_disk(
    options: dict[str, Any], every: int, tiny: Any, text: Path, tmp_path: Path
) -> None:
    """The next run gives the same bytes, and leaves nothing else."""
    short = tmp_path / "short.jsonl"
    short.write_text("".join(text.read_text().splitlines(keepends=True)[:4]))
    (tmp_path / "work").mkdir()
    arguments = [str(tiny("qwen3_moe")), str(short), str(tmp_path / "work"), repr(options)]
    done = forked.run(["-c", PRELUDE + DRIVER, *arguments, str(every)])
    assert done.returncode == 0, done.stderr
    kills, hidden = map(int, done.stdout.split())
    assert kills >= 8
    assert hidden >= 2  # half-written files, which the next run removed


def test_what_belongs_to_others_stays(tiny: Any, text: Path, tmp_path: Path) -> None:
    from moeprune.artefact import hidden_prefix

    other = tmp_path / f"{hidden_prefix(tmp_path / 'other')}x.partial"
    own = tmp_path / f"{hidden_prefix(tmp_path / 's.progress')}x.partial"
    folder = tmp_path / f"{hidden_prefix(tmp_path / 's.progress')}y"
    folder.mkdir()
    for path in (other, own, folder / "3-1"):
        path.write_bytes(b"x")
    with pytest.raises(StoppedError):
        run(tiny("qwen3_moe"), text, stop=lambda: True)
    assert (other.exists(), own.exists(), folder.exists()) == (True, False, False)
