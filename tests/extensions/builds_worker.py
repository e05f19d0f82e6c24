"""A worker of builds as a process of its own, to be killed: address, bench's name and folders."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from temporalio.client import Client

from domain.settings import QueueSettings
from tests.extensions.commandbench import Bench


async def main(address: str, name: str, folder: str, script: str) -> None:
    settings = QueueSettings("trunk/main", f"{folder}/repository", "main")
    settings = replace(settings, command=("/bin/sh", "-c", script))
    bench = Bench(await Client.connect(address), Path(folder), settings, name)
    await bench.builds_worker().run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
