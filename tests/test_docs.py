"""What exists is documented, and what the pages point at exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from typer.core import TyperGroup

from cli.main import app
from domain.event import EventType
from domain.request import ENDINGS, Cause
from domain.settings import RANGES, QueueSettings
from extensions.buildrunner.command.run import environment_of
from extensions.buildrunner.command.worktree import Wanted
from extensions.buildrunner.contract import Order
from extensions.queueconfig.toml import ConfigFile, HookTable, QueueTable, SinkTable, parse
from wiring.settings import Settings

ROOT: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = ROOT / "docs" / "reference"
ADRS: Final = ROOT / "docs" / "adr"
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
RECORDS: Final = sorted(ADRS.glob("[0-9]*.md"))
ADR_LINES: Final = 60
PARTS: Final = ("Context", "Decision", "Rejected", "Consequences")
LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
EVERYWHERE: Final = frozenset({"--data", "--config", "--json", "--debug"})


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section '## {title}'"
    return found[1]


def row(text: str, key: str) -> list[str]:
    """The cells of the table row that is about the key."""
    found = re.search(rf"^\| `{re.escape(key)}` \|(.*)\|$", text, re.MULTILINE)
    assert found, f"there is no row about `{key}`"
    return [cell.strip() for cell in found[1].split(" | ")]


def verbs(command: Any, *names: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(command, TyperGroup):
        yield " ".join(names), command
        return
    for name, inner in command.commands.items():
        yield from verbs(inner, *names, name)


VERBS: Final = dict(verbs(typer.main.get_command(app)))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_documented_with_its_options(verb: str) -> None:
    about = section(page("cli.md"), f"lastgreen {verb}")
    options = {name for parameter in VERBS[verb].params for name in parameter.opts}
    long = {name for name in options if name.startswith("--")}
    assert not [name for name in sorted(long - EVERYWHERE) if f"`{name}" not in about]


def test_no_verb_is_documented_that_does_not_exist() -> None:
    titles = re.findall(r"^## lastgreen (.+)$", page("cli.md"), re.MULTILINE)
    assert sorted(titles) == sorted(VERBS)


def test_the_options_of_every_verb_are_documented() -> None:
    about = section(page("cli.md"), "Options of every verb")
    assert not [name for name in sorted(EVERYWHERE) if f"`{name}" not in about]


@pytest.mark.parametrize("key", QueueTable.model_fields)
def test_every_key_of_a_queue_is_documented_with_its_default_and_range(key: str) -> None:
    default, allowed, *_ = row(section(page("config.md"), "A `[[queue]]`"), key)
    assert (default == "required") == QueueTable.model_fields[key].is_required()
    if key in RANGES:
        low, high = RANGES[key]
        known = {field.name: field.default for field in fields(QueueSettings)}
        assert default == f"{known[key]:g}"
        assert allowed == f"{low:.0f} to {high:.0f}"


@pytest.mark.parametrize(
    ("title", "key"),
    [("The file", key) for key in ConfigFile.model_fields]
    + [("An entry of `hooks`", key) for key in HookTable.model_fields]
    + [("A `[[sink]]`", key) for key in SinkTable.model_fields],
)
def test_every_other_key_is_documented(title: str, key: str) -> None:
    assert row(section(page("config.md"), title), key)


@pytest.mark.parametrize("path", [ROOT / "README.md", REFERENCE / "config.md"], ids=name_of)
def test_the_example_of_a_configuration_is_a_good_one(path: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "lastgreen.toml").write_text(example)
    assert "shop/main" in parse(tmp_path / "lastgreen.toml").queues


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_is_documented_with_what_a_person_can_do(cause: Cause) -> None:
    states, happened, to_do = row(page("causes.md"), cause)
    assert set(states.split(" or ")) == {str(state) for state in ENDINGS[cause].enters}
    assert happened
    assert to_do


@pytest.mark.parametrize("cause", Cause)
def test_the_table_of_endings_is_the_one_of_the_code(cause: Cause) -> None:
    leaves, enters, says, dead_letter = row((ROOT / "ARCHITECTURE.md").read_text(), cause)
    ending = ENDINGS[cause]
    assert set(leaves.split(", ")) == {str(state) for state in ending.leaves}
    assert set(enters.split(", ")) == {str(state) for state in ending.enters}
    assert says.endswith((ending.says or "").rpartition(".")[2])
    assert (says == "recorded¹") == cause.has_verdict
    assert (dead_letter == "yes") == ending.dead_letter


@pytest.mark.parametrize("kind", EventType)
def test_every_event_type_is_documented_with_its_payload(kind: EventType) -> None:
    _, payload = row(section(page("events.md"), "Types"), kind)
    assert "`queue`, `request_id`" in payload
    assert ("`project`" in payload) == (kind is EventType.PROJECT_RECORDED)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_of_the_process_is_documented(name: str) -> None:
    assert row(
        section(page("environment.md"), "Settings of the process"), f"LASTGREEN_{name}".upper()
    )


def test_every_variable_that_a_build_gets_is_documented() -> None:
    order = Order("key", "q", 1, 1, None, "a" * 40, "full", "", 0)
    given = environment_of(order, Wanted("b", "", "/r", "a" * 40, None), ())
    about = section(page("environment.md"), "What a build gets")
    own = sorted(name for name in given if name.startswith("LASTGREEN_"))
    assert own
    assert not [name for name in own if not row(about, name)]


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_every_decision_is_in_the_index_and_has_its_parts(record: Path) -> None:
    text = record.read_text(encoding="utf-8")
    assert f"[{record.name[:4]}]({record.name})" in (ADRS / "README.md").read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [*PARTS]
    assert text.startswith(f"# {record.name[:4]}: ")
    assert len(text.splitlines()) <= ADR_LINES


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(record.name[:4]) for record in RECORDS] == [*range(1, len(RECORDS) + 1)]


def anchors(path: Path) -> set[str]:
    titles = re.findall(
        r"^#+ (.+)$", FENCED.sub("", path.read_text(encoding="utf-8")), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    broken = []
    for link in LINK.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
        where, _, anchor = link.partition("#")
        if ":" in where:
            continue
        target = path.parent / where if where else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken
