"""What one request may hold: pure counts over plain values, before anything that takes long begins.

json_text.py     of JSON that is not parsed yet
request_bounds.py  of a parsed body, before it is validated, rendered or tokenized
grammar_bounds.py  of schemas, patterns, grammars and choices, before an engine compiles them; pattern_size.py
message_shape.py  whether messages are messages
speculation_field.py  how much may be drafted for it
field_path.py    how the field at fault is named
"""
