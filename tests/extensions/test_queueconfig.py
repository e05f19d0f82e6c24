from __future__ import annotations

import re
from pathlib import Path

import pytest

from domain.errors import Malformed, Misconfigured, NotFound
from domain.event import EventType
from domain.settings import RANGES, QueueSettings, Route
from extensions.queueconfig.contract import QueueConfig
from extensions.queueconfig.fake import FakeConfig
from extensions.queueconfig.toml import TomlConfig

QUEUE = """version = 1
[[queue]]
name = "monorepo/main"
repository = "ssh://git@example.com/monorepo"
ref = "main"
command = ["make", "test"]
"""


def written(folder: Path, text: str) -> TomlConfig:
    path = folder / "lastgreen.toml"
    path.write_text(text)
    return TomlConfig(path)


@pytest.fixture(params=["toml", "fake"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> QueueConfig:
    if request.param == "toml":
        return written(tmp_path, QUEUE)
    return FakeConfig(
        QueueSettings(
            "monorepo/main", "ssh://git@example.com/monorepo", "main", command=("make", "test")
        )
    )


@pytest.mark.spec("V320")
def test_a_queue_without_settings_has_the_defaults(config: QueueConfig) -> None:
    queue = config.get("monorepo/main")
    assert queue == QueueSettings(
        "monorepo/main", "ssh://git@example.com/monorepo", "main", command=("make", "test")
    )
    assert (queue.max_concurrent, queue.gate_wait, queue.rewind_confirm) == (1, 30, 10)
    assert (queue.start_timeout, queue.validation_timeout) == (1800, 14400)


@pytest.mark.spec("V320")
def test_an_unknown_queue_is_not_found_and_the_list_is_a_copy(config: QueueConfig) -> None:
    with pytest.raises(NotFound, match="elsewhere/main"):
        config.get("elsewhere/main")
    config.list().clear()
    assert [queue.name for queue in config.list()] == ["monorepo/main"]


@pytest.mark.spec("V320")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "is empty"),
        (QUEUE + QUEUE.removeprefix("version = 1\n"), r":8: name: .*twice"),
        (QUEUE + "colour = 3\n", r":7: colour: unknown key"),
        (QUEUE + "max_concurrent = 'two'\n", r":7: max_concurrent: .*integer"),
        (QUEUE + "nonsense\n", "line 7|lastgreen.toml"),
        ("version = 2\n" + QUEUE.removeprefix("version = 1\n"), r":1: version"),
        ("version = 1\n", "queue"),
    ],
    ids=["empty", "twice", "unknown key", "wrong type", "no toml", "version", "no queue"],
)
def test_a_bad_file_is_refused_with_file_line_and_key(
    tmp_path: Path, text: str, error: str
) -> None:
    with pytest.raises(Malformed, match=error) as refused:
        written(tmp_path, text).list()
    assert "lastgreen.toml" in str(refused.value)


@pytest.mark.spec("V320")
def test_a_missing_file_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="--config"):
        TomlConfig(tmp_path / "lastgreen.toml").list()


@pytest.mark.spec("V54")
@pytest.mark.parametrize("key", sorted(RANGES))
@pytest.mark.parametrize("side", [0, 1])
def test_a_value_out_of_range_is_refused_with_file_line_key_and_reason(
    tmp_path: Path, key: str, side: int
) -> None:
    value = int(RANGES[key][side]) + (1 if side else -1)
    said = re.escape(f"lastgreen.toml:7: {key} = {value:g}: must be from")
    with pytest.raises(Malformed, match=said):
        written(tmp_path, QUEUE + f"{key} = {value}\n").list()


@pytest.mark.spec("V6")
@pytest.mark.parametrize("name", ["/a", "a/", "a//b", "a/../b", "a b", "ä", "a" * 201, ""])
def test_a_bad_queue_name_is_refused_in_the_configuration(tmp_path: Path, name: str) -> None:
    with pytest.raises(Malformed, match=r"lastgreen.toml:3: .*queue name"):
        written(tmp_path, QUEUE.replace("monorepo/main", name)).list()


