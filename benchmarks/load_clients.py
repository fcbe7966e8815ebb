"""Clients that ask a server of this machine one request after the other, for a bounded time.

    python benchmarks/load_clients.py PORT CLIENTS SECONDS ITEMS

Each sends a history of 20 random items to /recommend over a connection that stays open, and reads
the whole answer before it asks again. Its requests are made before, and sent in turns: clients are
not what is measured. Prints JSON: the number of requests, quantiles of their seconds, and the
seconds of all.
"""

import asyncio
import json
import random
import statistics
import sys
import time

HISTORY, K = 20, 20
REQUESTS = 50  # of a client


def request_of(draw: random.Random, items: int) -> bytes:
    body = json.dumps({"histories": [[draw.randrange(items) for _ in range(HISTORY)]], "k": K})
    return (
        f"POST /recommend HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def client(port: int, end: float, requests: list[bytes]) -> list[float]:
    """Seconds of each request; raises ValueError for an answer other than 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found: list[float] = []
    while (start := time.perf_counter()) < end:
        writer.write(requests[len(found) % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise ValueError(head.split(b"\r\n")[0].decode())
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        found.append(time.perf_counter() - start)
    writer.close()
    return found


async def run(port: int, clients: int, seconds: float, items: int) -> dict[str, object]:
    draw = random.Random(0)
    requests = [[request_of(draw, items) for _ in range(REQUESTS)] for _ in range(clients)]
    start = time.perf_counter()
    end = start + seconds
    found = await asyncio.gather(*(client(port, end, mine) for mine in requests))
    total = time.perf_counter() - start
    seconds = [each for one in found for each in one]
    cuts = statistics.quantiles(seconds, n=100)
    return {"requests": len(seconds), "p50": cuts[49], "p99": cuts[98], "total_seconds": total}


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
