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
    space_to_depth: bool = False
    master_weights: bool = False
    keep_threads: bool = False


# The compute capability of CUDA devices from which Triton compiles for them.
TRITON_FROM = (7, 0)


def choose(
    settings: RunConfig, device_type: str, *, images_on_device: bool, triton: bool
) -> Speedups:
    """`auto` is what was measured to be fastest (dp's threads: expected); the rest is as asked.

    Launched kernel by kernel a step waits for the host, and compiled code or more layers only add
    to that: they come on together with a graph. `images_on_device` and `triton` (it compiles for
    these devices) must hold on every rank.
    """
    memory, precision = settings.memory, settings.precision
    cuda = device_type == "cuda"
    in_graph = (
        cuda
        and settings.parallel.name != "dp"
        and settings.parallel.backend != "gloo"
        and not settings.parallel.find_unused_parameters
        and images_on_device
        and triton
    )
    half = (
        cuda
        and triton
        and settings.parallel.name != "dp"
        and precision.autocast
        and settings.optimizer.name == "adamw"
        and settings.optimizer.clip_norm is None
    )

    def decided(value: bool | str, auto: bool) -> bool:
        return auto if value == "auto" else bool(value)

    return Speedups(
        compile=("default" if in_graph else "off") if memory.compile == "auto" else memory.compile,
        cuda_graph=decided(memory.cuda_graph, in_graph),
        space_to_depth=decided(memory.space_to_depth, in_graph),
        master_weights=decided(memory.master_weights, half),
        keep_threads=decided(memory.keep_threads, cuda and settings.parallel.name == "dp"),
    )
