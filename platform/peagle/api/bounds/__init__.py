"""Size limits of one request: pure counts over plain values, checked before any expensive work.

json_text.py     JSON text before it is parsed
request_bounds.py  parsed bodies before they are validated, rendered or tokenized
grammar_bounds.py  schemas, patterns, grammars and choices before an engine compiles them; pattern_size.py
message_shape.py  the shape of messages
speculation_field.py  the request's draft depth limit
field_path.py    names of fields in messages
"""
