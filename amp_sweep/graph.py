"""A whole training step as one CUDA graph: the host launches it with a single call."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# Real steps before the capture: what is made lazily must be made (PyTorch's guide to CUDA graphs).
WARM_UP_STEPS = 3
# DistributedDataParallel settles its buckets and its logging in the first ten.
WARM_UP_STEPS_DDP = 11

# Trains on the rows `indices` [b]; gives the loss [1] and, with a scaler, the scale [1] after the
# step. What it reads must live as long as the graph: the graph knows addresses, not tensors.
Step = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class StepGraph:
    """Repeats a step over a table of indices, from a CUDA graph once it has run some times.

    A graph replays fixed addresses: the table, the place in it and the results are tensors that
    stay where they are, and the step itself moves on to the next row. The warm-up steps are steps
    of the training like any other, so nothing has to be taken back.
    """

    def __init__(self, batch: int, capacity: int, device: torch.device, warm_up: int) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._rows = torch.zeros((capacity, batch), dtype=torch.int64, device=device)
        self._row = torch.zeros(1, dtype=torch.int64, device=device)
        self._losses = torch.zeros(capacity, device=device)
        self._scales = torch.ones(capacity, device=device)
        self._left = warm_up
        self._graph: torch.cuda.CUDAGraph | None = None

    @contextlib.contextmanager
    def on_its_stream(self) -> Iterator[None]:
        """Run on the stream of the capture: gradients are accumulated where they were first."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def load(self, indices: Tensor) -> None:
        """Begin with the first row of `indices` [steps, b], on the CPU."""
        self._rows[: len(indices)].copy_(indices.pin_memory(), non_blocking=True)
        self._row.zero_()

    def run(self, step: Step) -> None:
        """The next row's step."""
        if self._graph is None and self._left > 0:
            self._left -= 1
            with self.on_its_stream():
                self._body(step)
            return
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            # NCCL's watchdog asks for events on another thread while this one captures.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._body(step)
            self._graph = graph
        self._graph.replay()

    def results(self, steps: int) -> tuple[Tensor, Tensor]:
        """Losses [steps] and scales [steps] since `load`."""
        return self._losses[:steps].clone(), self._scales[:steps].clone()

    def close(self) -> None:
        """Give the graph up: a rank can leave NCCL only when no graph holds its work."""
        if self._graph is not None:
            torch.cuda.synchronize()
            self._graph.reset()
            self._graph = None

    def _body(self, step: Step) -> None:
        loss, scale = step(self._rows.index_select(0, self._row).view(-1))
        self._losses.index_copy_(0, self._row, loss)
        if scale is not None:
            self._scales.index_copy_(0, self._row, scale)
        self._row += 1
