"""What can go wrong, by what may be done about it: the class is the classification."""

from __future__ import annotations


class Permanent(Exception):
    """A defect or a bad configuration: trying again cannot help."""


class Transient(Exception):
    """May pass: tried again within its budget. What nobody classified is treated the same."""

    after: float | None = None
    """Seconds that the other side asked to be left alone."""


class Uncounted(Transient):
    """Says nothing about the other side: spends no budget."""


class NotFound(Permanent):
    """The thing asked about does not exist where it was looked for."""


class Malformed(Permanent):
    """A name, id, URI or field that does not parse; the text says which and why."""


class Misconfigured(Permanent):
    """A setting or credential is missing or wrong; the text says what to change."""


class Refused(Permanent):
    """The other side answered that it will not do this."""


class Invariant(Permanent):
    """The store holds, or was asked to hold, what must not be."""


class ValueRefused(Invariant):
    """The database refuses the value itself: data or check violation, never an outage."""


class ResultsRefused(Permanent):
    """A build's project results cannot be meant: none of them counts."""


class Fenced(Permanent):
    """The store has a newer epoch: whoever acts under the old one ends without an effect."""


class WrongInstallation(Transient):
    """The store belongs to another installation; a worker of its own may still come."""


class ProjectsOut(Transient):
    """Whoever keeps a build's project results gave no answer."""


class NoSuchBuild(Transient):
    """The runner does not know that build (yet, or any more)."""


class RefusedForNow(Transient):
    """The runner refused for a reason that may pass, such as a rate limit."""


class RunnerOut(Transient):
    """The runner gave no answer: transport, timeout, server error."""


class SourceControlOut(Transient):
    """Source control gave no answer."""


class SinkOut(Transient):
    """A sink did not take an event."""

    def __init__(self, text: str, after: float | None = None) -> None:
        super().__init__(text)
        self.after = after


class SinkBusy(Uncounted):
    """As many deliveries to that sink are under way here as may be."""


class StoreOut(Uncounted):
    """The store cannot be reached, or is busy for too long."""


class NotYet(Transient):
    """Nothing new: the back-off of the activity that asks is the poll."""
