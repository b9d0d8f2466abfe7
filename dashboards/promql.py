"""PromQL expressions that many panels and rules share."""

WINDOW = "$__rate_interval"


def rate(name: str, where: str, by: str = "model", window: str = WINDOW) -> str:
    """Rate of a counter per second."""
    return f"sum by ({by}) (rate({name}{{{where}}}[{window}]))"


def total_rate(name: str, where: str, window: str = WINDOW) -> str:
    return f"sum(rate({name}{{{where}}}[{window}]))"


def quantile(share: float, histogram: str, where: str, by: str = "model", window: str = WINDOW) -> str:
    """Quantile of a histogram, which is named without its suffix."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', where, f'{by}, le', window)})"


def mean(histogram: str, where: str, by: str = "model", window: str = WINDOW) -> str:
    """Mean of a histogram's values."""
    return f"{rate(f'{histogram}_sum', where, by, window)} / {rate(f'{histogram}_count', where, by, window)}"


def ratio(part: str, whole: str, where: str, by: str = "model", window: str = WINDOW) -> str:
    """Ratio of two counters' rates."""
    return f"{rate(part, where, by, window)} / {rate(whole, where, by, window)}"
