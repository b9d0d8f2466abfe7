"""The internal header by which an ingress tells a replica whose request it is. No client's own header becomes it."""

import json
from collections.abc import Mapping

from peagle.router.fairness.client_terms import Client, ClientClass
from peagle.router.fairness.step_sharing import Flow

CLIENT_HEADER = "x-peagle-client"


def told(client: Client) -> str:
    """The header's value."""
    fields = {"client": client.name, "weight": client.weight, "class": client.class_}
    return json.dumps(fields, separators=(",", ":"))


def flow_in(headers: Mapping[str, str]) -> Flow | None:
    """Whose request the headers say it is; None where they do not say."""
    if (value := headers.get(CLIENT_HEADER)) is None:
        return None
    fields = json.loads(value)
    return Flow(fields["client"], fields["weight"], fields["class"] == ClientClass.BATCH)
