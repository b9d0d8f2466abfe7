"""Ray in this process and below it, for tests that bring their own applications."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import psutil

from peagle.host import processes
from peagle.serve.launch import ray_cluster


@contextmanager
def local_ray() -> Iterator[None]:
    """A cluster while the block runs. None of its processes is left afterwards."""
    import ray
    from ray import serve

    others = set(processes.descendants())
    processes.adopt_orphans()
    with patch.dict(os.environ):  # later processes are not part of this cluster
        ray_cluster.prepare_environment()
        ray.init(address="local", include_dashboard=False, object_store_memory=ray_cluster.OBJECT_STORE_BYTES)
        try:
            yield
        finally:
            serve.shutdown()
            ray.shutdown()
            _, left = psutil.wait_procs(set(processes.descendants()) - others, timeout=10.0)
            processes.send(left, signal.SIGKILL)
