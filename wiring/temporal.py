"""The connection to Temporal, and what must be there before a worker may start."""

from __future__ import annotations

from typing import Any, Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from domain.errors import Misconfigured
from workflows.ids import SEARCH_ATTRIBUTES

OURS: Final = (
    *("activities", "domain", "extensions", "pydantic", "sqlalchemy", "stores"),
    *("workflows.ids", "workflows.messages", "workflows.policies"),
)
SANDBOX: Final = SandboxedWorkflowRunner(
    restrictions=SandboxRestrictions.default.with_passthrough_modules(*OURS)
)
"""Messages are decoded inside the sandbox: the modules of their types must be the real ones."""


class TemporalOut(Exception):
    """Temporal cannot be reached; says the address that was tried."""


async def connect(address: str | None = None, namespace: str | None = None) -> Client:
    """By Temporal's own environment variables and profile, unless an address is given."""
    profile: dict[str, Any] = dict(ClientConfig.load_client_connect_config())
    profile["target_host"] = address or profile.get("target_host") or "localhost:7233"
    profile["namespace"] = namespace or profile.get("namespace") or "default"
    try:
        return await Client.connect(**profile, data_converter=pydantic_data_converter)
    except (RuntimeError, RPCError) as error:
        raise TemporalOut(
            f"Temporal does not answer at {profile['target_host']}: set TEMPORAL_ADDRESS to where "
            "it runs, or start everything on this machine with `lastgreen up`"
        ) from error


async def check_search_attributes(client: Client) -> None:
    """Add what is missing: an attribute that is not registered fails every workflow task."""
    listed = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = [key.name for key in SEARCH_ATTRIBUTES if key.name not in listed.custom_attributes]
    if not missing:
        return
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace, search_attributes=dict.fromkeys(missing, keyword)
            )
        )
    except RPCError as error:
        names = " ".join(f"--name {name}" for name in missing)
        raise Misconfigured(
            f"search attributes are missing: run `temporal operator search-attribute create "
            f"--type Keyword {names}` ({error})"
        ) from error
