"""Foreign text is cleaned once, where it comes in: it may never block a transaction."""

from __future__ import annotations

import re
from typing import Final

_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
MARK: Final = " … (cut)"


def clean(text: str, limit: int = 4_000) -> str:
    """NUL, controls but tab and newline, and lone surrogates become U+FFFD; too long is cut."""
    cleaned = _UNPRINTABLE.sub("\ufffd", text[: limit + 1])
    return cleaned if len(text) <= limit else cleaned[: limit - len(MARK)] + MARK


_HIDING: Final = re.compile(r"[\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def shown(text: str, limit: int) -> str:
    """On one line, cut; marks that turn or hide what stands beside them are spelled out."""
    line = " ".join(clean(text, limit).split())
    return _HIDING.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
