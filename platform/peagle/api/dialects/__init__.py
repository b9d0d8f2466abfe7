"""Formats that the clients of each API expect, and translation of vLLM's messages.

relayed_routes.py  handlers of the Responses and Messages APIs; relayed_request.py: their requests
stream_kinds.py  stream format of each API
anthropic_errors.py  Anthropic's error object and key header
engine_words.py  vLLM's messages, with field names of the request and the deployment file
plain_requests.py  trailing slashes, and HEAD
"""
