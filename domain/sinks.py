"""Settings of a sink: who hears, how it is reached, and how long it is tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_network
from typing import Final

from domain.errors import Malformed
from domain.settings import in_range

BUDGET: Final = (60, 30 * 86_400)
LOG: Final = "log"
SOURCE: Final = "lastgreen"
ON_EDGES: Final = frozenset({"slack"})
"""Kinds that hear of changes alone, unless told otherwise."""
_ADDRESS: Final = ("url", "url_variable")
NEEDS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    LOG: (),
    "webhook": (_ADDRESS, ("secrets",)),
    "slack": (_ADDRESS,),
    "github_status": (("repository",), ("token", "app")),
    "command": (("command",),),
}
"""Kind → of each group one must be given."""
MAY: Final[Mapping[str, frozenset[str]]] = {
    LOG: frozenset(),
    "webhook": frozenset({"allow"}),
    "slack": frozenset({"allow"}),
    "github_status": frozenset({"url", "allow", "covered", "target", "installation", "key"}),
    "command": frozenset({"environment"}),
}


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Of secrets it holds the names of environment variables alone."""

    name: str
    kind: str
    hook_budget: float = 72 * 3600
    url: str = ""
    url_variable: str = ""
    secrets: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    """Networks that may be called although they are private."""
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    repository: str = ""
    token: str = ""
    app: str = ""
    installation: str = ""
    key: str = ""
    target: str = ""
    covered: bool = False

    def __post_init__(self) -> None:
        if self.kind not in NEEDS:
            raise Malformed(f"kind = {self.kind!r}: must be one of {', '.join(NEEDS)}")
        if not self.name or self.name == LOG:
            raise Malformed(f"name = {self.name!r}: `log` is always there, and is no other's name")
        in_range("hook_budget", self.hook_budget, BUDGET)
        needs = NEEDS[self.kind]
        for group in needs:
            if sum(bool(getattr(self, key)) for key in group) != 1:
                raise Malformed(f"{group[0]}: a {self.kind} sink needs {' or '.join(group)}")
        known = {"name", "kind", "hook_budget", *MAY[self.kind], *(k for g in needs for k in g)}
        for key in (field.name for field in fields(self)):
            if key not in known and getattr(self, key):
                raise Malformed(f"{key}: a {self.kind} sink has no such setting")
        if not bool(self.app) == bool(self.installation) == bool(self.key):
            raise Malformed("app: an App needs app, installation and key, all three")
        self._check_address()

    def _check_address(self) -> None:
        if "@" in self.url:
            raise Malformed("url: holds a credential; name a variable by url_variable instead")
        for network in self.allow:
            try:
                ip_network(network)
            except ValueError as error:
                raise Malformed(f"allow: {error}") from error
