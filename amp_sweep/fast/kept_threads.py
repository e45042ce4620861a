"""DataParallel whose replicas run in threads that live on from step to step."""

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel


class KeptThreads(DataParallel[nn.Module]):
    """`torch.nn.DataParallel`, scattering, copying and gathering as it does, in kept threads.

    DataParallel starts a thread per replica at every forward pass. cuDNN's plans are kept per
    thread, so that each convolution is planned anew at every step, on the host: about a
    millisecond each. Here the first replica runs in the calling thread and each other one in a
    thread of its own that stays.
    """

    def __init__(self, module: nn.Module, devices: Sequence[torch.device]) -> None:
        super().__init__(module, device_ids=list(devices))
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix=f"replica{number}")
            for number in range(1, len(devices))
        ]

    def parallel_apply(
        self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any
    ) -> list[Any]:
        """Each replica's result on its inputs, in order.

        Raises what the first one of them that failed raised, when all have ended.
        """
        grad = torch.is_grad_enabled()
        devices = self.device_ids
        streams = [torch.cuda.current_stream(device) for device in devices]

        def run(number: int) -> Any:
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.set_grad_enabled(grad))
                if devices:  # none without CUDA
                    stack.enter_context(torch.cuda.device(devices[number]))
                    stack.enter_context(torch.cuda.stream(streams[number]))
                return replicas[number](*inputs[number], **kwargs[number])

        waiting = [
            thread.submit(run, number)
            for number, thread in enumerate(self._threads[: len(replicas) - 1], start=1)
        ]
        try:
            first = run(0)
        finally:  # nothing goes on behind the caller's back
            wait(waiting)
        return [first, *(result.result() for result in waiting)]
