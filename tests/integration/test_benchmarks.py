"""The comparison with other loops runs on a CPU, small, and says what it did."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.slow
def test_the_benchmark_runs_on_a_cpu_and_writes_its_table(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--cpu", "--steps", "2", "--precision", "fp32",
         "--out", str(tmp_path)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    reached = {row["contender"]: row["results"][0].get("images_per_s") for row in results}
    assert set(reached) == {"bare", "ours", "article"}
    assert all(value and value > 0 for value in reached.values()), results
    table = (tmp_path / "table.md").read_text()
    assert "| ours | fp32 | 64 |" in table and "torch" in table
    assert table in done.stdout
