"""What a node refuses, as the errors that all endpoints have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_pipeline.core.errors import Conflict, EndpointUnavailable, Fenced, PipelineError, UnknownTopic
from spark_pipeline.core.node_client import NodeError, NodeUnavailable


@contextmanager
def as_pipeline_errors() -> Iterator[None]:
    """Whatever a node refuses in here."""
    try:
        yield
    except NodeError as error:
        raise pipeline_error(error) from error


def pipeline_error(error: NodeError) -> PipelineError:
    """What a refusal means for who asked."""
    if isinstance(error, NodeUnavailable):
        return EndpointUnavailable(str(error))
    if error.kind == "ImportFenced":
        return Fenced(str(error))
    if error.status == 404:
        return UnknownTopic(str(error))
    if error.status == 409:
        return Conflict(str(error), int(error.details.get("offset", -1)))
    return PipelineError(str(error))
