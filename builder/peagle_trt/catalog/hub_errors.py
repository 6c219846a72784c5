"""What goes wrong with the hub, in our words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from peagle_trt.catalog.entries import HubRepository
from peagle_trt.errors import MachineError, UsageError

INSTALL_HINT = "pip install 'peagle-trt[hub]'"


def connection_errors() -> tuple[type[Exception], ...]:
    """What a connection that breaks, or cannot be opened, raises.

    httpx in version 1 of the hub's library, httpx2 in version 2: whichever its own error is made from.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return tuple(base for base in HfHubHTTPError.__bases__ if base is not OSError)


@contextlib.contextmanager
def naming_hub_errors(source: HubRepository, *, remedy: str) -> Iterator[None]:
    """Turn what the hub and the network refuse into one error that says what to do.

    Args:
        source: What was asked for.
        remedy: How to bring it here by other means.

    Raises:
        MachineError: The hub cannot be reached, refuses, or is not a hub.
        UsageError: There is no such revision.
    """
    from huggingface_hub import errors

    asked = f"`{source.repository}`"
    try:
        yield
    except errors.GatedRepoError as error:
        raise MachineError(
            f"{asked} is gated, and this token may not read it",
            hint="accept its terms on its page, then `hf auth login` or set HF_TOKEN, and run the command again",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise MachineError(
            f"the hub knows no repository {asked}, or does not show it to this token",
            hint=f"for a private one, `hf auth login` or set HF_TOKEN; otherwise {remedy}",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UsageError(f"{asked} has no revision `{source.revision}`", hint="give another one") from error
    except errors.OfflineModeIsEnabled as error:
        raise MachineError(
            f"{asked} is not on this machine, and HF_HUB_OFFLINE forbids a download", hint=remedy
        ) from error
    except errors.HfHubHTTPError as error:
        raise _refused(asked, error.response.status_code, remedy) from error
    except connection_errors() as error:
        raise MachineError(f"cannot download {asked}: {_reason(error)}", hint=remedy) from error
    except OSError as error:
        # Without a number it is the library's own: fewer bytes came than were announced.
        if error.errno is not None:
            raise
        raise MachineError(f"cannot download {asked}: the connection ended early", hint=remedy) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # The library takes an answer apart without looking: a proxy's login page, say, fails in any of these ways.
        raise MachineError(
            f"cannot download {asked}: what answered is no hub ({_reason(error)})", hint=remedy
        ) from error


def _refused(asked: str, status: int, remedy: str) -> MachineError:
    if status in (401, 403):
        return MachineError(
            f"the hub does not let this token read {asked} (status {status})",
            hint="`hf auth login` or set HF_TOKEN to a token that may read it, and run the command again",
        )
    return MachineError(
        f"cannot download {asked}: the hub answered with status {status}", hint=f"try again later, or {remedy}"
    )


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines and lines[0] else type(error).__name__
