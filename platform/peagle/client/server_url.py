"""Server URLs on the command line."""

from peagle.errors import ConfigError, StartupError


def http_url(text: str) -> str:
    """Return `text` if it is an http or https URL. Raises ConfigError if it is not."""
    import httpx  # slow to import, and not needed for help

    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host or (url.port or 0) > 65_535:
        raise ConfigError("URL", text, "it is not a server's URL", "Write one such as http://127.0.0.1:8000.")
    return text


def base_url(text: str) -> str:
    """Return the server's URL without the API version path. Raises ConfigError if `text` is not a URL."""
    return http_url(text).rstrip("/").removesuffix("/v1")


def heeds_proxies(url: str) -> bool:
    """Whether the environment's proxies apply to `url`, for httpx's `trust_env`. They never apply to loopback.

    Raises StartupError if they apply and httpx supports one of them not at all, or cannot read the certificates.
    """
    import httpx

    from peagle.host.addresses import is_loopback

    host = httpx.URL(url).host
    if host == "localhost" or is_loopback(host):
        return False
    try:
        httpx.Client(trust_env=True).close()
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        problem = f"a proxy in the environment cannot be used ({str(error).partition('. ')[0].rstrip('.')})"
        raise StartupError(problem, "Correct or unset ALL_PROXY, HTTPS_PROXY and HTTP_PROXY.") from None
    except OSError as error:
        problem = f"the environment's certificates cannot be read ({error.strerror or error})"
        raise StartupError(problem, "Correct or unset SSL_CERT_FILE and SSL_CERT_DIR.") from None
    return True
