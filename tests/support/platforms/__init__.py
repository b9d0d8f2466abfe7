"""Real platforms, whole (`peagle serve`) or in part (Ray, HAProxy, ingresses), and a browser to look at them."""
