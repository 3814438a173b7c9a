"""Passes bytes on between unix sockets: what comes to the first goes to the second. To be stopped, as a network is."""

from __future__ import annotations

import asyncio
import sys


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def _main(here: str, there: str) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_unix_connection(there)
        await asyncio.gather(_pump(reader, ours), _pump(theirs, writer))

    server = await asyncio.start_unix_server(accept, here)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
