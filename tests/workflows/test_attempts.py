"""Retries and commits that come back: attempts at one commit, and what stands of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client

from domain.act import Verb
from domain.errors import Refused
from domain.fact import Exit
from domain.request import Cause, State, Strategy
from tests.trunk import Trunk, running_trunk


@pytest.mark.spec("V177")
async def test_heads_and_retries_are_admitted_in_ingest_order(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, max_concurrent=3) as trunk:
        await trunk.report("A")
        await trunk.fails("A")
        await trunk.act(Verb.PAUSE)
        await trunk.report("B", "C")
        await trunk.act(Verb.RETRY, 1)
        await trunk.report("D")
        assert await trunk.states() == "A fai, B acc, C acc, A acc, D acc"
        trunk.set(max_concurrent=1)
        await trunk.act(Verb.RESUME)
        await trunk.is_in("A", State.PROCESSING)
        await trunk.stays("A fai, B sup, C sup, A pro, D acc")
        await trunk.succeeds("A")
        await trunk.is_in("D", State.PROCESSING)


@pytest.mark.spec("V180", "V181")
async def test_an_old_commit_that_is_retried_is_built_in_full_and_moves_nothing_back(
    trunk: Trunk,
) -> None:
    trunk.runner.fail("find", Refused("401"), 1)
    await trunk.report("A")
    await trunk.is_in("A", State.FAILED)
    await trunk.report("C")
    await trunk.succeeds("C")
    await trunk.act(Verb.RETRY, 1)
    again = await trunk.succeeds("A")
    assert (again.state, again.strategy) == (State.SUCCEEDED, Strategy.FULL)
    assert await trunk.is_green("A") is Exit.GREEN
    assert await trunk.last_green() == (2, "C")
    holder = (await trunk.state()).holder
    assert holder is not None
    assert (holder.uri, trunk.source.promotion) == ("C", "C")


@pytest.mark.spec("V183")
async def test_a_broken_attempt_after_a_green_one_undoes_nothing(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.act(Verb.RETRY, 1)
    again = await trunk.fails("A")
    assert again.cause is Cause.BUILD_FAILED
    assert await trunk.is_green("A") is Exit.GREEN
    holder = (await trunk.state()).holder
    assert holder is not None
    assert (holder.number, trunk.source.promotion) == (1, "A")
    assert [r.number for r in await trunk.store.attempts(trunk.queue, "A")] == [2, 1]


@pytest.mark.spec("V184")
async def test_a_superseded_commit_that_is_head_again_is_validated(trunk: Trunk) -> None:
    await trunk.report("A", "B", "C")
    assert await trunk.states() == "A pro, B sup, C acc"
    trunk.source.tip = "B"
    await trunk.look()
    assert await trunk.states() == "A pro, B sup, C sup, B acc"
    await trunk.succeeds("A")
    b = await trunk.succeeds("B")
    assert (b.number, b.cause) == (4, Cause.BUILD_SUCCEEDED)


@pytest.mark.spec("V188")
@pytest.mark.parametrize("how", ["failed closed", "cancelled"])
async def test_a_commit_whose_attempt_had_no_verdict_is_built_when_it_is_head_again(
    trunk: Trunk, how: str
) -> None:
    await trunk.report("A")
    await trunk.triggered()
    await (trunk.fail_closed(1) if how == "failed closed" else trunk.act(Verb.CANCEL, 1))
    await trunk.is_in("A", State.FAILED if how == "failed closed" else State.CANCELLED)
    await trunk.report("B")
    await trunk.succeeds("B")
    trunk.source.tip = "A"
    await trunk.look()
    a = await trunk.succeeds("A")
    assert (a.number, a.cause) == (3, Cause.BUILD_SUCCEEDED)
