"""Random lives of a queue: twenty here, hundreds in ``make chaos``."""

from __future__ import annotations

import pytest
from temporalio.client import Client

from tests.chaos.life import live_all

SEEDS = 20


@pytest.mark.spec("V67")
@pytest.mark.timeout(900)
async def test_whatever_happens_to_a_queue_nothing_is_lost_and_nothing_is_a_lie(
    client: Client,
) -> None:
    assert await live_all(client, range(SEEDS)) == 0
