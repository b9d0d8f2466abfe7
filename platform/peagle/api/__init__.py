"""The HTTP surface: OpenAI's API on top of Ray Serve LLM's ingress.

api_settings.py  limits and origins, read once
http_app.py    the FastAPI application: middleware, error handlers, and the table of routes
ingress.py     the handlers: they parse a body, call a replica, and relay its answer
depth_routes.py  operator routes: a replica's draft depth, pins and bounds
body.py        bytes to a validated request, with errors that name the field
bounds/        size limits of one request, checked before any expensive work
relay.py       a replica's answer as one JSON body or as server-sent events
dialects/      the Responses and Messages APIs, stream and error formats of each API, translation of vLLM's messages
reply.py       OpenAI's error object
openai_errors.py  exceptions as error objects, with the right status
middleware.py  request ids, counting, and the last exception handler
clients/       API keys, their limits and usage; loopback.py: routes for callers on the server's own machine
tries.py       the tries at one request; waits.py: how long clients of a full model should wait
edge.py        header and error handling around Serve's proxy; traced.py: the first span
fleet_calls.py  calls to every replica: health and status
http_metrics.py  Prometheus text of this process's requests and of the fleet's answers
loop_watch.py  delays of the event loop
scraping.py    routes that read the metrics and pause counting
"""
