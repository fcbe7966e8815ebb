"""Clients that ask a server of this machine one request after the other, for a bounded time.

    python benchmarks/load_clients.py PORT CLIENTS SECONDS ITEMS

Each sends a history of 20 random items to /recommend over a connection that stays open, and reads
the whole answer before it asks again. Prints JSON: seconds of each request, and of all.
"""

import asyncio
import json
import random
import sys
import time

HISTORY, K = 20, 20


def request_of(draw: random.Random, items: int) -> bytes:
    body = json.dumps({"histories": [[draw.randrange(items) for _ in range(HISTORY)]], "k": K})
    return (
        f"POST /recommend HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def client(port: int, end: float, draw: random.Random, items: int) -> list[float]:
    """Seconds of each request; raises ValueError for an answer other than 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    while (start := time.perf_counter()) < end:
        writer.write(request_of(draw, items))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise ValueError(head.split(b"\r\n")[0].decode())
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        found.append(time.perf_counter() - start)
    writer.close()
    return found


async def run(port: int, clients: int, seconds: float, items: int) -> dict[str, object]:
    start = time.perf_counter()
    end = start + seconds
    found = await asyncio.gather(
        *(client(port, end, random.Random(number), items) for number in range(clients))
    )
    total = time.perf_counter() - start
    return {"seconds": [each for one in found for each in one], "total_seconds": total}


def main() -> None:
    port, clients, items = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4])
    try:
        import uvloop

        runner = uvloop.run
    except ImportError:
        runner = asyncio.run
    print(json.dumps(runner(run(port, clients, float(sys.argv[3]), items))))


if __name__ == "__main__":
    main()
