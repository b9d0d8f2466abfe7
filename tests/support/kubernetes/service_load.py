"""Asks a server all the time from a pod: `service_load.py URL CLIENTS`, until it gets SIGTERM.

Prints a line for each request that was not answered whole, and the totals at the end. Standard library only: the image
has no more.
"""

import itertools
import json
import signal
import sys
import threading
import time
import urllib.request

ENOUGH = threading.Event()
# Longer than the platform itself lets a request wait (api.request_timeout_s): whatever is lost, it has to say so.
TIMEOUT_S = 660.0
# Loss is what is looked for, not throughput: another replica has to start on the same machine meanwhile.
PAUSE_S = 0.5
BODY = {"model": "peagle-embedded", "prompt": "def read_lines(path):", "max_tokens": 48, "temperature": 0}


def ask(url, stream):
    """Raises where the answer is not whole. A connection for each request: that is where a lost Service shows."""
    data = json.dumps({**BODY, "stream": stream}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    if stream:
        assert text.rstrip().endswith("data: [DONE]"), f"a stream that ends with {text[-200:]!r}"
    else:
        assert json.loads(text)["usage"]["completion_tokens"], text


def keep_asking(url, stream, done_s):
    while not ENOUGH.is_set():
        began_s = time.monotonic()
        try:
            ask(url, stream)
        except Exception as error:
            took_s = time.monotonic() - began_s
            print(f"lost after {took_s:.1f} s at {time.strftime('%X')}: {type(error).__name__}: {error}", flush=True)
        else:
            if not done_s:
                print("answered", flush=True)
            done_s.append(time.monotonic())
        ENOUGH.wait(PAUSE_S)


def main(url, clients):
    signal.signal(signal.SIGTERM, lambda *_: ENOUGH.set())
    began_s, done_s = time.monotonic(), []
    threads = [threading.Thread(target=keep_asking, args=(url, place % 2 == 1, done_s)) for place in range(clients)]
    for thread in threads:
        thread.start()
    ENOUGH.wait()
    ended_s = time.monotonic()
    for thread in threads:
        thread.join()
    times_s = sorted([began_s, *done_s, ended_s])
    gap_s = max((after - before for before, after in itertools.pairwise(times_s)), default=0.0)
    print("in all", json.dumps({"answered": len(done_s), "longest_gap_s": round(gap_s, 1)}), flush=True)


main(sys.argv[1], int(sys.argv[2]))
