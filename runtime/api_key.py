"""The key that a server may ask for: one environment variable for who serves and who asks."""

from __future__ import annotations

import os

from descant.runtime.errors import DescantError

VARIABLE = "DESCANT_API_KEY"


def api_key() -> str | None:
    """$DESCANT_API_KEY, or None where it is unset or empty.

    Raises:
        DescantError: it cannot be sent in a header.
    """
    return checked(os.environ.get(VARIABLE))


def checked(key: str | None) -> str | None:
    """`key` as it may be sent, None for an empty one."""
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise DescantError(f"The API key (${VARIABLE}) cannot be sent: write it in printable ASCII without spaces.")
    return key or None


def headers(key: str | None) -> dict[str, str]:
    """What a request with this key carries."""
    return {"Authorization": f"Bearer {key}"} if key else {}
