"""Property tests repeat: the same examples every time, none kept on disk, and no limit that a busy machine breaks."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, max_examples=60)
settings.load_profile("repeatable")
