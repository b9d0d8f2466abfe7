"""Ray in this process and below it, for tests that bring their own applications."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from peagle.host import processes
from peagle.serve.launch import ray_cluster


@contextmanager
def local_ray() -> Iterator[None]:
    """A cluster for as long as the block lasts. No process of it is left afterwards."""
    import ray
    from ray import serve

    others = set(processes.descendants())  # such as a platform that tests of this session share
    ray_cluster.prepare_environment()
    processes.adopt_orphans()
    ray.init(address="local", include_dashboard=False, object_store_memory=ray_cluster.OBJECT_STORE_BYTES)
    try:
        yield
    finally:
        serve.shutdown()
        ray.shutdown()
        _, left = psutil.wait_procs(set(processes.descendants()) - others, timeout=10.0)
        processes.send(left, signal.SIGKILL)
