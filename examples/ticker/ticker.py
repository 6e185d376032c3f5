#!/usr/bin/env python3
"""A ticker of server-sent events that outlives the backend it runs on, behind Trapeze.

Every backend runs it. Tick K of a stream is said at the same time by each, with the same bytes:
its text is made of the stream's name and K alone, and its time of the stream's first. So any of them
can go on with what another one has begun, from any byte (docs/streams.md).

    ticker.py [--address 0.0.0.0:80] [--interval 0.1] [--name b1] [--salt text]

GET /ticks           a new stream
GET /ticks?first=T   the stream whose first tick was at T, in units of the interval since 1970;
                     &ticks=N: it has N ticks, and ends
"""

import argparse
import socket
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

# A tick of so many bytes: so the tick in which byte N lies is known without what came before.
TICK_BYTES = 64


def tick(first, number, salt):
    """The event, which is the same on every backend."""
    text = f"id: {number}\ndata: {first}-{number} {salt}"
    return text.encode()[: TICK_BYTES - 2].ljust(TICK_BYTES - 2, b".") + b"\n\n"


class Handler(BaseHTTPRequestHandler):
    # The answer ends where the connection closes: without a length, and not in chunks.
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        interval, salt = self.server.interval, self.server.salt
        target = urlsplit(self.path)
        if target.path != "/ticks":
            return self.send_error(404)
        asked = parse_qs(target.query)
        try:
            now = int(time.time() / interval)
            first = int(asked.get("first", [now])[0])
            ticks = int(asked["ticks"][0]) if "ticks" in asked else None
            begin = int(self.headers.get("Trapeze-Resume-From", 0))
        except ValueError:
            return self.send_error(400)
        end = None if ticks is None else ticks * TICK_BYTES
        if begin < 0 or (end is not None and begin > end):
            return self.send_error(416)

        name = f"/ticks?first={first}" + ("" if ticks is None else f"&ticks={ticks}")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.send_header("X-Backend", self.server.name)
        # How another backend goes on with it; and that it never ends, where that is so.
        endless = ";endless" if ticks is None else ""
        self.send_header("Trapeze-Resume", f'"{name}"{endless}')
        if "Trapeze-Resume-From" in self.headers:
            self.send_header("Trapeze-Resume-From", str(begin))
        self.end_headers()
        self.wfile.flush()

        at = begin
        while end is None or at < end:
            number, within = divmod(at, TICK_BYTES)
            time.sleep(max(0, (first + number) * interval - time.time()))
            try:
                self.wfile.write(tick(first, number, salt)[within:])
            except OSError:
                return  # its client has gone
            at += TICK_BYTES - within
        self.close_connection = True

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", default="0.0.0.0:80")
    parser.add_argument("--interval", type=float, default=0.1, help="seconds")
    parser.add_argument("--name", default=socket.gethostname(), help="said as X-Backend")
    parser.add_argument("--salt", default="", help="what every tick says")
    options = parser.parse_args()
    host, port = options.address.rsplit(":", 1)
    server = ThreadingHTTPServer((host, int(port)), Handler)
    server.daemon_threads = True
    server.name, server.interval, server.salt = options.name, options.interval, options.salt
    server.serve_forever()


if __name__ == "__main__":
    main()
