"""Makes property tests repeatable: the same examples every time, nothing stored, no deadline on a busy machine."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, max_examples=60)
settings.load_profile("repeatable")
