"""Events on the wire: CloudEvents 1.0, structured mode; the models make the published schemas."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from domain.event import EventType, HookEvent

CONTENT_TYPE: Final = "application/cloudevents+json"


class Identity(BaseModel):
    """What the event is about; its state is read where it is kept."""

    model_config = ConfigDict(extra="forbid")
    queue: Annotated[str, Field(description="such as `shop/main`")]
    request_id: Annotated[str, Field(description="`request/<queue>/<n>`")]


class ProjectIdentity(Identity):
    project: Annotated[str, Field(description="as its build reported it")]


class CloudEvent(BaseModel):
    """Attributes that are not named here may come, and mean nothing."""

    specversion: Literal["1.0"] = "1.0"
    id: Annotated[str, Field(min_length=1, description="the same for every repeat")]
    source: Annotated[str, Field(min_length=1, json_schema_extra={"format": "uri-reference"})]
    type: EventType
    subject: Annotated[str, Field(min_length=1, description="the request, or its project")]
    time: Annotated[datetime, Field(description="when it happened")]
    datacontenttype: Literal["application/json"] = "application/json"
    data: Identity | ProjectIdentity


def _model_of(kind: EventType) -> type[CloudEvent]:
    name = "".join(part.capitalize() for part in kind.removeprefix("validation.").split("."))
    data: Any = ProjectIdentity if kind is EventType.PROJECT_RECORDED else Identity
    literal: Any = Literal[kind.value]
    return create_model(name, __base__=CloudEvent, type=(literal, ...), data=(data, ...))


MODELS: Final[dict[EventType, type[CloudEvent]]] = {kind: _model_of(kind) for kind in EventType}


def cloud_event(event: HookEvent, source: str) -> dict[str, Any]:
    made = MODELS[event.type](
        id=event.id,
        source=source,
        type=event.type,
        subject=event.subject,
        time=datetime.fromtimestamp(event.timestamp_ms / 1000, UTC),
        data=event.payload,  # type: ignore[arg-type] # checked by the model
    )
    return made.model_dump(mode="json")
