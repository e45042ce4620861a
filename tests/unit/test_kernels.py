import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from amp_sweep.fast import adamw
from tests.conftest import REPOSITORY, python_path

INTERPRETED = Path(__file__).with_name("kernels_interpreted.py")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")
def test_the_kernels_agree_with_pytorch_in_tritons_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, str(INTERPRETED)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=REPOSITORY,
        env={"PYTHONPATH": python_path(REPOSITORY), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_kernel_of_adamw_agrees_with_pytorch_on_the_device() -> None:
    torch.manual_seed(0)
    master = torch.randn(100_003, device="cuda")
    state = [master.half(), master, torch.zeros_like(master), torch.zeros_like(master)]
    again = [tensor.clone() for tensor in state]
    gradient = torch.randn_like(master).half()
    step, lr = torch.zeros((), device="cuda"), torch.tensor(1e-3, device="cuda")
    scalars = adamw.scalars(step, lr, None, None, 0.9, 0.999, 0.01)
    adamw.update(*state, gradient, scalars, 0.9, 0.999, 1e-8)
    adamw.update_reference(*again, gradient, scalars, 0.9, 0.999, 1e-8)
    assert torch.allclose(state[1], again[1], rtol=1e-6, atol=1e-7)
