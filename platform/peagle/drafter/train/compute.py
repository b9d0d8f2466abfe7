"""Where training runs: its device, and the processes that share the rows of a step.

`torchrun` starts the processes and tells each, in its environment, which one it is; without it there is one. All of
them hold the same weights and take the same steps; what one alone does, the process of rank 0 does.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import distributed

from peagle.errors import ConfigError, PeagleError
from peagle.host.machine_limits import available_memory_bytes

DeviceName = Literal["auto", "cpu", "cuda"]
CPU = torch.device("cpu")

T = TypeVar("T")


@contextmanager
def autocast(device: torch.device) -> Iterator[None]:
    """What a head's passes run in: bfloat16, its weights stay in float32.

    Where there is a GPU, speculators compiles its passes, and would do so anew for every number of sampled positions:
    not here.
    """
    with torch.compiler.set_stance("force_eager"), torch.autocast(device.type, torch.bfloat16):
        yield


def target_dtype(device: torch.device) -> torch.dtype:
    """What a target's weights are held in: a large one's would fill a GPU in float32."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@dataclass(frozen=True, slots=True)
class Compute:
    """One of `processes` that train together, of which `local_processes` are on this machine."""

    device: torch.device = CPU
    rank: int = 0
    processes: int = 1
    local_processes: int = 1

    @property
    def leads(self) -> bool:
        """Whether it is this one that writes and reports."""
        return self.rank == 0

    @property
    def memory_bytes(self) -> int:
        """What is left for this process: of its GPU's memory, or its share of the machine's."""
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            return free
        return available_memory_bytes() // self.local_processes

    def share(self, rows: Sequence[T]) -> list[tuple[int, T]]:
        """Its own rows of a step, each with its number among all; there may be none."""
        return list(enumerate(rows))[self.rank :: self.processes]

    def agree(self, check: Callable[[], T]) -> T:
        """What `check` returns. Where it fails in one process, it fails in all: none waits for one that has left.

        Raises the ConfigError of the first process that has one.
        """
        try:
            found, error = check(), None
        except ConfigError as raised:
            found, error = None, raised
        for each in self.gather(error):
            if each is not None:
                raise each
        return found  # type: ignore[return-value]  # there was no error

    def gather(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        if self.processes == 1:
            return [value]
        values: list[T] = [value] * self.processes
        distributed.all_gather_object(values, value)
        return values

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums of what the processes give, number by number."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.processes > 1:
            distributed.all_reduce(total)
        return [float(each) for each in total.tolist()]

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Give each parameter the sum of its gradients; one without counts as zeros, however many processes there are.

        So that a parameter that no row of a process reached is updated as it is in one process.
        """
        under_way = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if self.processes > 1:
                under_way.append(distributed.all_reduce(parameter.grad, async_op=True))
        for each in under_way:
            each.wait()

    def spread(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Give every process the weights of the first."""
        if self.processes > 1:
            for parameter in parameters:
                distributed.broadcast(parameter.detach(), src=0)

    def wait(self) -> None:
        """Until all processes have come here."""
        if self.processes > 1:
            distributed.barrier()


ALONE = Compute()


def device_of(wanted: DeviceName, field: str) -> torch.device:
    """The device to use: with `auto` a GPU where there is one. Under `torchrun` each process of a machine has its own.

    Raises ConfigError of `field` where there is no GPU, or none for this process.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return CPU
    if not torch.cuda.is_available():
        problem = "PyTorch sees no GPU on this machine"
        raise ConfigError(field, wanted, problem, "Write cpu or auto, or install a PyTorch that is built for the GPU.")
    rank, count = _stated("LOCAL_RANK", 0), torch.cuda.device_count()
    if rank >= count:
        problem = f"{_stated('LOCAL_WORLD_SIZE', 1)} processes run on a machine with {count} GPUs"
        raise ConfigError(field, wanted, problem, f"Give torchrun --nproc-per-node {count}, or write cpu.")
    return torch.device("cuda", rank)


@contextmanager
def joined(wanted: DeviceName, field: str) -> Iterator[Compute]:
    """Join the processes that `torchrun` started, and part from them at the end; raise what `device_of` does."""
    device = device_of(wanted, field)
    compute = Compute(device, _stated("RANK", 0), _stated("WORLD_SIZE", 1), _stated("LOCAL_WORLD_SIZE", 1))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if compute.processes == 1:
        yield compute
        return
    if device.type == "cuda":
        distributed.init_process_group("nccl", device_id=device)
    else:
        distributed.init_process_group("gloo")
    alone = False
    try:
        yield compute
    except PeagleError:  # agreed on: every process is here
        raise
    except BaseException:
        alone = True
        raise
    finally:
        # NCCL would wait for the others, which wait for this process until torchrun sees it end.
        if not alone or device.type == "cpu":
            distributed.destroy_process_group()


def _stated(name: str, default: int) -> int:
    return int(os.environ.get(name, default))
