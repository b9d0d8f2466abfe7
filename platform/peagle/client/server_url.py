"""Addresses of servers, as the command line takes them."""

from peagle.errors import ConfigError, StartupError


def http_url(text: str) -> str:
    """Return `text`, an address that can be asked. Raises ConfigError where it is none."""
    import httpx  # takes a while, and help has no use for it

    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host or (url.port or 0) > 65_535:
        raise ConfigError("URL", text, "it is no address of a server", "Write one such as http://127.0.0.1:8000.")
    return text


def base_url(text: str) -> str:
    """The server's address of `text`, without a path for the API's version. Raises ConfigError where it is none."""
    return http_url(text).rstrip("/").removesuffix("/v1")


def heeds_proxies(url: str) -> bool:
    """Whether the environment's proxies apply to `url`; httpx's `trust_env`. Nobody else reaches this machine's own.

    Raises StartupError where they apply, and one of them is of no kind that httpx knows.
    """
    import httpx

    from peagle.host.addresses import is_loopback

    host = httpx.URL(url).host
    if host == "localhost" or is_loopback(host):
        return False
    try:
        httpx.Client(trust_env=True).close()
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        problem = f"a proxy of the environment cannot be used ({str(error).partition('. ')[0].rstrip('.')})"
        raise StartupError(problem, "Correct or unset ALL_PROXY, HTTPS_PROXY and HTTP_PROXY.") from None
    except OSError as error:
        problem = f"the environment's certificates cannot be read ({error.strerror or error})"
        raise StartupError(problem, "Correct or unset SSL_CERT_FILE and SSL_CERT_DIR.") from None
    return True
