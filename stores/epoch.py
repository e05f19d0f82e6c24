"""The one thing that concerns all queues: under which epoch anybody may write."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.act import Act
from domain.identity import Fence
from stores import tables as t
from stores.engine import begin
from stores.rows import Stamp
from stores.transaction import Tx


async def raise_epoch(engine: AsyncEngine, by: Act, at: int, *, jump: bool = False) -> Fence:
    """Whoever runs under the old epoch ends at its next transaction, wherever it runs.

    ``jump``: an older copy was put in place, so numbers that the lost store gave out are left out.
    """
    async with begin(engine) as connection:
        # Not shared, as every other transaction takes it: those under way end first.
        own = (await connection.execute(sa.select(t.installation).with_for_update())).one()
        fence = Fence(own.id, max(own.epoch + 1, at))
        await connection.execute(sa.update(t.installation).values(epoch=fence.epoch))
        q = t.queues.c
        raised: dict[str, object] = {"version": q.version + 1}
        if jump:
            raised["next_number"] = sa.case((q.next_number < at, at), else_=q.next_number)
        await connection.execute(sa.update(t.queues).values(raised))
        for queue in (await connection.execute(sa.select(q.name, q.version))).all():
            tx = Tx(connection, Stamp(fence, queue.name, at), queue.version, ())
            await tx.note(tx.itself, "restored" if jump else "recovered", by.reason, by=by)
        return fence
