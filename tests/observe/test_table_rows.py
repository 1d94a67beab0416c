"""Whole rows of tables; of the Hub by the real client."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasethub import serve_datasets

from moeprune.errors import DomainError, UsageError
from moeprune.observe.table_rows import table_rows

READ = """
import json, sys
import datasets
datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0.5  # it would sleep 5 s after each stream
from moeprune.errors import MoePruneError
from moeprune.observe.table_rows import table_rows
for source in sys.argv[1:]:
    try:
        print(json.dumps(list(table_rows(source))))
    except MoePruneError as problem:
        print(json.dumps([type(problem).__name__, str(problem)]))
"""
ROWS = [{"n": at, "texts": ["a", "ü\u2028"], "nested": {"label": [str(at)]}} for at in range(2500)]


def test_rows_of_the_hub_come_whole_and_in_order(tmp_path: Path) -> None:
    data = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), data)
    files = "  data_files:\n  - split: test\n    path: t.parquet\n"
    card = f"---\nconfigs:\n- config_name: main\n{files}---\n"
    asked = ["hf:org/name/main:test", "hf:org/name/main:train", "hf:org/none:test"]
    with serve_datasets() as hub:
        hub.files["t.parquet"] = data.getvalue()
        hub.files["README.md"] = card.encode()
        online = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", READ, *asked],
            env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), **online},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    rows, split, dataset = map(json.loads, done.stdout.splitlines())
    assert [row for row, _ in rows] == ROWS
    assert rows[-1][1] == "hf:org/name/main:test, row 2500"
    for answer in (split, dataset):
        assert answer[0] == "DomainError" and "cannot be read from the Hub" in answer[1]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json", ".lines.json"])
def test_every_form_of_file_gives_the_same_rows(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif suffix == ".json":
        path.write_text(json.dumps(ROWS))
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    assert [row for row, _ in table_rows(str(path))] == ROWS


@pytest.mark.parametrize("library", ["pyarrow", "datasets"])
def test_a_missing_library_is_named(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1")
    source = str(path) if library == "pyarrow" else "hf:org/name:train"
    for name in (library, f"{library}.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf'{library}.*pip install "moeprune\[data\]"'):
        list(table_rows(source))


def test_a_csv_with_a_value_too_large_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"a\n{'x' * 200_000}\n")
    with pytest.raises(DomainError, match=r"t\.csv, after line 1 is not CSV \(field larger"):
        list(table_rows(str(path)))
