"""The HTTP surface: what OpenAI's clients expect, on top of Ray Serve LLM's ingress.

settings.py    limits and origins, read once
app.py         the FastAPI application: middleware, error handlers, and the table of routes
ingress.py     the handlers: they parse a body, ask a replica, and relay its answer
body.py        bytes to a validated request, every mistake named
relay.py       a replica's answer as one JSON body or as server-sent events
reply.py       OpenAI's error object
errors.py      any exception as such an object, with the right status
middleware.py  request ids, counting, and the last catch for exceptions
edge.py        the same care for Serve's own proxy, in its process
fleet.py       questions to every replica: health and status
metrics.py     Prometheus text of the answers and of this process's requests
"""
