"""Build one rank's part of a cell, in a fixed and visible order."""

import contextlib
import dataclasses
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from amp_sweep import (
    config,
    data,
    engine,
    generators,
    memory,
    models,
    optim,
    parallel,
    precision,
    source,
    speedups,
)
from amp_sweep.config import RunConfig
from amp_sweep.fast import kept_threads, master_weights, space_to_depth
from amp_sweep.graph import WARM_UP_STEPS, WARM_UP_STEPS_DDP, StepGraph
from amp_sweep.hardware import cpu_name, usable_cores
from amp_sweep.messages import Plan, RankJob
from amp_sweep.paths import RunPaths

AFTER_THE_GUARD_S = 15.0


class Invalid(Exception):
    """What would run, or did run, is not what was asked for."""


class WrongOutputs(Invalid):
    """The network does not give a row of logits per image."""

    def __init__(self, message: str) -> None:
        # DataParallel raises it anew with the traceback of its thread around the words.
        super().__init__(message.rpartition(f"{type(self).__name__}: ")[2].strip())


@dataclass
class Cell:
    """One rank's view of its cell: everything built, nothing trained yet."""

    config: RunConfig
    paths: RunPaths
    job: RankJob
    ranks: parallel.Ranks
    devices: list[torch.device]
    threads: int
    channels_last: bool
    autocast_dtype: torch.dtype | None
    prepared: data.Prepared
    train: data.Split
    test: data.Split
    outputs: int  # logits of the network
    code_digest: str | None  # of the person's own code, see `source`
    speedups: speedups.Speedups
    network: nn.Module
    loss: precision.ClassifierLoss  # unwrapped
    trainer: engine.Trainer  # around the wrapped loss
    scheduler: LRScheduler

    @property
    def device(self) -> torch.device:
        """This rank's first device."""
        return self.devices[0]

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch; the incomplete last batch is dropped."""
        return self.prepared.train_count // self.job.plan.global_batch

    def device_name(self, device: torch.device) -> str:
        """The model name of one of this rank's devices."""
        return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()

    def weights(self) -> dict[str, Tensor]:
        """The network's state_dict, in float32 also where its layers hold half precision."""
        optimizer = self.trainer.optimizer
        if isinstance(optimizer, master_weights.MasterAdamW):
            return master_weights.float32_state(self.network, optimizer.masters())
        return self.network.state_dict()

    @property
    def eval_batch(self) -> int:
        """Images per evaluation batch: the same in every cell."""
        return self.config.data.eval_batch_size or self.config.data.batch_size


