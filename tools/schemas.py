"""Writes the schemas of events into their page: ``python tools/schemas.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PAGE: Final = ROOT / "docs" / "reference" / "events.md"
BEGINS: Final = "<!-- from here on made by tools/schemas.py -->\n"


def schemas() -> str:
    from extensions.hooks.envelope import MODELS

    parts = []
    for kind, model in MODELS.items():
        schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        schema |= _untitled(model.model_json_schema(mode="serialization"))
        text = json.dumps(schema, indent=2)
        parts.append(f"### {kind}\n\n```json\n{text}\n```\n")
    return "\n".join(parts)


def _untitled(part: Any) -> Any:  # noqa: ANN401 - any part of a schema
    if isinstance(part, dict):
        return {key: _untitled(value) for key, value in part.items() if key != "title"}
    return part


def page() -> str:
    written, _, _ = PAGE.read_text(encoding="utf-8").partition(BEGINS)
    return f"{written}{BEGINS}\n{schemas()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
