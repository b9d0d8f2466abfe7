"""What the clients of each API expect, and what vLLM says in words of its own.

relayed_routes.py  handlers of the Responses and Messages APIs; relayed_request.py: their requests
stream_kinds.py  how each API writes a stream
anthropic_errors.py  Anthropic's error object and key header
engine_words.py  what vLLM says of a request, with the names of its fields and of the deployment file's
plain_requests.py  slashes at a path's end, and HEAD
"""
