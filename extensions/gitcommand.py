"""Git, kept on a short chain: nothing of ours leaks in, nothing foreign is run, nothing prompts."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from git.cmd import Git

from domain.errors import Malformed, Misconfigured, NotFound, SourceControlOut
from domain.settings import normal_ref
from extensions.text import clean

Answer = asyncio.Future[tuple[bytes, bytes]]
PROTOCOLS: Final = ("file", "git", "ssh", "https", "http")
COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# A pool of its own: a slow remote may not hold up what else runs in threads.
_THREADS: Final = ThreadPoolExecutor(max_workers=512, thread_name_prefix="git")
MAX_REF: Final = 255
NO_GIT: Final = 127
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_OPTION: Final = re.compile(r"-|\w+://([^/]*@)?-|[^/]*@-|[^/]*:-")
_BAD_REF: Final = re.compile(r"(^|/)\.|\.\.|[ ~^:?*\[\\]|@\{|//|[/.]$|\.lock(/|$)")
_SECRET: Final = re.compile(r"(?<=://)[^/\s]*@")
_DENIED: Final = re.compile(
    r"Permission denied|Authentication failed|could not read (Username|Password)"
    r"|Host key verification failed|returned error: 40[13]|denied to|access denied"
    r"|transport '.*' not allowed|Unable to find remote helper|strange \w+ '",
    re.IGNORECASE,
)
_MISSING: Final = re.compile(
    r"couldn't find remote ref|not appear to be a git repository|repository .*not found"
    r"|remote: Not Found|not a git repository|repository .*does not exist",
    re.IGNORECASE,
)
_CONFIG: Final = "[uploadpack]\nallowFilter=true\n[safe]\ndirectory=*\n[protocol]\nversion=2\n"
_FIXED: Final = (
    *("GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=false", "LC_ALL=C"),
    *("SSH_ASKPASS=false", "SSH_ASKPASS_REQUIRE=never"),
)


class GitFailed(Exception):
    """Git ended with ``code``, or was ended (below 0); ``text`` is what it said, cleaned."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = clean(redact(text).strip(), 2_000)
        super().__init__(f"git ended with {code}: {self.text}")


class GitCommand:
    """Runs git in ``directory``; ``home`` holds our configuration, never the user's."""

    def __init__(self, directory: Path, home: Path) -> None:
        self._directory = directory.absolute()
        self._home = home.absolute()

    async def run(self, *arguments: str, timeout: float = 60, offline: bool = False) -> str:  # noqa: ASYNC109 -- ends the process too
        """What git wrote. ``offline`` forbids every transport, a lazy fetch's too."""
        command = ["env", "-i", *self._environment(offline=offline)]
        command += ["git", "-C", str(self._directory), *arguments]
        process = Git().execute(command, as_process=True, start_new_session=True)
        loop = asyncio.get_running_loop()
        answer: Answer = loop.run_in_executor(_THREADS, process.communicate)
        try:
            await asyncio.wait({answer}, timeout=timeout)
        finally:
            is_late = not answer.done()
            if is_late:
                await _end(process.pid, answer)
        if is_late:
            raise GitFailed(-signal.SIGKILL, f"git {arguments[0]}: no answer in {timeout:g} s")
        output, errors = (part.decode(errors="replace") for part in answer.result())
        if process.returncode != 0:
            raise GitFailed(process.returncode, f"{errors}\n{output}")
        return output.removesuffix("\n")

    def _environment(self, *, offline: bool) -> list[str]:
        configuration = self._home / "gitconfig"
        if not configuration.exists():
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = configuration.with_name(f"gitconfig.{os.getpid()}")
            draft.write_text(_CONFIG)
            draft.replace(configuration)
        kept = {name: os.environ[name] for name in ("PATH", "SSH_AUTH_SOCK") if name in os.environ}
        ssh = os.environ.get("GIT_SSH_COMMAND", "ssh")
        return [
            *(f"{name}={value}" for name, value in kept.items()),
            f"HOME={self._home}",
            f"GIT_SSH_COMMAND={ssh} -oBatchMode=yes -oConnectTimeout=20",
            f"GIT_ALLOW_PROTOCOL={'none' if offline else ':'.join(PROTOCOLS)}",
            f"GIT_CEILING_DIRECTORIES={self._directory.parent}",
            f"GIT_CONFIG_GLOBAL={configuration}",
            *_FIXED,
        ]


async def _end(group: int, answer: Answer) -> None:
    """Ask first: a killed git leaves its locks behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(group, number)
        await asyncio.wait({answer}, timeout=2)


def redact(text: str) -> str:
    return _SECRET.sub("***@", text)


def check_url(url: str) -> str:
    """A path is made absolute; ``Malformed`` where git could see an option or a command."""
    scheme, separator, _ = url.partition("://")
    bad = not url or _CONTROL.search(url) or _OPTION.match(url) or re.match(r"[\w+.-]*::", url)
    if bad or (separator and scheme not in PROTOCOLS):
        allowed = ", ".join(PROTOCOLS)
        raise Malformed(f"repository {redact(url)[:200]!r}: must be a path or a URL of {allowed}")
    return url if ":" in url else str(Path(url).absolute())


def check_ref(ref: str) -> str:
    """Its full name, or ``Malformed`` as git's own check would say."""
    full = normal_ref(ref)
    is_bad = not ref or ref.startswith("-") or _CONTROL.search(ref) or _BAD_REF.search(full)
    if is_bad or len(full.encode()) > MAX_REF:
        raise Malformed(f"ref {ref[:200]!r}: not a name of a ref, such as main or refs/heads/main")
    return full


def classify(failed: GitFailed) -> Exception:
    """What may be done about it; what nobody knows may pass."""
    if _DENIED.search(failed.text):
        cure = "give this worker an ssh key, or put a token into the repository's URL"
        return Misconfigured(f"git was let in nowhere: {failed.text}; {cure}")
    if failed.code == NO_GIT:
        return Misconfigured(f"install git: {failed.text}")
    return (NotFound if _MISSING.search(failed.text) else SourceControlOut)(failed.text)
