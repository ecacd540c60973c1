"""Somebody waits and nothing schedules: a child does it, the same ``vctl job wait`` that a local user would run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from vctl.store.locks import scheduler_is_running

LOOK_EVERY_S = 0.5
LEAVE_S = 5.0
LONGEST_PAUSE = 6
"""Doublings of the pause after children that left while their job went on: something is wrong here."""
_NOT_FOR_CHILDREN = ("VCTL_ADDRESS", "VCTL_TOKEN", "VCTL_TOKEN_FILE")


class Keeper:
    """Keeps a scheduler at work for as long as requests wait; jobs outlive it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._waiting: list[int] = []
        self._child: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def waiting_for(self, job_id: int) -> AsyncIterator[None]:
        """A request waits for a job."""
        self._waiting.append(job_id)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._tend())
        try:
            yield
        finally:
            self._waiting.remove(job_id)

    async def close(self) -> None:
        """The server ends: the child, too."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
        await self._dismiss()

    async def _tend(self) -> None:
        idle = in_vain = 0
        hired_for: int | None = None
        while idle < 4:  # another request may come at once
            idle = 0 if self._waiting else idle + 1
            alone = self._child is None or self._child.returncode is not None
            if self._waiting and alone and not scheduler_is_running(self.home):
                in_vain = in_vain + 1 if hired_for in self._waiting else 0
                hired_for = self._waiting[0]
                self._child = await self._hire(hired_for)
            await asyncio.sleep(LOOK_EVERY_S * 2 ** min(in_vain, LONGEST_PAUSE))
        await self._dismiss()

    async def _hire(self, job_id: int) -> asyncio.subprocess.Process:
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_CHILDREN}
        nothing = asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "vctl", "job", "wait", str(job_id),
            env={**kept, "VCTL_HOME": str(self.home)}, stdin=nothing, stdout=nothing,
            start_new_session=True,
        )  # fmt: skip

    async def _dismiss(self) -> None:
        child, self._child = self._child, None
        if child is None or child.returncode is not None:
            return
        child.terminate()
        try:
            await asyncio.wait_for(child.wait(), LEAVE_S)
        except TimeoutError:
            child.kill()
            await child.wait()
