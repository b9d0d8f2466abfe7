"""Waits until a peagle server has every model ready, then asks each for a few tokens.

`ask.py URL TIMEOUT_S RELEASE NAMESPACE`; the last two are for the commands that it names where it waits for long.
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
    """The first key of a file of keys: YAML with a list `keys`, or one in a line; of lines, # begins a comment."""
    try:
        entries = yaml.safe_load(text)["keys"]
    except (yaml.YAMLError, TypeError, LookupError):
        keys = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    else:
        keys = [str(entry["key"]) for entry in entries if "key" in entry]
    return keys[0] if keys else sys.exit(f"{KEYS}: there is no key in it that can be sent; a key_sha256 cannot")


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
            "\nThere is no service of that name: KubeRay makes it when the application runs. "
            "`kubectl get rayservice,pods` shows how far it is. If there are no Ray pods, is the operator there "
            "(kubectl get pods -A -l app.kubernetes.io/name=kuberay-operator)? If the head waits for its application, "
            "does networkPolicy.operatorNamespace name the operator's namespace?"
        )
    return ""


def whys(release, namespace):
    """This pod may not ask Kubernetes, so it says how to."""
    return (
        "\nWhere a pod stays Pending, its events say why it has no node:\n"
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
                sys.exit(f"{url}/health: not well after {timeout_s:.0f} s: {error}{hint(error)}{why}")
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
            sys.exit(f"{model['id']} answered with no token: {answer}")
        print(f"{model['id']}: {answer['choices'][0]['text']!r}")


main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
