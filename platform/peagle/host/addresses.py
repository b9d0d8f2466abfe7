"""Checks of IP addresses."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback IP address; a host name is not."""
    if not is_address(host):
        return False
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_address(host: str) -> bool:
    """Whether `host` is an IP address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
