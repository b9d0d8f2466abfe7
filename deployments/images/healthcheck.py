"""Exit with 0 if the server answers and all its models do; `http.client` takes no notice of proxy variables."""

import http.client
import sys

connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=8)
connection.request("GET", "/health")
sys.exit(connection.getresponse().status != 200)
