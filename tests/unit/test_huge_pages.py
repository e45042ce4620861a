"""Large CPU tensors in pages of 2 MiB: set before PyTorch, honoured by it, told by the record."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from amp_sweep import forkserver, memory

NAME = "THP_MEM_ALLOC_ENABLE"

MAKES_A_TENSOR = """
import re
from pathlib import Path
import amp_sweep.huge_pages
import torch
from amp_sweep.memory import huge_pages
tensor = torch.ones(16 * 2**20)
found = re.search(r"AnonHugePages: *(\\d+) kB", Path("/proc/self/smaps_rollup").read_text())
print(huge_pages(), int(found[1]) >= 32 * 2**10)
"""


def made(**environment: str) -> str:
    others = {key: value for key, value in os.environ.items() if key != NAME}
    done = subprocess.run(
        [sys.executable, "-c", MAKES_A_TENSOR],
        env={**others, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_large_tensor_lies_in_huge_pages_unless_they_are_turned_off() -> None:
    file = memory._HUGE_PAGES
    if not file.exists() or "[madvise]" not in file.read_text():
        pytest.skip("this kernel does not have them on request")
    assert made() == "True True"
    assert made(**{NAME: "0"}) == "False False"


@pytest.mark.parametrize(
    ("modes", "asked", "found"),
    [
        ("always [madvise] never", "1", True),
        ("[always] madvise never", "1", True),
        ("always madvise [never]", "1", False),
        ("always [madvise] never", "0", False),
        ("always [madvise] never", None, False),
        (None, "1", False),
    ],
)
def test_they_are_told_where_kernel_and_pytorch_use_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    modes: str | None,
    asked: str | None,
    found: bool,
) -> None:
    file = tmp_path / "enabled"
    if modes is not None:
        file.write_text(f"{modes}\n")
    monkeypatch.setattr(memory, "_HUGE_PAGES", file)
    monkeypatch.delenv(NAME, raising=False)
    if asked is not None:
        monkeypatch.setenv(NAME, asked)
    assert memory.huge_pages() is found


@pytest.mark.parametrize("networks", [(), ("alexnet",)])
def test_the_server_sets_them_before_it_imports_pytorch(networks: tuple[str, ...]) -> None:
    assert forkserver._preload(networks)[0] == forkserver.FIRST == "amp_sweep.huge_pages"
