from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from moeprune.checkpoint.staging import (
    check_output,
    claimed_folder,
    partial_path,
    staged_folder,
)
from moeprune.errors import OutputError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def test_complete_or_absent(tmp_path: Path) -> None:
    out = tmp_path / "größe out"
    with staged_folder(out, needed=4) as folder:
        assert folder.parent == tmp_path / "größe out.partial" and not out.exists()
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_text("a")
    assert [path.name for path in sorted(out.rglob("*"))] == ["sub", "a"]
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), SystemExit(3), ValueError("x")])
def test_nothing_stays_after_a_failure(problem: BaseException, tmp_path: Path) -> None:
    with pytest.raises(type(problem)), staged_folder(tmp_path / "out", needed=1) as folder:
        (folder / "a").write_text("half")
        raise problem
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, r"needs 1,000,000 bytes, the disk of .* had [\d,]+ free"),
        (errno.EDQUOT, "needs 1,000,000 bytes"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_fails_while_writing(code: int, message: str, tmp_path: Path) -> None:
    import os

    out = tmp_path / "out"
    with pytest.raises(OutputError, match=message) as caught, staged_folder(out, needed=10**6):
        raise OSError(code, os.strerror(code))
    assert str(out) in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_small_disk_is_seen_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2_000_000_000))
    with (
        pytest.raises(OutputError, match=r"needs 3,000,000,000 bytes, .* 2,000,000,000 free"),
        staged_folder(tmp_path / "out", needed=3_000_000_000),
    ):
        raise AssertionError("the block must not run")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = (
        "import sys, time; from pathlib import Path\n"
        "from moeprune.checkpoint.staging import staged_folder\n"
        "with staged_folder(Path(sys.argv[1]), needed=1) as folder:\n"
        "    (folder / 'stale').write_text('x'); print('up', flush=True); time.sleep(60)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE)
    assert run.stdout is not None and run.stdout.readline() == b"up\n"
    with (
        pytest.raises(OutputError, match="another export is writing"),
        staged_folder(out, needed=1),
    ):
        raise AssertionError("the block must not run")
    stale = partial_path(out) / "checkpoint" / "stale"
    assert stale.exists()  # the run in progress was left alone
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert partial_path(out).is_dir()
    with staged_folder(out, needed=1) as folder:
        assert not (folder / "stale").exists()
        (folder / "new").write_text("y")
    assert [path.name for path in out.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [out]


def test_a_folder_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    other = tmp_path / "out.partial"
    other.mkdir()
    (other / "thesis.txt").write_text("x")
    with (
        pytest.raises(OutputError, match="not what an interrupted export leaves"),
        staged_folder(tmp_path / "out", needed=1),
    ):
        raise AssertionError("the block must not run")
    assert (other / "thesis.txt").read_text() == "x"
    for kind in ("file", "link"):
        shutil.rmtree(other, ignore_errors=True)
        other.unlink(missing_ok=True)
        other.write_text("x") if kind == "file" else other.symlink_to(tmp_path)
        with (
            pytest.raises(OutputError, match="Move it away"),
            staged_folder(tmp_path / "out", needed=1),
        ):
            raise AssertionError("the block must not run")
        assert other.exists()


def test_outputs_that_are_refused(tmp_path: Path, model: Path) -> None:
    check_output(tmp_path / "out", source=model)
    check_output(tmp_path / "model2", source=model)
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "alias").symlink_to(model)
    with pytest.raises(OutputError, match="exists"):
        check_output(model, source=model)
    with pytest.raises(OutputError, match="exists"):
        check_output(tmp_path / "file", source=model)
    with pytest.raises(OutputError, match="exists"):
        check_output(tmp_path / "dangling", source=model)
    with pytest.raises(OutputError, match="does not exist"):
        check_output(tmp_path / "no" / "out", source=model)
    with pytest.raises(OutputError, match="does not exist"):
        check_output(tmp_path / "file" / "out", source=model)
    with pytest.raises(OutputError, match="inside the model"):
        check_output(model / "out", source=model)
    with pytest.raises(OutputError, match="inside the model"):
        check_output(tmp_path / "alias" / "out", source=model)
    with pytest.raises(OutputError, match="inside the model"):
        check_output(model / "out", source=tmp_path / "alias")
    with pytest.raises(OutputError, match="exists"):
        check_output(tmp_path, source=model)


def test_a_model_at_the_partial_name_is_not_removed(tmp_path: Path) -> None:
    source = tmp_path / "out.partial"
    (source / "deep").mkdir(parents=True)
    for model in (source, source / "deep"):
        with pytest.raises(OutputError, match="is inside"):
            check_output(tmp_path / "out", source=model)


def test_many_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    """Whoever loses the race gets one line, and neither removes nor mixes into the winner's."""
    code = (
        "import sys; from pathlib import Path\n"
        "from moeprune.checkpoint.staging import check_output, staged_folder\n"
        "from moeprune.errors import OutputError\n"
        "name, out, source = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for number in range(200):\n"
        "    target = out / str(number)\n"
        "    try:\n"
        "        check_output(target, source=source)\n"
        "        with staged_folder(target, needed=1) as folder:\n"
        "            for part in range(3): (folder / f'{name}{part}').write_text(name)\n"
        "        print(number, flush=True)\n"
        "    except OutputError: pass\n"
    )
    (tmp_path / "source").mkdir()
    (tmp_path / "outs").mkdir()
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, name, str(tmp_path / "outs"), str(tmp_path / "source")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    for run in runs:
        assert run.stdout is not None and run.stdout.readline() == "ready\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("\n")
        run.stdin.flush()
    won = {name: run.communicate()[0].split() for name, run in zip("abc", runs, strict=True)}
    assert [run.returncode for run in runs] == [0, 0, 0]
    numbers = [number for wins in won.values() for number in wins]
    assert sorted(numbers, key=int) == sorted(set(numbers), key=int)
    for name, wins in won.items():
        for number in wins:
            files = sorted(path.name for path in (tmp_path / "outs" / number).iterdir())
            assert files == [f"{name}{part}" for part in range(3)]
    left = {path.name for path in (tmp_path / "outs").iterdir()}
    assert left == set(numbers)


def test_no_room_for_more_files_is_not_called_too_few_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000))
    with (
        pytest.raises(OutputError, match="no room for more files"),
        staged_folder(tmp_path / "out", needed=10),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_claimed_folder_holds_other_files_beside_the_staged_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with claimed_folder(out) as work:
        assert work == partial_path(out) and not [p for p in work.iterdir() if p.name[0] != "."]
        (work / "deep").mkdir()
        (work / "deep" / "file").write_text("x")
        with pytest.raises(OutputError, match="another export is writing"), claimed_folder(out):
            raise AssertionError("the block must not run")
        with (
            pytest.raises(OutputError, match="another export is writing"),
            staged_folder(out, needed=1),
        ):
            raise AssertionError("the block must not run")
        with staged_folder(out, needed=1, claimed=True) as folder:
            assert folder.parent == work
            (folder / "a").write_text("a")
        assert (work / "deep" / "file").exists() and out.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("problem", "seen"),
    [
        (KeyboardInterrupt(), None),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk of .* is full"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
    ],
)
def test_nothing_stays_of_a_claimed_folder_after_a_failure(
    problem: BaseException, seen: str | None, tmp_path: Path
) -> None:
    kind = OutputError if isinstance(problem, OSError) else type(problem)
    with pytest.raises(kind, match=seen), claimed_folder(tmp_path / "out") as work:
        (work / "half").write_text("half")
        raise problem
    assert list(tmp_path.iterdir()) == []
    with (
        claimed_folder(tmp_path / "out"),
        pytest.raises(OutputError, match="needs 9 bytes"),
        staged_folder(tmp_path / "out", needed=9, claimed=True) as folder,
    ):
        (folder / "half").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []
