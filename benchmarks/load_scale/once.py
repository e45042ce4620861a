"""One measurement, in a process of its own: `python -m benchmarks.load_scale.once FOLDER`.

Prints what it took as JSON. Little is imported before it begins: memory is of the whole process.
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure(sweep: Path) -> dict[str, Any]:
    """Load and compare once, in this process: seconds, CPU seconds, peak memory in MiB."""
    began = time.perf_counter()
    from analysis.compare import compare
    from analysis.frame import load

    imported, cpu_began, base = time.perf_counter(), time.process_time(), _peak_mib()
    frame, _ = load(sweep)
    loaded, cpu_loaded = time.perf_counter(), time.process_time()
    comparison = compare(frame)
    done, cpu_done, peak = time.perf_counter(), time.process_time(), _peak_mib()
    return {
        "runs": len(frame),
        "tables": len(comparison.tables),
        "import_s": imported - began,
        "load_s": loaded - imported,
        "compare_s": done - loaded,
        "both_s": done - imported,
        "load_cpu_s": cpu_loaded - cpu_began,
        "compare_cpu_s": cpu_done - cpu_loaded,
        "both_cpu_s": cpu_done - cpu_began,
        "peak_mib": peak,
        "above_mib": peak - base,
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
