"""A server in its own thread, for clients in other event loops, threads and processes."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from aiohttp import web
from aiohttp.test_utils import TestServer

from support.waiting import PATIENCE_S


@contextmanager
def serving(app: web.Application) -> Iterator[str]:
    """Its address, while it runs."""
    loop, over = asyncio.new_event_loop(), asyncio.Event()
    address: SimpleQueue[str] = SimpleQueue()

    async def serve() -> None:
        async with TestServer(app) as server:
            address.put(str(server.make_url("")).rstrip("/"))
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield address.get(timeout=PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
