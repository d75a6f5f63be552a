"""A stub of azure-identity: its folder on the path stands for the package. A token says who asked, and for what."""

from __future__ import annotations

import json
import time
from typing import Any

from azure.core.credentials import AccessToken


class _Credential:
    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        who = json.dumps([type(self).__name__, self._arguments, scopes])
        return AccessToken(who, int(time.time()) + 3600)


class DefaultAzureCredential(_Credential):
    def __init__(self, *, managed_identity_client_id: str | None = None) -> None:
        super().__init__(managed_identity_client_id=managed_identity_client_id)


class ManagedIdentityCredential(_Credential):
    def __init__(self, *, client_id: str | None = None) -> None:
        super().__init__(client_id=client_id)


class WorkloadIdentityCredential(_Credential):
    def __init__(self, *, client_id: str | None = None) -> None:
        super().__init__(client_id=client_id)
