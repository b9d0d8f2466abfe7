"""Who may have how much: pure maths over passed-in time, for requests of clients that share one platform.

client_terms.py  whom a request counts for: name, weight, class and limits
rate_bucket.py   what a limit by the minute leaves
limit_book.py    whether a client's next request is within its limits, over all ingress processes
limit_headers.py what an answer says of it
place_shares.py  how many of a model's places one client may hold
place_turns.py   whose request gets the next of them
step_sharing.py  whose requests take part in an engine's next step
"""
