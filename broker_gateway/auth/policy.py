"""Who may do what. The first policies: what is for operators is taken from this machine, or with the token."""

from __future__ import annotations

import enum
import hmac
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from broker_gateway.auth.principal import Principal
from broker_gateway.auth.rules import Rule
from broker_gateway.runtime.errors import OptionError, reason
from store.errors import SecretError
from store.log.permissions import read_token

OWN_MACHINE = "is taken from the {}'s own machine only; set lakeRemoteAdmin=true there"
"""Of requests for operators: what is said to others."""


class Denial(enum.Enum):
    """Why a call is refused: nobody knows who calls, or the caller may not."""

    UNKNOWN = enum.auto()
    FORBIDDEN = enum.auto()


class NotAuthorizedError(Exception):
    """A call is refused; the text goes to the caller, after the call's name."""

    def __init__(self, denial: Denial, message: str) -> None:
        super().__init__(message)
        self.denial = denial


class Policy(Protocol):
    """Decides on calls."""

    def open_to_all(self, rule: Rule) -> bool:
        """Whether everybody may, whatever the resource: such calls are not asked about one by one."""

    def authorize(self, principal: Principal, rule: Rule, names: Sequence[str] = ()) -> None:
        """Raises NotAuthorizedError. `names`: of the resources that the call names, which the caller chose; none where it
        names none, or where they are in what was not read yet (a stream, a body)."""


class LoopbackPolicy:
    """Calls for operators are taken from this machine only, or from everywhere while `remote` says so."""

    def __init__(self, remote: Callable[[], bool], remedy: str) -> None:
        self._remote = remote
        self._remedy = remedy

    def open_to_all(self, rule: Rule) -> bool:
        return not rule.operators

    def authorize(self, principal: Principal, rule: Rule, names: Sequence[str] = ()) -> None:
        if rule.operators and not principal.loopback and not self._remote():
            raise NotAuthorizedError(Denial.FORBIDDEN, self._remedy)


class TokenPolicy:
    """Calls for operators carry the token in `file`; without one they are taken from this machine only."""

    def __init__(self, file: Path | None) -> None:
        """Raises OptionError. The token is never logged."""
        self._token = None if file is None else _read(file)

    def open_to_all(self, rule: Rule) -> bool:
        return not rule.operators

    def authorize(self, principal: Principal, rule: Rule, names: Sequence[str] = ()) -> None:
        if not rule.operators:
            return
        if self._token is None:
            if not principal.loopback:
                raise NotAuthorizedError(
                    Denial.FORBIDDEN,
                    "this service answers loopback only until it has a token: lakeTokenFile of a gateway, --token-file of a sidecar",
                )
            return
        scheme, _, shown = principal.shown.partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), self._token):
            raise NotAuthorizedError(
                Denial.UNKNOWN,
                "the call carries another token than this service has; give --token-file the file with the same one"
                if shown
                else "the call carries no token, and this service asks for one; give --token-file",
            )


def _read(file: Path) -> bytes:
    try:
        return read_token(file, "lakeTokenFile")
    except SecretError as error:
        raise OptionError(str(error)) from error
    except OSError as error:
        raise OptionError(f"lakeTokenFile={file} cannot be read: {reason(error)}") from error
