"""How requests to the management travel: the SDK knows nothing but https to the host that a namespace is called by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from azure.core.pipeline.transport import RequestsTransport

from kombu_paired.brokers.servicebus.address import Address

__all__ = ("ManagementTransport",)

#: The service's ports for AMQP: whoever writes one of them for a custom endpoint does not mean the management's.
AMQP_PORTS = frozenset({5671, 5672})


class ManagementTransport(RequestsTransport):  # type: ignore[misc]
    """Management over http to a local server, over https to the service, or to an endpoint that stands for it.

    Arguments:
        address: of the namespace.
        client_options: those of the SDK's client: proxy, CA bundle and custom endpoint are the management's, too.
        port: of the management, for a local server that has another one for it.
        timeout: seconds for connecting, and for each read.
    """

    def __init__(self, address: Address, client_options: Mapping[str, Any], port: int | None, timeout: float) -> None:
        super().__init__(
            connection_timeout=timeout,
            read_timeout=timeout,
            connection_verify=client_options.get("connection_verify") or True,
        )
        self._host = address.place
        self._base = _base_of(address, client_options.get("custom_endpoint_address"), port)
        proxy = client_options.get("http_proxy")
        self._proxies = None if proxy is None else dict.fromkeys(("http", "https"), _proxy_url(proxy))

    def send(self, request: Any, *, proxies: Any = None, **kwargs: Any) -> Any:
        if self._base is not None:
            request.headers.setdefault("Host", self._host)
            request.url = self._base + request.url.split("://", 1)[1].split("/", 1)[1]
        authorization = request.headers.get("Authorization", "")
        if authorization.startswith("Bearer SharedAccessSignature "):  # the service takes a signature as it is
            request.headers["Authorization"] = authorization.removeprefix("Bearer ")
        return super().send(request, proxies=self._proxies or proxies, **kwargs)


def _base_of(address: Address, custom: str | None, port: int | None) -> str | None:
    """Where requests go instead of the host of the namespace; None: there."""
    scheme = "http" if address.is_local else "https"
    if custom is not None:
        endpoint = urlsplit(custom if "//" in custom else f"//{custom}")
        its_port = port or (endpoint.port if endpoint.port not in AMQP_PORTS else None)
        return f"{scheme}://{endpoint.hostname}{f':{its_port}' if its_port else ''}/"
    return f"{scheme}://{address.host}:{port or address.port}/" if address.is_local else None


def _proxy_url(proxy: Mapping[str, Any]) -> str:
    who = ":".join(quote(str(proxy[name]), safe="") for name in ("username", "password") if proxy.get(name))
    return f"http://{who}{'@' if who else ''}{proxy['proxy_hostname']}:{proxy['proxy_port']}"
