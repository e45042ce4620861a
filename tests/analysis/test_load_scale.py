"""The benchmark of many runs, small."""

import csv
import json
import subprocess
import sys
from pathlib import Path

from amp_sweep import record
from analysis.compare import compare
from analysis.frame import load
from benchmarks.load_scale.made_up import make_runs

REPOSITORY = Path(__file__).parents[2]


def test_the_runs_that_it_makes_are_what_it_says(tmp_path: Path) -> None:
    written = make_runs(tmp_path, 200)
    files = record.find(tmp_path)
    assert len(files) == 200
    assert written == sum(path.stat().st_size for path in files)
    assert 8_000 < written / 200 < 15_000
    frame, problems = load(tmp_path)
    assert problems == []
    assert frame["status"].value_counts().to_dict() == {"completed": 198, "failed": 2}
    tables = compare(frame).tables
    assert [len(table.cells) for table in tables] == [9, 9, 9]
    assert {cell.runs for cell in tables[0].cells.values()} == {10}


def test_it_writes_what_it_measured_with_its_provenance(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.load_scale"),
            *("--runs", "20", "40", "--repeats", "1", "--out", str(tmp_path)),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "load-scale.md").read_text()
    assert "each run adds" in page and "pandas" in page and "load average" in page
    rows = list(csv.DictReader((tmp_path / "load-scale.csv").read_text().splitlines()))
    assert [(row["runs"], row["cache"]) for row in rows] == [
        ("20", "cold"),
        ("20", "warm"),
        ("40", "cold"),
        ("40", "warm"),
    ]
    assert all(float(row["both_s"]) > 0 for row in rows)
    assert json.loads(rows[0]["tables"]) == 1
