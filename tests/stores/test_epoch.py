from __future__ import annotations

import pytest

from domain.act import Act, Verb
from domain.identity import Fence
from stores.epoch import raise_epoch
from tests.stores.faults import fails_at_each_statement
from tests.stores.story import Story


@pytest.mark.spec("V403")
async def test_raising_the_epoch_is_all_or_nothing(story: Story) -> None:
    await story.validate("A")
    for jump in (False, True):
        by = Act(f"{jump}", Verb.RECOVER, "ada", "why not")
        before: Fence = await story.store.fence()

        async def raise_it(by: Act = by, *, jump: bool = jump) -> None:
            await raise_epoch(story.engine, by, story.now, jump=jump)

        await fails_at_each_statement(story, raise_it)
        after = await story.store.fence()
        assert after.epoch > before.epoch
        story.fence = after
    number = await story.validate("B")
    assert number >= story.now - 1_000
