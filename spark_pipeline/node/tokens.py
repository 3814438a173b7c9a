"""The route for tokens: a client that authenticates by password or certificate gets one, so that its workers need
neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from bridges.http.access import principal_of
from bridges.http.errors import RequestError
from spark_pipeline.node.core import whole

if TYPE_CHECKING:
    from spark_pipeline.node.core import PipelineCore

AUDIENCE = "pipeline"
"""The audience for which the tokens are valid."""
_DAY_S = 86_400


def register(app: web.Application, core: PipelineCore) -> None:
    """Add the routes of this module."""

    async def token(request: web.Request) -> web.StreamResponse:
        """Issue a token. Body: ``seconds`` of its validity, which the node's ``auth.token_ms`` bounds."""
        body = await core.json(request, {"seconds"})
        seconds = whole(body.get("seconds", _DAY_S), "seconds", 1)
        principal = principal_of(request)
        if principal.is_anonymous:
            raise RequestError("a token is for somebody who has said who it is", 403)
        if request.headers.get("Authorization", "").lower().startswith("bearer "):
            # Otherwise a stolen token could be renewed for ever.
            raise RequestError("a token is given to who shows a password or a certificate, not another token", 403)
        return await core.answer(request, {"token": core.node.authenticator.issue(principal, seconds, AUDIENCE)})

    app.router.add_post("/v1/token", token)
