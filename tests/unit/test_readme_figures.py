"""The README quotes what the committed records say."""

import re
from pathlib import Path

from amp_sweep import record

ROOT = Path(__file__).parents[2]


def test_the_figures_of_the_articles_settings_are_those_of_the_committed_records() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = record.find(ROOT / "benchmarks" / "results" / "article-h200")
    runs = {run.cell["precision"]: run for run in map(record.read, found)}
    baseline = runs["fp32"].metrics["images_per_s"]
    quoted = dict(re.findall(r"^\| (fp32|autocast|scaler) \| (.+) \|$", readme, re.MULTILINE))
    assert set(quoted) == set(runs) == {"fp32", "autocast", "scaler"}
    for precision, cells in quoted.items():
        metrics = runs[precision].metrics
        assert cells.split(" | ")[:5] == [
            record.duration(metrics["train_time_s"]),
            f"{metrics['images_per_s']:,.0f}",
            f"{metrics['images_per_s'] / baseline:.2f}x",
            f"{max(metrics['peak_allocated_mib']):,.0f} MiB",
            f"{metrics['test_accuracy']:.4f}",
        ]
