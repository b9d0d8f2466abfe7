"""Internal header that names a request's client to a replica. Clients cannot set it."""

import json
from collections.abc import Mapping

from peagle.router.fairness.client_terms import Client, ClientClass
from peagle.router.fairness.step_sharing import Flow

CLIENT_HEADER = "x-peagle-client"


def told(client: Client) -> str:
    """Return the header's value."""
    fields = {"client": client.name, "weight": client.weight, "class": client.class_}
    return json.dumps(fields, separators=(",", ":"))


def flow_in(headers: Mapping[str, str]) -> Flow | None:
    """Return the request's flow from its headers; None if they have none."""
    if (value := headers.get(CLIENT_HEADER)) is None:
        return None
    fields = json.loads(value)
    return Flow(fields["client"], fields["weight"], fields["class"] == ClientClass.BATCH)
