"""The only place that chooses implementations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client

from activities.bisect import BisectActivities
from activities.buildrunner import BuildRunnerActivities
from activities.hooks import HookActivities
from activities.queue import StoreSteps
from activities.sourcecontrol import SourceControlActivities
from activities.watch import WatchActivities
from domain.errors import Misconfigured
from domain.identity import Fence
from domain.settings import normal_ref
from domain.sinks import LOG, SinkSettings
from extensions.buildrunner.command.run import CommandActivities
from extensions.buildrunner.command.runner import CommandRunner
from extensions.buildrunner.command.workflow import CommandWorkflow
from extensions.buildrunner.contract import BuildRunner
from extensions.github.app import Tokens
from extensions.hooks.command import CommandSink
from extensions.hooks.contract import Desk, Sink
from extensions.hooks.github_status import GitHubStatusSink
from extensions.hooks.log import LogSink
from extensions.hooks.slack import SlackSink
from extensions.hooks.webhook import WebhookSink
from extensions.projects.contract import Projects
from extensions.projects.none import NoProjects
from extensions.projects.report import ReportedProjects
from extensions.queueconfig.contract import QueueConfig
from extensions.sourcecontrol.contract import Remotes, SourceControl
from extensions.sourcecontrol.git import GitSourceControl, Mirror
from stores.contract import Store
from stores.write import SqlStore
from wiring.desk import StoreDesk
from wiring.wake import Waker
from workflows import policies
from workflows.bisect import BisectWorkflow
from workflows.build import BuildWorkflow
from workflows.buildsignal import BuildSignalWorkflow
from workflows.hook import HookWorkflow
from workflows.queue import QueueWorkflow
from workflows.record import RecordWorkflow
from workflows.watch import WatchWorkflow

T = TypeVar("T")
WORKFLOWS: Final = (
    QueueWorkflow,
    BuildWorkflow,
    BuildSignalWorkflow,
    RecordWorkflow,
    HookWorkflow,
    WatchWorkflow,
    BisectWorkflow,
    CommandWorkflow,
)


@dataclass
class Extensions:
    """Names in a configuration → what they stand for."""

    source_control: Callable[[str], SourceControl]
    remotes: Callable[[str], Remotes]
    runners: Callable[[str], BuildRunner]
    sinks: Callable[[str], Sink]
    projects: Callable[[str], Projects]


@dataclass
class TaskQueues:
    main: str = policies.MAIN_QUEUE
    builds: str = policies.BUILDS_QUEUE


@dataclass
class Parts:
    """One process's choices, made once."""

    engine: AsyncEngine
    store: Store
    config: QueueConfig
    waker: Waker
    extensions: Extensions
    builds: CommandActivities
    task_queues: TaskQueues = field(default_factory=TaskQueues)

    def activities(self) -> list[Callable[..., Any]]:
        steps = StoreSteps(self.store, self.config, self.extensions.projects)
        source = SourceControlActivities(self.store, self.config, self.extensions.source_control)
        runner = BuildRunnerActivities(self.store, self.config, self.extensions.runners)
        bisect = BisectActivities(self.store, self.config, self.extensions.source_control)
        hooks = HookActivities(self.store, self.config, self.extensions.sinks)
        return [
            steps.ingest, steps.turn, steps.act, steps.observe, steps.fail,
            steps.facts, steps.announce,
            steps.dead_letter_record, steps.dead_letter_projects, steps.dead_letter_published,
            source.look, source.ancestry, source.publish, bisect.bisect,
            runner.trigger, runner.watch_build, runner.ask_once, runner.cancel,
            hooks.pending, hooks.deliver, hooks.bury,
        ]  # fmt: skip

    def watches(self) -> WatchActivities:
        async def head_moved(fence: Fence, queue: str) -> None:
            await self.waker.head_moved(fence, queue)

        return WatchActivities(self.store, self.config, self.extensions.remotes, head_moved)


class GitRemotes:
    """One mirror a remote, made when first asked for, and anew when its queues change."""

    def __init__(self, config: QueueConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._mirrors: dict[str, tuple[frozenset[str], Mirror]] = {}

    def mirror(self, url: str) -> Mirror:
        refs = frozenset(normal_ref(q.ref) for q in self._config.list() if q.repository == url)
        known = self._mirrors.get(url)
        if known is None or known[0] != refs:
            name = sha256(url.encode()).hexdigest()[:16]
            known = (refs, Mirror(url, sorted(refs), self._folder / f"{name}.git"))
            self._mirrors[url] = known
        return known[1]

    def source_control(self, queue: str) -> GitSourceControl:
        settings = self._config.get(queue)
        return GitSourceControl(self.mirror(settings.repository), settings)


@dataclass
class Sinks:
    """Made anew when asked for: its settings may have changed."""

    config: QueueConfig
    desk: Desk
    tokens: Tokens = field(default_factory=Tokens)

    def __call__(self, name: str) -> Sink:
        if name == LOG:
            return LogSink()
        own = named("sink", {**self.config.sinks()}, name)
        return self._make(own)

    def _make(self, own: SinkSettings) -> Sink:
        match own.kind:
            case "webhook":
                return WebhookSink(own, self.config.source())
            case "command":
                return CommandSink(own, self.config.source())
            case "slack":
                return SlackSink(own, self.desk)
            case "github_status":
                return GitHubStatusSink(own, self.desk, self.tokens)
            case _:
                raise Misconfigured(f"sink {own.name}: kind {own.kind} is not known")


def named(kind: str, known: dict[str, T], name: str) -> T:
    if name not in known:
        raise Misconfigured(f"no {kind} is called {name!r}; there is: {', '.join(sorted(known))}")
    return known[name]


def make_parts(
    client: Client,
    config: QueueConfig,
    data: Path,
    engine: AsyncEngine,
    queues: TaskQueues | None = None,
) -> Parts:
    queues = queues or TaskQueues()
    waker = Waker(client, queues.main)
    remotes = GitRemotes(config, data / "mirrors")
    command = CommandRunner(client, data / "builds", config.get, queues.main, queues.builds)
    runners: dict[str, BuildRunner] = {"command": command}
    projects: dict[str, Projects] = {
        "none": NoProjects(),
        "report": ReportedProjects(data / "builds"),
    }
    store = SqlStore(engine, waker)
    extensions = Extensions(
        remotes.source_control,
        remotes.mirror,
        partial(named, "build runner", runners),
        Sinks(config, StoreDesk(store, config, remotes.source_control)),
        partial(named, "resolver of projects", projects),
    )
    builds = CommandActivities(data / "builds", config.get)
    return Parts(engine, store, config, waker, extensions, builds, queues)
