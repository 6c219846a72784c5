"""What the door says when it cannot do what it is asked for, in OpenAI's form."""

from __future__ import annotations

import math

from peagle_trt.errors import RequestError


class RefusalError(RequestError):
    """An answer that is an error.

    Args:
        message: What is wrong, for the client.
        param: The field at fault, as `messages[0].role`.
        status: HTTP status.
        code: OpenAI's short name for the fault.
        retry_after_seconds: When to try again; None says nothing about it.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code
        self.headers: dict[str, str] = {}
        if retry_after_seconds is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(retry_after_seconds)))

    @property
    def document(self) -> dict[str, object]:
        """The body. Source: OpenAI's API reference, "error codes"."""
        fault = {"message": self.message, "type": _type_of(self.status), "param": self.param, "code": self.code}
        return {"error": fault}


def unsupported(param: str, reason: str = "is not supported; leave it out") -> RefusalError:
    """A field that is understood and cannot be honoured."""
    return RefusalError(f"`{param}` {reason}", param=param, code="unsupported_parameter")


def invalid(param: str, reason: str) -> RefusalError:
    """A field whose value has no meaning."""
    return RefusalError(f"`{param}` {reason}", param=param, code="invalid_value")


def too_many(message: str, retry_after_seconds: float) -> RefusalError:
    """A limit that time will lift."""
    return RefusalError(message, status=429, code="rate_limit_exceeded", retry_after_seconds=retry_after_seconds)


def _type_of(status: int) -> str:
    if status >= 500:
        return "server_error"
    return {401: "authentication_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")
