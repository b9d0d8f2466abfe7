"""What an IP address says of where it leads."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether the IP address `host` is the machine's own, by which no other can reach it; a name is none."""
    if not is_address(host):
        return False
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_address(host: str) -> bool:
    """Whether `host` is an IP address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
