"""Failures of TLS, wherever a driver has wrapped them: an outage on every broker, and what to do about it.

Python's own error for a certificate is a ``ValueError`` as well, and some drivers hide it in an error of theirs.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from kombu_paired.failures import FailureKind

__all__ = ("advice_on", "kind_of")

#: Codes of X509_verify_cert(3) that say something about time, and about names.
_OF_TIME = {9: "not yet valid", 10: "expired"}
_OF_NAMES = {62, 63, 64}  # host, e-mail, address


def kind_of(exc: BaseException) -> FailureKind | None:
    """The kind of a failure of TLS; None for anything else."""
    error = _tls_error(exc, implied=False)
    if error is None:
        return None
    return FailureKind.TIMEOUT if "timed out" in str(error) else FailureKind.UNREACHABLE


def advice_on(exc: BaseException) -> str:
    """What to do about a failure of TLS, in a sentence; nothing for anything else."""
    error = _tls_error(exc, implied=True)
    if error is None or "timed out" in str(error):
        return ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"The broker's certificate cannot be verified: {_what_to_do(error)}"
    if "ALERT" in str(error) and "CERTIFICATE" in str(error).upper():
        return "The broker refuses the certificate of this client: is it given, and has it expired?"
    return "No TLS connection came about: does this port speak TLS, in a version that this side allows?"


def _what_to_do(error: ssl.SSLCertVerificationError) -> str:
    reason = getattr(error, "verify_message", "") or error.reason or "it is not trusted"
    code = getattr(error, "verify_code", None)
    if code in _OF_TIME:
        return f"{reason}. Renew it (or mend the clock of this machine)."
    if code in _OF_NAMES:
        return f"{reason}. Connect by a name that it holds, or renew it with this one."
    return f"{reason}. Name the authority that signed it in the TLS settings of this side: ca_certs, or ssl_ca_certs."


def _tls_error(exc: BaseException, *, implied: bool) -> ssl.SSLError | None:
    return next((each for each in _chain(exc, implied) if isinstance(each, ssl.SSLError)), None)


def _chain(exc: BaseException, implied: bool) -> Iterator[BaseException]:
    """An exception and those that it was made of: said with ``from``, in its attributes, and perhaps its context."""
    seen: set[int] = set()
    waiting: list[object] = [exc]
    while waiting:
        each = waiting.pop(0)
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += (each.__cause__, getattr(each, "inner_exception", None), getattr(each, "reason", None), *each.args)
        if implied and not each.__suppress_context__:
            waiting.append(each.__context__)
