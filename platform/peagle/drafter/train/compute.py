"""Device of training, and the processes that share the rows of a step.

`torchrun` starts the processes and sets each one's rank in its environment; without it there is a single process. All
processes hold the same weights and take the same steps. The process of rank 0 does what only one process must do.
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
    """Context of a head's passes: bfloat16, with weights in float32.

    On a GPU, speculators compiles its passes, and would compile again for every number of sampled positions, so this
    disables compilation.
    """
    with torch.compiler.set_stance("force_eager"), torch.autocast(device.type, torch.bfloat16):
        yield


def target_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of a target's weights: in float32 a large target would fill a GPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@dataclass(frozen=True, slots=True)
class Compute:
    """One of `processes` that train together, `local_processes` of them on this machine."""

    device: torch.device = CPU
    rank: int = 0
    processes: int = 1
    local_processes: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    @property
    def memory_bytes(self) -> int:
        """Memory available to this process: of its GPU, or its share of the machine's."""
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            return free
        return available_memory_bytes() // self.local_processes

    def share(self, rows: Sequence[T]) -> list[tuple[int, T]]:
        """Return this process's rows of a step, each with its index among all; may be empty."""
        return list(enumerate(rows))[self.rank :: self.processes]

    def agree(self, check: Callable[[], T]) -> T:
        """Return the result of `check`. If it fails in one process, it fails in all, so that none waits for another.

        Raises the first process's ConfigError.
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
        """Return the values of all processes, by rank."""
        if self.processes == 1:
            return [value]
        values: list[T] = [value] * self.processes
        distributed.all_gather_object(values, value)
        return values

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum the processes' values elementwise."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.processes > 1:
            distributed.all_reduce(total)
        return [float(each) for each in total.tolist()]

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum each parameter's gradient over the processes; a missing gradient counts as zeros in every case.

        So a parameter without a gradient in some process is updated as in a single process.
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
        """Give every process the weights of rank 0."""
        if self.processes > 1:
            for parameter in parameters:
                distributed.broadcast(parameter.detach(), src=0)

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.processes > 1:
            distributed.barrier()


ALONE = Compute()


def device_of(wanted: DeviceName, field: str) -> torch.device:
    """Return the device to use: for `auto` a GPU if there is one. With `torchrun` each local process has its own.

    Raises ConfigError for `field` if there is no GPU, or none for this process.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return CPU
    if not torch.cuda.is_available():
        problem = "PyTorch sees no GPU on this machine"
        raise ConfigError(field, wanted, problem, "Write cpu or auto, or install a PyTorch with GPU support.")
    rank, count = _stated("LOCAL_RANK", 0), torch.cuda.device_count()
    if rank >= count:
        problem = f"{_stated('LOCAL_WORLD_SIZE', 1)} processes run on a machine with {count} GPUs"
        raise ConfigError(field, wanted, problem, f"Give torchrun --nproc-per-node {count}, or write cpu.")
    return torch.device("cuda", rank)


@contextmanager
def joined(wanted: DeviceName, field: str) -> Iterator[Compute]:
    """Join the processes that `torchrun` started, and leave them at the end; raises the same errors as `device_of`."""
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
    except PeagleError:  # raised by all processes together
        raise
    except BaseException:
        alone = True
        raise
    finally:
        # NCCL would wait for the others, which wait for this process until torchrun detects its end.
        if not alone or device.type == "cpu":
            distributed.destroy_process_group()


def _stated(name: str, default: int) -> int:
    return int(os.environ.get(name, default))
