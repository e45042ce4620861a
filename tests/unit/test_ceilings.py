"""Ceilings: measured once, kept, and near what the device does when asked directly."""

import json
import time
from pathlib import Path

import pytest
import torch

from amp_sweep import ceilings

CPU = torch.device("cpu")


def test_a_ceiling_is_at_least_what_a_product_of_another_size_reaches(tmp_path: Path) -> None:
    found = ceilings.measured(CPU, "float32", tmp_path, device_name="cpu")
    one = torch.randn(300, 300)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        one @ one
        times.append(time.perf_counter() - started)
    # Other work on the machine disturbs both; an order of magnitude is a mistake in the formula.
    reached = 2 * 300**3 / min(times) / 1e12
    assert reached / 10 < found.tflops < reached * 10
    assert 0.1 < found.gb_per_s < 10_000


def test_it_is_measured_once_per_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ceilings.measured(CPU, "float32", tmp_path, device_name="cpu")
    (file,) = tmp_path.iterdir()
    assert set(json.loads(file.read_text())) == {"float32", "copy"}
    again = ceilings.measured(CPU, "float32", tmp_path, device_name="cpu")
    assert again == first
    monkeypatch.setattr(ceilings, "_CPU_SIDE", 64)
    other = ceilings.measured(CPU, "bfloat16", tmp_path, device_name="cpu")
    assert other.gb_per_s == first.gb_per_s
    assert set(json.loads(file.read_text())) == {"float32", "copy", "bfloat16"}


def test_a_ceiling_below_what_a_run_reached_is_measured_again(tmp_path: Path) -> None:
    ceilings.measured(CPU, "float32", tmp_path, device_name="cpu")
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps({"float32": 1e-9, "copy": 1.0}))  # from a busy machine
    kept = ceilings.measured(CPU, "float32", tmp_path, device_name="cpu", reached_tflops=1e-10)
    assert kept.tflops == 1e-9
    again = ceilings.measured(CPU, "float32", tmp_path, device_name="cpu", reached_tflops=1e-8)
    assert again.tflops > 1e-6 and again.gb_per_s == 1.0
    assert json.loads(file.read_text())["float32"] == again.tflops


@pytest.mark.parametrize(
    "content", ["", "[1, 2]", '{"float32": "fast", "copy": 3}', '{"copy": -1}']
)
def test_a_damaged_file_is_measured_anew(tmp_path: Path, content: str) -> None:
    first = ceilings.measured(CPU, "float32", tmp_path, device_name="cpu")
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    found = ceilings.measured(CPU, "float32", tmp_path, device_name="cpu")
    assert found.tflops > 0 and found.gb_per_s > 0
    assert first.tflops > 0
    assert json.loads(file.read_text())["float32"] == found.tflops


def test_other_devices_threads_and_drivers_have_files_of_their_own(tmp_path: Path) -> None:
    names = {
        ceilings._identity(CPU, "cpu", None),
        ceilings._identity(CPU, "another cpu", None),
        ceilings._identity(torch.device("cuda"), "NVIDIA H200", "580.1"),
        ceilings._identity(torch.device("cuda"), "NVIDIA H200", "590.1"),
    }
    assert len(names) == 4
    assert not {character for name in names for character in name} & set("/ ()")


def test_a_folder_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = ceilings.measured(CPU, "float32", tmp_path / "file", device_name="cpu")
    assert found.tflops > 0


@pytest.mark.parametrize(
    ("dtype", "tf32", "expected"),
    [
        (None, False, "float32"),
        (None, True, "tf32"),
        (torch.float16, True, "float16"),
        (torch.bfloat16, False, "bfloat16"),
    ],
)
def test_the_format_that_limits_a_step(
    dtype: torch.dtype | None, tf32: bool, expected: str
) -> None:
    assert ceilings.format_of(dtype, tf32) == expected
    assert expected in ceilings.FORMATS


def test_measuring_leaves_the_tf32_switch_as_it_was() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    with ceilings._tf32(not before):
        assert torch.backends.cuda.matmul.allow_tf32 is not before
    assert torch.backends.cuda.matmul.allow_tf32 is before
