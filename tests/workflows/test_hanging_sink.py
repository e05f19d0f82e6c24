"""A sink that hangs costs a validation nothing: measured from the end of a build to its fact."""

from __future__ import annotations

import os
import statistics
import time
from base64 import b64encode
from pathlib import Path

import pytest
from temporalio.client import Client

from domain.settings import Route
from domain.sinks import SinkSettings
from extensions.hooks.fake import FakeSink
from extensions.hooks.webhook import WebhookSink
from tests.receiver import Says, receiving
from tests.trunk import Trunk, running_trunk

ROUNDS = 12
CANARY = b64encode(os.urandom(32)).decode()


async def fact_after_build(trunk: Trunk, uri: str) -> float:
    await trunk.report(uri)
    request = await trunk.request(uri)
    await trunk.triggered(request.number)
    began = time.perf_counter()
    await trunk.runner.finish(uri, "succeeded")

    async def is_fact() -> bool:
        return await trunk.store.fact(trunk.queue, uri) is not None

    await trunk.until(is_fact)
    took = time.perf_counter() - began
    await trunk.recorded(uri)
    return took


async def test_a_hanging_sink_delays_no_fact(client: Client, tmp_path: Path) -> None:
    """Taken in turns, so that a busy machine is busy for both; a tenth, and a look's own grain."""
    hooks = (Route("well"),)
    async with (
        running_trunk(client, tmp_path / "well", hooks=hooks) as well,
        running_trunk(client, tmp_path / "hung", hooks=(*hooks, Route("hung"))) as hung,
    ):
        hung.sinks["hung"] = sink = FakeSink()
        sink.hangs = True
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(ROUNDS):
            times[0].append(await fact_after_build(well, f"A{number}"))
            times[1].append(await fact_after_build(hung, f"A{number}"))
        without, with_it = map(statistics.median, times)
        print(f"build end to fact: {without * 1e3:.0f} ms without, {with_it * 1e3:.0f} ms with it")  # noqa: T201
        assert with_it < 1.1 * without + 0.02


async def test_no_secret_is_in_history_dead_letter_or_error(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("HOOK", f"whsec_{CANARY}")
    async with receiving() as receiver, running_trunk(client, tmp_path) as trunk:
        monkeypatch.setenv("WHERE", f"{receiver.url}/{CANARY[:20]}")
        own = SinkSettings(
            "one", "webhook", url_variable="WHERE", secrets=("HOOK",), allow=("127.0.0.0/8",)
        )
        trunk.sinks["fake"] = WebhookSink(own, "lastgreen")
        receiver.usual = Says(410, f"{receiver.url}/{CANARY}".encode())
        await trunk.report("A")
        await trunk.succeeds("A")

        async def is_dead() -> bool:
            return len(await trunk.store.dead_letters(trunk.queue)) == 2

        await trunk.until(is_dead)
        told = [letter.detail for letter in await trunk.store.dead_letters(trunk.queue)]
        told += [row.last_error for row in await trunk.store.deliveries(trunk.queue, 1)]
        told += [row.detail for row in await trunk.store.history(trunk.queue, 1)]
        told += [caplog.text, (tmp_path / "store.db").read_bytes().decode("latin-1")]
        query = f"LastgreenQueue = '{trunk.queue}'"
        async for about in trunk.client.list_workflows(query):
            handle = trunk.client.get_workflow_handle(about.id, run_id=about.run_id)
            told.append((await handle.fetch_history()).to_json())
        assert len(told) > 6
        in_payloads = [b64encode(b" " * n + CANARY[:20].encode())[4:-4].decode() for n in range(3)]
        secrets = (CANARY[:20], *in_payloads)
        assert not [secret for secret in secrets for text in told if secret in text]
