"""Clients: who a request's API key is, what its limits leave, and what it has used.

keys.py          the middleware that asks for a key; the file is read again while the server runs
keys_file.py     the file's two forms
request_charge.py  what one request takes: what is expected of it, and what it really used
client_header.py  how a replica is told whose request it is
metered_replies.py  a replica's replies, from which that is read
client_limits.py asks the Router whether a request is within its client's limits
usage_routes.py  both for an ingress, and the route that tells what clients used
"""
