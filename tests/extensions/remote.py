"""A bare repository to test against, written by ``git fast-import``."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

MAIN: Final = "refs/heads/main"
GREEN: Final = "refs/heads/green"
START: Final = 1_700_000_000
ZERO: Final = "0" * 40
_ENVIRONMENT: Final = {
    "PATH": "/usr/bin:/bin:/usr/local/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


class Remote:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--bare", "--template=", "--initial-branch=main")
        self._made = 0
        self._config = (path / "config").read_text()

    def git(self, *arguments: str, data: bytes = b"") -> str:
        command = ["git", "-C", str(self.path), *arguments]
        done = subprocess.run(
            command, input=data, env=_ENVIRONMENT, capture_output=True, check=True
        )
        return done.stdout.decode().strip()

    def land(self, *names: str, base: str | None = None, ref: str = MAIN) -> list[str]:
        parent = base or self.at(ref)
        uris = []
        for name in names:
            parent = self.write(b"Ada", name.encode(), ref=ref, parent=parent)
            uris.append(parent)
        return uris

    def write(
        self,
        author: bytes,
        message: bytes,
        seconds: int | None = None,
        ref: str = MAIN,
        parent: str | None = None,
    ) -> str:
        self._made += 1
        when = START + 60 * self._made if seconds is None else seconds
        parent = parent or self.at(ref)
        who = b" ".join([author, b"<ada@example.org> %d +0000" % when])
        stream = b"commit %s\nmark :1\nauthor %s\ncommitter %s\n" % (ref.encode(), who, who)
        stream += b"data %d\n%s\n" % (len(message), message)
        if parent is not None:
            stream += b"from %s\n" % parent.encode()
        content = message[:40] * 20
        stream += b"M 100644 inline folder/file\ndata %d\n%s\n" % (len(content), content)
        flags = ("--quiet", "--force", "--cat-blob-fd=1")
        return self.git("fast-import", *flags, data=stream + b"get-mark :1\n")

    def at(self, ref: str) -> str | None:
        return self.git("for-each-ref", "--format=%(objectname)", ref) or None

    def point(self, ref: str, uri: str | None) -> None:
        self.git("update-ref", ref, uri or ZERO) if uri else self.git("update-ref", "-d", ref)

    def protect(self, text: str) -> None:
        hook = self.path / "hooks" / "pre-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit 1\n")
        hook.chmod(0o755)

    def configure(self, text: str) -> None:
        self._config += text
        self.come_back()

    def packs(self) -> set[str]:
        return {path.name for path in (self.path / "objects" / "pack").glob("*.pack")}

    def go_out(self) -> None:
        (self.path / "config").write_text("[broken")

    def come_back(self) -> None:
        (self.path / "config").write_text(self._config)
