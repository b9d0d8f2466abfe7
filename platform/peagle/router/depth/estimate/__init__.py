"""Learned estimates of a replica: acceptance, step time, prompt cost, and the forecast built from them."""
