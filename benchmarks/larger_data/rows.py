"""A row in fresh processes, its memory watched."""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.larger_data.cells import CELLS, cell_command, cell_result
from benchmarks.larger_data.inputs import INPUTS
from benchmarks.larger_data.memory import Memory
from benchmarks.larger_data.work import Work
from benchmarks.shared.children import REPOSITORY, environment

ROWS = (*INPUTS, *CELLS)
TIMEOUT_S = 400.0


def prepared_s(work: Work, cache: Path) -> float:
    """Seconds to prepare the folder for loader processes, in a process of its own."""
    began = time.perf_counter()
    code = (
        "import sys\nfrom amp_sweep.config import DataConfig\nfrom amp_sweep.data import prepare\n"
        "if __name__ == '__main__':\n"
        "    prepare(DataConfig(name='imagefolder', root=sys.argv[1], pipeline='loader'))\n"
    )
    with tempfile.TemporaryDirectory(prefix="larger-data-") as folder:
        script = Path(folder) / "prepare_folder.py"
        script.write_text(code, encoding="utf-8")
        subprocess.run(
            [sys.executable, str(script), work.root],
            env=environment(AMP_SWEEP_CACHE=str(cache)),
            check=True,
        )
    return time.perf_counter() - began


def run(name: str, work: Work, cache: Path) -> dict[str, Any]:
    """A row in fresh processes: its figures, or why there are none."""
    if name.endswith("_decode") and work.device != "cuda":
        return {"absent": "needs a CUDA device"}
    with tempfile.TemporaryDirectory(prefix="larger-data-") as out:
        command = [sys.executable, "-m", "benchmarks.larger_data.inputs", name]
        command += [json.dumps(asdict(work))]
        if name in CELLS:
            command = cell_command(name, work, Path(out))
        # To files: nobody reads while it runs, and a full pipe would stop it.
        with (Path(out) / "stdout").open("w+") as said, (Path(out) / "stderr").open("w+") as wrong:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment(AMP_SWEEP_CACHE=str(cache)),
                stdout=said,
                stderr=wrong,
                text=True,
            )
            memory = Memory(process.pid)
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()
                return {"absent": f"no end within {TIMEOUT_S:.0f} s"}
            finally:
                peaks = memory.end()
            said.seek(0)
            wrong.seek(0)
            lines = said.read().strip().splitlines()
            complaints = wrong.read().strip().splitlines()
        found: dict[str, Any] = {}
        if name in CELLS:
            found = cell_result(Path(out), name)
        elif not process.returncode and lines:
            found = json.loads(lines[-1])
        if not found:
            return {"absent": f"failed: {(complaints or lines or ['no output'])[-1][:300]}"}
        return {**found, **peaks}
