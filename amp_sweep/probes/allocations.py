"""What one step takes and gives back, told by the CUDA allocator or by tensors on a CPU."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from amp_sweep.probes.attribution import Event, Mark, Operation, Trace

# The CUDA allocator hands out blocks in multiples of this (c10/cuda/CUDACachingAllocator.cpp).
CUDA_BLOCK = 512

# More than a step of a large network takes; a bound for the allocator's own list.
MAX_EVENTS = 1_000_000


class Recorder(Protocol):
    """Records the events of some devices; `traces` holds them in the devices' order."""

    traces: list[Trace]

    def moment(self, place: int) -> int:
        """Events so far on the device at `place`."""

    def operations(self) -> contextlib.AbstractContextManager[Any]:
        """Inside it, each operation is told from the next."""

    def finish(self) -> None:
        """The step and its release of workspaces are over: complete the traces."""


def tensors(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among nested values."""
    return [item for item in tree_leaves(list(values)) if isinstance(item, Tensor)]


def mark(recorder: Recorder, devices: Sequence[torch.device], kind: str, values: Any) -> None:
    """Say that the tensors in `values` are of this kind now."""
    for tensor in tensors(values):
        if tensor.device in devices:
            place = devices.index(tensor.device)
            offset = int(tensor.storage_offset()) * tensor.element_size()
            address = tensor.untyped_storage().data_ptr() + offset
            recorder.traces[place].marks.append(Mark(recorder.moment(place), address, kind))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls `around` for every operation that reaches the devices, in backward passes too."""

    def __init__(self, around: Callable[[Callable[[], Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._around = around

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._around(lambda: func(*args, **(kwargs or {})))


class CudaRecorder:
    """The caching allocator's own trace. Only one at a time: it is a switch of the process."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._indices = [int(device.index) for device in devices]
        self.traces = [Trace() for _ in devices]
        self._start: list[int] = []
        self._before: list[int] = []

    def __enter__(self) -> "CudaRecorder":
        torch.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=MAX_EVENTS
        )
        snapshot = torch.cuda.memory._snapshot()
        for place, index in enumerate(self._indices):
            self.traces[place].there = [
                (block["address"], block["size"])
                for segment in snapshot["segments"]
                if segment["device"] == index
                for block in segment["blocks"]
                if block["state"] == "active_allocated"
            ]
        self._before = [len(_taken_or_given(snapshot, index)) for index in self._indices]
        self._start = [self._count(index) for index in self._indices]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        torch.cuda.memory._record_memory_history(enabled=None)

    @staticmethod
    def _count(index: int) -> int:
        found = torch._C._cuda_memoryStats(index)["allocation"]["all"]
        return int(found["allocated"]) + int(found["freed"])

    def moment(self, place: int) -> int:
        """Events so far on the device at `place`."""
        return self._count(self._indices[place]) - self._start[place]

    def operations(self) -> contextlib.AbstractContextManager[Any]:
        """Inside it, each operation is told from the next."""

        def around(run: Callable[[], Any]) -> Any:
            begin = [self.moment(place) for place in range(len(self._indices))]
            results = run()
            handed_out = tensors([results])
            for place, index in enumerate(self._indices):
                end = self.moment(place)
                if end > begin[place]:
                    addresses = frozenset(
                        tensor.untyped_storage().data_ptr()
                        for tensor in handed_out
                        if tensor.is_cuda and tensor.device.index == index
                    )
                    operation = Operation(begin[place], end, addresses)
                    self.traces[place].operations.append(operation)
            return results

        return _Operations(around)

    def finish(self) -> None:
        """Have libraries give their workspaces back, and read what the allocator recorded."""
        torch._C._cuda_clearCublasWorkspaces()
        snapshot = torch.cuda.memory._snapshot()
        for place, index in enumerate(self._indices):
            self.traces[place].events = [
                Event(
                    entry["action"] == "alloc",
                    entry["addr"],
                    -(-entry["size"] // CUDA_BLOCK) * CUDA_BLOCK,
                )
                for entry in _taken_or_given(snapshot, index)[self._before[place] :]
            ]


def _taken_or_given(snapshot: Any, index: int) -> list[dict[str, Any]]:
    """A device's events that the counters of `moment` count: freeing is one when asked for."""
    trace = snapshot["device_traces"][index]
    return [entry for entry in trace if entry["action"] in ("alloc", "free_requested")]


class TensorRecorder:
    """Storages of tensors on a CPU, as operations make them and their last user drops them.

    What an operation takes and gives back inside is not seen.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._trace = Trace()
        self.traces = [self._trace]
        self._alive: dict[int, tuple[StorageWeakRef, int, int]] = {}

    def __enter__(self) -> "TensorRecorder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._alive.clear()

    def moment(self, place: int) -> int:
        """Events so far."""
        self._drop_expired()
        return len(self._trace.events)

    def there(self, values: Any) -> None:
        """Tensors that were there before the step."""
        for tensor in tensors(values):
            block = self._enter(tensor)
            if block is not None:
                self._trace.there.append(block)

    def operations(self) -> contextlib.AbstractContextManager[Any]:
        """Inside it, each operation is told from the next."""

        def around(run: Callable[[], Any]) -> Any:
            self._drop_expired()
            results = run()
            for tensor in tensors([results]):
                block = self._enter(tensor)
                if block is not None:
                    self._trace.events.append(Event(True, *block))
            return results

        return _Operations(around)

    def finish(self) -> None:
        """Note what was dropped last."""
        self._drop_expired()

    def _enter(self, tensor: Tensor) -> tuple[int, int] | None:
        if tensor.device != self._device:
            return None
        storage = tensor.untyped_storage()
        if storage._cdata in self._alive or storage.nbytes() == 0:
            return None
        block = (storage.data_ptr(), storage.nbytes())
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._alive[storage._cdata] = (reference, *block)
        return block

    def _drop_expired(self) -> None:
        for key, (reference, address, size) in list(self._alive.items()):
            if reference.expired():  # type: ignore[no-untyped-call]
                del self._alive[key]
                self._trace.events.append(Event(False, address, size))


@contextlib.contextmanager
def recorder_for(devices: Sequence[torch.device]) -> Iterator[CudaRecorder | TensorRecorder]:
    """A recorder for CUDA devices, or for the CPU."""
    if devices[0].type == "cuda":
        with CudaRecorder(devices) as cuda:
            yield cuda
    else:
        with TensorRecorder(devices[0]) as host:
            yield host
