"""The HTTP surface: what OpenAI's clients expect, on top of Ray Serve LLM's ingress.

api_settings.py  limits and origins, read once
http_app.py    the FastAPI application: middleware, error handlers, and the table of routes
ingress.py     the handlers: they parse a body, ask a replica, and relay its answer
depth_routes.py  operators' routes: why a replica drafts as deep as it does, pins and bounds
body.py        bytes to a validated request, every mistake named
bounds/        what one request may hold, counted before anything that takes long begins
relay.py       a replica's answer as one JSON body or as server-sent events
dialects/      the Responses and Messages APIs, how each API writes streams and errors, and vLLM's words in ours
reply.py       OpenAI's error object
openai_errors.py  any exception as such an object, with the right status
middleware.py  request ids, counting, and the last catch for exceptions
clients/       API keys, their limits and what they use; loopback.py: routes for callers on the server's own machine
tries.py       how the tries at one request are told apart; waits.py: how long clients of a full model should wait
edge.py        the same care for what of Serve is before the ingress; traced.py: the first span
fleet_calls.py  questions to every replica: health and status
http_metrics.py  Prometheus text of the answers and of this process's requests
loop_watch.py  how late the event loop is
scraping.py    the routes that read it, and that have counting pause
"""