@pytest.mark.spec("V162")
def test_a_promotion_ref_that_is_validated_or_shared_is_refused(tmp_path: Path) -> None:
    for same in ("main", "refs/heads/main"):
        with pytest.raises(Malformed, match="would move the trunk itself"):
            written(tmp_path, QUEUE + f'promote = "{same}"\n').list()
    other = QUEUE.removeprefix("version = 1\n").replace('"monorepo/main"', '"other/main"')
    other = other.replace('ref = "main"', 'ref = "release"')
    shared = 'promote = "verified"\n'
    with pytest.raises(Malformed, match="already the promotion ref"):
        written(tmp_path, QUEUE + shared + other + shared).list()
    with pytest.raises(Malformed, match="would move the trunk itself"):
        written(tmp_path, QUEUE + other + 'promote = "main"\n').list()


def test_a_change_counts_at_the_next_check_without_a_restart(tmp_path: Path) -> None:
    config = written(tmp_path, QUEUE)
    assert config.get("monorepo/main").max_concurrent == 1
    written(tmp_path, QUEUE + "max_concurrent = 2\n")
    assert config.get("monorepo/main").max_concurrent == 2


def test_hooks_are_named_or_narrowed(tmp_path: Path) -> None:
    hooks = 'hooks = ["log", { sink = "log", types = ["validation.repository.recorded"] }]\n'
    (plain, narrow) = written(tmp_path, QUEUE + hooks).get("monorepo/main").hooks
    assert plain == Route("log")
    assert narrow.hears(EventType.RECORDED)
    assert not narrow.hears(EventType.STARTED)
    with pytest.raises(Malformed, match="hooks"):
        written(tmp_path, QUEUE + 'hooks = [{ sink = "log", types = ["x"] }]\n').list()


def test_a_command_is_an_argv_or_a_line_for_a_shell(tmp_path: Path) -> None:
    line = QUEUE.replace('["make", "test"]', '"make test | tee log"')
    queue = written(tmp_path, line).get("monorepo/main")
    assert (queue.command, queue.shell) == (("make test | tee log",), True)


def test_a_relative_path_is_meant_from_where_the_file_is(tmp_path: Path) -> None:
    for given, meant in [
        ("../trunk.git", str(tmp_path / "../trunk.git")),
        ("git@example.com:team/trunk", "git@example.com:team/trunk"),
        ("https://example.com/trunk", "https://example.com/trunk"),
    ]:
        text = QUEUE.replace("ssh://git@example.com/monorepo", given)
        assert written(tmp_path, text).get("monorepo/main").repository == meant


SINK = '\n[[sink]]\nname = "board"\nkind = "webhook"\nurl = "https://x.test/"\nsecrets = ["S"]\n'


def test_sinks_are_read_and_slack_hears_edges_unless_told_otherwise(tmp_path: Path) -> None:
    slack = '[[sink]]\nname = "team"\nkind = "slack"\nurl_variable = "U"\n[hooks]\nsource = "ci"\n'
    hooks = 'hooks = ["team", "board", { sink = "team", edges = false }]\n'
    config = written(tmp_path, QUEUE + hooks + SINK + slack)
    assert [route.edges for route in config.get("monorepo/main").hooks] == [True, False, False]
    assert (config.sinks()["board"].secrets, config.source()) == (("S",), "ci")


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ('command = ["x"]\n', ":13: command"),
        ("hook_budget = 1\n", ":13: hook_budget"),
        ('allow = ["10.0.0.1/8"]\n', ":13: allow"),
        ('colour = "red"\n', ":13: colour"),
        ("", ""),
    ],
)
def test_a_bad_sink_is_refused_with_its_line(tmp_path: Path, more: str, where: str) -> None:
    config = written(tmp_path, QUEUE + SINK + more)
    if where:
        with pytest.raises(Malformed, match=where):
            config.sinks()
    else:
        assert "board" in config.sinks()
