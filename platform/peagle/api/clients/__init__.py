"""Clients: API keys, their limits and their usage.

keys.py          the middleware that requires a key; the file is read again while the server runs
keys_file.py     the file's two formats
request_charge.py  token cost of one request, expected and actual
client_header.py  the header that names the client to a replica
metered_replies.py  reads a request's usage from a replica's replies
client_limits.py asks the Router whether a request is within its client's limits
usage_routes.py  charging for an ingress, and the route that reports usage
"""
