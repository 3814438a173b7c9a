"""Translation of a node's refusals into the errors that all endpoints raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_pipeline.core.client.node_client import NodeError, NodeUnavailable
from spark_pipeline.core.errors import Conflict, EndpointUnavailable, Fenced, PipelineError, UnknownTopic


@contextmanager
def as_pipeline_errors() -> Iterator[None]:
    """Translate every NodeError of the block."""
    try:
        yield
    except NodeError as error:
        raise pipeline_error(error) from error


def pipeline_error(error: NodeError) -> PipelineError:
    """Return the PipelineError for a node's refusal."""
    if isinstance(error, NodeUnavailable):
        return EndpointUnavailable(str(error))
    if error.kind == "ImportFenced":
        return Fenced(str(error))
    if error.status == 404:
        return UnknownTopic(str(error))
    if error.status == 409:
        return Conflict(str(error), int(error.details.get("offset", -1)))
    return PipelineError(str(error))
