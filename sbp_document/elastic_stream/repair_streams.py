"""``anabranch repair-streams``: streams that an elastic-stream placement driver has forgotten."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from bridges.commands.common import json_option, print_json
from bridges.commands.failure import fail

if TYPE_CHECKING:
    from sbp_back.wire.model import StreamInfo


@click.command("repair-streams", short_help="Restore streams that an elastic-stream placement driver forgot.")
@click.option("--pd", required=True, metavar="HOST:PORT", help="Placement driver; several of one are separated by ','.")
@click.option(
    "--servers",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    metavar="N",
    help="Ranges of range servers with numbers below N are looked at.",
)
@click.option("--check", is_flag=True, help="Only tell which streams would be made known again.")
@json_option
def command(pd: str, servers: int, check: bool, as_json: bool) -> None:
    """Make streams known again that an elastic-stream placement driver has forgotten.

    Its DELETE_STREAM forgets a stream and keeps the ranges, and a range server that has one of them does not start any
    more (it panics, after 1404). Streams that are made known again have their data, and take its space.
    """
    from sbp_back.errors import SbpError

    try:
        forgotten = asyncio.run(_repair(pd, servers, check))
    except ValueError as error:
        fail(f"--pd: {error}")
    except SbpError as error:
        fail(f"the placement driver at {pd}: {error}")
    streams = [stream.stream_id for stream in forgotten]
    if as_json:
        print_json({"forgotten": streams, "repaired": not check})
    elif not streams:
        click.echo("every stream that has ranges is known")
    else:
        what = "would be made known again" if check else "are known again"
        click.echo(f"streams that had been forgotten and {what}: {', '.join(map(str, streams))}")


async def _repair(pd: str, servers: int, check: bool) -> list[StreamInfo]:
    from sbp_back.client.leader import pd_carrier
    from sbp_back.transport.tcp_carrier import tcp_connector
    from sbp_document.elastic_stream.client import ForeignClient

    client = ForeignClient(pd_carrier(pd), tcp_connector())
    try:
        forgotten = await client.forgotten_streams(servers)
        if not check:
            for stream in forgotten:
                await client.restore_stream(stream)
    finally:
        await client.close()
    return forgotten
