"""Exit with 0 if the server answers and all its models do; `http.client` takes no notice of proxy variables."""

import http.client
import sys

for port in (8000, 8080):  # of `peagle serve`, and of SageMaker
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=8)
    try:
        connection.request("GET", "/health")
    except ConnectionRefusedError:
        continue
    sys.exit(connection.getresponse().status != 200)
sys.exit(1)
