"""A killed export leaves no output, or a whole one; and the next run succeeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from test_export_stage import plan_for
from tiny import tiny_checkpoint

# Forks an export over and over and kills it; without torch, so that a fork is quick and safe.
DRIVER = '''
import hashlib, os, random, signal, sys, time
from pathlib import Path
from moeprune.stages.export import export
from moeprune.errors import OutputError

source, plan, work, way = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
out = work / "out"
os.fsync = lambda handle: None  # a kill loses nothing that a system call has written
EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir"}

def snapshot(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*") if path.is_file()
    }

def run(before=None):
    """Export in a child of its own; True if it ended by itself."""
    child = os.fork()
    if child == 0:
        if before is not None:
            before()
        try:
            export(source, plan=plan, output=out)
        except BaseException as problem:
            os.write(2, repr(problem).encode())
            os._exit(1)
        os._exit(0)
    return child

def ended(child):
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return not os.WIFSIGNALED(status)

def check():
    """What a killed run left: no output or a whole one; the next run makes it, and tidies up."""
    whole = out.exists()
    if whole:
        assert snapshot(out) == reference, sorted(set(snapshot(out)) ^ set(reference))
        remove()
    left = [path.name for path in work.iterdir()]
    assert left in ([], ["out.partial"]), left
    assert ended(run()) and snapshot(out) == reference
    assert [path.name for path in work.iterdir()] == ["out"]
    remove()
    return whole, left

def remove():
    import shutil
    shutil.rmtree(out)

started = time.perf_counter()
assert ended(run())
seconds = time.perf_counter() - started
reference = snapshot(out)
remove()
seen = []
if way == "random":
    chance = random.Random(0)
    for _ in range(400):
        child = run()
        time.sleep(chance.random() * seconds)
        os.kill(child, signal.SIGKILL)
        if ended(child):
            remove()
            continue
        seen.append(check())
        if len(seen) == 20:
            break
else:
    for number in range(10_000):
        def die_at_event():
            count = 0
            def hook(event, arguments):
                nonlocal count
                if event in EVENTS:
                    if count == number:
                        os.kill(os.getpid(), signal.SIGKILL)
                    count += 1
            sys.addaudithook(hook)
        if ended(run(die_at_event)):
            remove()
            break
        seen.append(check())
print(len(seen), sum(whole for whole, _ in seen), sum(bool(left) for _, left in seen))
'''


def drive(tmp_path: Path, way: str) -> tuple[int, int, int]:
    """(kills, kills that found the output whole, kills that left an unfinished folder)."""
    source = tiny_checkpoint("olmoe", tmp_path / "source", max_shard_size="400KB")
    plan_for(source).save(tmp_path / "plan.json")
    (tmp_path / "work").mkdir()
    arguments = [str(source), str(tmp_path / "plan.json"), str(tmp_path / "work"), way]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kills, whole, unfinished = map(int, done.stdout.split())
    return kills, whole, unfinished


def test_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    kills, _, _ = drive(tmp_path, "random")
    assert kills == 20


def test_killed_before_every_step_that_touches_the_disk(tmp_path: Path) -> None:
    kills, whole, unfinished = drive(tmp_path, "every")
    assert kills > 40
    assert whole >= 2  # after the rename: the marker and its folder are still to be removed
    assert unfinished >= 15
