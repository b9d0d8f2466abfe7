"""Fairness between clients that share a platform: pure maths over the time passed in.

client_terms.py  a client's name, weight, class and limits
rate_bucket.py   what remains of a limit per minute
limit_book.py    whether a client's next request is within its limits, over all ingress processes
limit_headers.py rate-limit headers of an answer
place_shares.py  how many of a model's places one client may hold
place_turns.py   which client's request gets the next place
step_sharing.py  which clients' requests take part in an engine's next step
"""
