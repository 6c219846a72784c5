"""What the repository check reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a repository.

    Attributes:
        model_name: Folder of the model.
        message: What is wrong, in lower case.
        is_fatal: The server would not load the model, or not serve it; otherwise it is only worth knowing.
    """

    model_name: str
    message: str
    is_fatal: bool = True
