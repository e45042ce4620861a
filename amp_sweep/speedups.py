"""Ways to the same training in less time, and which of them a cell can use here."""

from dataclasses import dataclass

from amp_sweep.config import RunConfig

# torch.compile's own modes; a CUDA graph, where wanted, is of the whole step and ours.
COMPILE_MODES = {"default": None, "max-autotune": "max-autotune-no-cudagraphs"}


@dataclass(frozen=True)
class Speedups:
    """What is on, once `auto` is decided."""

    compile: str = "off"
    cuda_graph: bool = False
    fused_layers: bool = False
    master_weights: bool = False


def choose(settings: RunConfig, device_type: str, backend: str | None) -> Speedups:
    """`auto` is what is fastest for this cell on this device; the rest is as asked.

    Over DataParallel, on a CPU and on MPS nothing is turned on: see `legality.impossible_here`.
    """
    memory, precision = settings.memory, settings.precision
    suits = device_type == "cuda" and settings.parallel.name != "dp"
    in_graph = (
        suits
        and backend != "gloo"
        and settings.data.pipeline == "resident"
        and settings.data.placement != "host"
    )
    half = (
        suits
        and precision.autocast
        and settings.optimizer.name == "adamw"
        and settings.optimizer.clip_norm is None
    )

    def decided(value: bool | str, auto: bool) -> bool:
        return auto if value == "auto" else bool(value)

    return Speedups(
        compile=("default" if suits else "off") if memory.compile == "auto" else memory.compile,
        cuda_graph=decided(memory.cuda_graph, in_graph),
        fused_layers=decided(memory.fused_layers, suits),
        master_weights=decided(memory.master_weights, half),
    )
