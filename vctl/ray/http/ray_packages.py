"""Ray's job API: the archives that its clients upload before a submit."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.requests import ClientDisconnect

from vctl.errors import BadSpec, NotFound, VctlError
from vctl.http.answers import TooLarge
from vctl.http.context import Server, asking, server_of
from vctl.http.documents import ERRORS
from vctl.http.guard import UPLOADS
from vctl.ray.ops import packages
from vctl.ray.ops.packages import MAX_BYTES, PROTOCOL

SWEEP_S = 600.0

router = APIRouter(prefix=UPLOADS.rstrip("/"), tags=["ray"], responses=ERRORS)

Protocol = Annotated[str, Path(description=f"`{PROTOCOL}`: the store of this server.")]
Package = Annotated[str, Path(description="Name of the archive, with its ending.")]


@router.get("/{protocol}/{package}", response_class=Response)
def exists(request: Request, protocol: Protocol, package: Package) -> Response:
    """Whether a package was uploaded: 200 or 404, without a body."""
    _check_protocol(protocol)
    if not packages.exists(server_of(request).home, package, _uid()):
        raise NotFound(f"Package {protocol}://{package} does not exist", fix="upload it with PUT")
    return Response()


@router.put("/{protocol}/{package}", response_class=Response)
async def upload(request: Request, protocol: Protocol, package: Package) -> Response:
    """Upload a package for the working directory or a Python module: .zip, .whl, .tar.gz, .tgz or .tar.xz."""
    _check_protocol(protocol)
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BYTES:
        raise TooLarge("the package is too large", fix=f"at most {MAX_BYTES >> 20} MiB are accepted")
    try:
        with packages.upload(server_of(request).home, package, _uid()) as coming:
            async for block in request.stream():
                await asyncio.to_thread(coming.write, block)
            await asyncio.to_thread(coming.finish)
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected
    return Response()


async def sweep_now_and_then(server: Server) -> None:
    """Remove files that no job needs any more, again and again while the server runs."""
    while True:
        try:
            await server.read(packages.sweep)
        except (OSError, VctlError) as error:
            sys.stderr.write(f"vctl serve: files of former jobs stay: {error}\n")
        await asyncio.sleep(SWEEP_S)


def _uid() -> int | None:
    """Whose packages a request is about."""
    identity = asking()
    return None if identity is None else identity.uid


def _check_protocol(protocol: str) -> None:
    if protocol != PROTOCOL:
        raise BadSpec(f"packages of {protocol[:50]!r} are not stored here", fix=f"upload it as {PROTOCOL}")
