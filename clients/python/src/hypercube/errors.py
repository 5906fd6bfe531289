"""The one exception of this package's client."""

from __future__ import annotations

#: Codes for answers without a code of their own, such as those of a proxy.
_CODES_BY_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNSUPPORTED",
    413: "TOO_LARGE",
    429: "OVERLOADED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class HypercubeError(Exception):
    """A call that failed.

    `code` is the server's error code, or `UNAVAILABLE` (no usable answer), `DEADLINE_EXCEEDED` (the timeout passed)
    and `INVALID_ARGUMENT` (wrong arguments) where the client itself found the problem.
    `status` is the HTTP status, or None without an answer.
    """

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def code_of_status(status: int) -> str:
    return _CODES_BY_STATUS.get(status, "INTERNAL")