def rank_seed(seed: int, rank: int) -> int:
    """A seed for what ranks must draw differently (dropout), from the run's seed."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{rank}".encode()).digest()[:7], "big")


def outputs_of(settings: RunConfig, classes: int) -> int:
    """How many logits the network gives. Raises Invalid when they are fewer than the classes."""
    outputs = classes if settings.model.outputs == "auto" else int(settings.model.outputs)
    if outputs < classes:
        raise Invalid(f"model.outputs={outputs}, and the data has {classes} classes")
    return outputs


def check_first_outputs(network: nn.Module, name: str, outputs: int) -> None:
    """Have the first forward pass raise WrongOutputs unless it gives logits [B, outputs].

    Before its loss: a label beyond the logits would end a CUDA process without a word about it.
    Later passes are not looked at.
    """

    def look(_network: nn.Module, inputs: tuple[Tensor, ...], result: object) -> None:
        with contextlib.suppress(KeyError):  # another replica's thread was sooner
            handle.remove()
        expected = [len(inputs[0]), outputs]
        got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        if got == expected:
            return
        words = f"model.name={name}: the network's logits: expected {expected}, got {got}"
        if isinstance(got, list) and len(got) == 2 and got[1] > outputs:
            words += f" (model.outputs={got[1]} asks for that many)"
        raise WrongOutputs(words)

    handle = network.register_forward_hook(look)


def build(job: RankJob, paths: RunPaths, ranks: parallel.Ranks) -> Cell:
    """Everything a rank trains with. Its weights are the same on every rank of every cell."""
    settings = config.load(paths.config)
    plan = job.plan

    threads = max(1, usable_cores() // job.local_world_size)
    torch.set_num_threads(threads)
    precision.set_tf32(settings.precision.tf32)

    devices = parallel.rank_devices(plan, ranks.local_rank)
    # Autograd has a thread for each GPU, which serves a rank of several. With one GPU, handing each
    # backward pass over to another thread only keeps the host, and the GPU waits for that.
    torch.autograd.set_multithreading_enabled(len(devices) > 1)
    if devices[0].type == "cuda":
        torch.cuda.set_device(devices[0])
    memory.reset_peaks(devices)
    if plan.backend is not None:
        port = int(os.environ["MASTER_PORT"])
        # Longer than the stall guard's, whose word for a hang is plainer than a collective's.
        timeout_s = settings.launch.stall_timeout_s + AFTER_THE_GUARD_S
        ranks.join(plan.backend, job.host, port, timeout_s)

    channels_last = memory.use_channels_last(settings.memory.format, plan.device_type)
    prepared = data.open_prepared(Path(job.prepared))
    try:
        train, test = (
            data.open_split(prepared, part, settings.data, devices[0], channels_last)
            for part in ("train", "test")
        )
    except data.Unsupported as error:
        raise Invalid(str(error)) from error

    chosen = _choose(settings, plan, ranks, train, devices)
    # DataParallel starts threads anew at each step, and cudnn's benchmark remembers per thread.
    torch.backends.cudnn.benchmark = settings.parallel.name != "dp" or chosen.keep_threads

    outputs = outputs_of(settings, len(prepared.classes))
    torch.manual_seed(settings.seed)
    generators.seed_others(settings.seed)
    network = models.build(
        settings.model.name,
        outputs,
        width=settings.model.width,
        dropout=settings.model.dropout,
    )
    code_digest = source.code_digest(source.own_callables(settings))  # as it was just imported
    if chosen.space_to_depth:
        network = space_to_depth.convert(network)
    network = network.to(devices[0]).to(memory_format=memory.memory_format(channels_last))
    dtype = precision.autocast_dtype(
        settings.precision.autocast, settings.precision.dtype, plan.device_type
    )
    loss = precision.ClassifierLoss(network, plan.device_type, dtype)
    masters = None
    if chosen.master_weights and dtype is not None:
        masters = master_weights.halve(network, dtype)
    graph = None
    if chosen.cuda_graph:
        if train.placement != "device":
            raise Invalid("memory.cuda_graph needs the images on the device; they do not fit there")
        warm_up = WARM_UP_STEPS_DDP if settings.parallel.name == "ddp" else WARM_UP_STEPS
        steps = prepared.train_count // plan.global_batch
        graph = StepGraph(plan.rank_batch, steps, devices[0], warm_up)
    with graph.on_its_stream() if graph else contextlib.nullcontext():
        if chosen.keep_threads:
            wrapped: nn.Module = kept_threads.KeptThreads(loss, devices)
        else:
            wrapped = parallel.wrap(
                loss,
                settings.parallel.name,
                devices,
                sync_batch_norm=settings.parallel.sync_batch_norm,
                find_unused_parameters=settings.parallel.find_unused_parameters,
            )
    if chosen.compile != "off":
        _compile(wrapped, train, speedups.COMPILE_MODES[chosen.compile])
    parameters = list(loss.parameters())
    optimizer = (
        optim.build_optimizer(
            parameters, settings.optimizer, devices[0], in_graph=chosen.cuda_graph
        )
        if masters is None
        else master_weights.build_optimizer(parameters, masters, settings.optimizer)
    )
    scheduler = optim.build_scheduler(optimizer, settings.scheduler, settings.epochs)
    scaler = precision.make_scaler(
        settings.precision.scaler,
        plan.device_type,
        settings.precision.init_scale,
        settings.precision.growth_interval,
    )
    if scaler.is_enabled() != settings.precision.scaler:
        raise Invalid(f"the gradient scaler disabled itself on {plan.device_type}")
    check_first_outputs(network, settings.model.name, outputs)
    parallel.seed_dropout(devices, rank_seed(settings.seed, ranks.rank))
    generators.seed_others(rank_seed(settings.seed, ranks.rank))
    return Cell(
        config=settings,
        paths=paths,
        job=job,
        ranks=ranks,
        devices=devices,
        threads=threads,
        channels_last=channels_last,
        autocast_dtype=dtype,
        prepared=prepared,
        train=train,
        test=test,
        outputs=outputs,
        code_digest=code_digest,
        speedups=chosen,
        network=network,
        loss=loss,
        trainer=engine.Trainer(
            wrapped, parameters, optimizer, scaler, settings.optimizer.clip_norm, graph
        ),
        scheduler=scheduler,
    )


def _choose(
    settings: RunConfig,
    plan: Plan,
    ranks: parallel.Ranks,
    train: data.Split,
    devices: list[torch.device],
) -> speedups.Speedups:
    """The same on every rank, though one's device may have less room than another's."""
    here = (
        train.placement == "device",
        devices[0].type == "cuda"
        and all(torch.cuda.get_device_capability(d) >= speedups.TRITON_FROM for d in devices),
    )
    on_device, triton = (all(values) for values in zip(*ranks.gather(here), strict=True))
    chosen = speedups.choose(settings, plan.device_type, images_on_device=on_device, triton=triton)
    return dataclasses.replace(chosen, keep_threads=chosen.keep_threads and plan.replicas > 1)


def _compile(wrapped: nn.Module, train: data.Split, mode: str | None) -> None:
    """Have `wrapped` compiled with its input when it is first called.

    In place, so that it stays what it is. As a whole, also under DDP: there PyTorch splits the
    region where DDP's buckets of gradients end, so that one is on its way while the next is
    computed. (Children compiled one by one stay as they are where a child is PyTorch's own
    container: PyTorch 2.11 steps over its code.)
    """
    train.compile(mode)
    wrapped.compile(mode=mode, dynamic=False)
