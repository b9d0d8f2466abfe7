"""Waits until every model of a peagle server is ready, then requests a few tokens from each.

`ask.py URL TIMEOUT_S RELEASE NAMESPACE`; the last two are for the commands that it suggests after a timeout.
"""

import json
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml

KEYS = Path("/etc/peagle/keys")
POLL_S = 5.0
HINT_AFTER_S = 60.0


def key_in(text):
    """Return the first key of a keys file: YAML with a list `keys`, or one key per line; # begins a comment line."""
    try:
        entries = yaml.safe_load(text)["keys"]
    except (yaml.YAMLError, TypeError, LookupError):
        keys = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    else:
        keys = [str(entry["key"]) for entry in entries if "key" in entry]
    return keys[0] if keys else sys.exit(f"{KEYS}: it has no key that can be sent; a key_sha256 cannot be sent")


def ask(url, body=None):
    headers = {"content-type": "application/json"}
    if KEYS.exists():
        headers["authorization"] = f"Bearer {key_in(KEYS.read_text())}"
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=120) as answer:
        return json.load(answer)


def hint(error):
    if isinstance(getattr(error, "reason", None), socket.gaierror):
        return (
            "\nThere is no service of that name: KubeRay creates it when the application is running. "
            "`kubectl get rayservice,pods` shows the progress. If there are no Ray pods, check that the operator is "
            "running (kubectl get pods -A -l app.kubernetes.io/name=kuberay-operator). If the head waits for its "
            "application, check that networkPolicy.operatorNamespace is the operator's namespace."
        )
    return ""


def whys(release, namespace):
    """Return commands that explain pending pods; this pod itself may not call Kubernetes."""
    return (
        "\nIf a pod stays Pending, its events give the reason:\n"
        f"  kubectl describe pods -n {namespace} -l app.kubernetes.io/instance={release}\n"
        f"  peagle cluster status --release {release} -n {namespace}"
    )


def wait(url, timeout_s, why):
    began, told = time.monotonic(), False
    while True:
        try:
            return ask(f"{url}/health")
        except (urllib.error.URLError, OSError, ValueError) as error:
            waited_s = time.monotonic() - began
            if waited_s > timeout_s:
                sys.exit(f"{url}/health: not healthy after {timeout_s:.0f} s: {error}{hint(error)}{why}")
            print(f"waiting: {error}", flush=True)
            if waited_s > HINT_AFTER_S and not told:
                told = True
                print(why.lstrip(), flush=True)
        time.sleep(POLL_S)


def main(url, timeout_s, release, namespace):
    wait(url, timeout_s, whys(release, namespace))
    for model in ask(f"{url}/v1/models")["data"]:
        body = {"model": model["id"], "prompt": "def read_lines(path):", "max_tokens": 16, "temperature": 0}
        answer = ask(f"{url}/v1/completions", body)
        if not answer["usage"]["completion_tokens"]:
            sys.exit(f"{model['id']} answered without a token: {answer}")
        print(f"{model['id']}: {answer['choices'][0]['text']!r}")


main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
