"""Who may call the Log and Admin services: loopback only, or whoever shows the token once one is configured."""

from __future__ import annotations

import hmac
from pathlib import Path

from broker_gateway.runtime.errors import OptionError, reason
from broker_gateway.transport.context import CallContext, RpcError
from store.errors import SecretError
from store.log.permissions import check_secret


class Access:
    """Checks calls against the token in `token_file` (None: loopback only). The token is never logged."""

    def __init__(self, token_file: Path | None) -> None:
        self._token: bytes | None = None
        if token_file is not None:
            try:
                check_secret(token_file, "lakeTokenFile")
                self._token = token_file.read_text(encoding="utf-8").strip().encode()
            except SecretError as error:
                raise OptionError(str(error)) from error
            except OSError as error:
                raise OptionError(f"lakeTokenFile={token_file} cannot be read: {reason(error)}") from error
            except UnicodeDecodeError:  # which has the token in it
                raise OptionError(
                    f"lakeTokenFile={token_file} is not UTF-8; write the token in letters and digits, as "
                    "`openssl rand -hex 32` makes one"
                ) from None
            if len(self._token) < 16:
                raise OptionError(f"the token in lakeTokenFile={token_file} is shorter than 16 characters")

    def check(self, context: CallContext) -> None:
        """Raises RpcError PERMISSION_DENIED or UNAUTHENTICATED."""
        if self._token is None:
            if not context.loopback:
                raise RpcError(
                    "PERMISSION_DENIED",
                    "this service answers loopback only until lakeTokenFile is configured on the gateway",
                )
            return
        scheme, _, shown = context.metadata.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), self._token):
            raise RpcError("UNAUTHENTICATED", "the call carries no valid token; give --token-file")
