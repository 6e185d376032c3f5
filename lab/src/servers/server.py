"""The lab's own server: a directory's files, whole or one range of them, and uploads.

A body sent by PUT or POST to /upload or /upload/NAME is stored, and answered
with its length and SHA-256. /count answers how many requests came before it.
"""

import argparse
import hashlib
import http.server
import itertools
import json
import os
import re
import ssl
import threading
import urllib.parse

CHUNK = 1 << 18


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 75
    # Head and body in one segment where they fit.
    wbufsize = 1 << 16

    def do_GET(self):
        if self.path == "/count":
            return self.answer_json(200, {"requests": self.number - 1})
        path = self.document()
        if path is None:
            return self.answer_json(404, {"error": "no such document"})
        size = os.path.getsize(path)
        span = self.range(size)
        if span == ():
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        start, end = span or (0, size)
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        kind = "text/html" if path.endswith(".html") else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", self.etag(path))
        self.end_headers()
        self.sent = end - start
        if self.command == "HEAD":
            return
        with open(path, "rb") as file:
            if isinstance(self.connection, ssl.SSLSocket):
                file.seek(start)
                left = end - start
                while left:
                    piece = file.read(min(CHUNK, left))
                    left -= len(piece)
                    self.wfile.write(piece)
            elif end > start:
                self.wfile.flush()
                self.connection.sendfile(file, start, end - start)

    do_HEAD = do_GET

    def do_PUT(self):
        name = re.fullmatch(r"/upload(?:/([A-Za-z0-9_-][A-Za-z0-9._-]*))?", self.path)
        if not name:
            self.close_connection = True
            return self.answer_json(404, {"error": "uploads go to /upload or /upload/NAME"})
        digest, length = hashlib.sha256(), 0
        new = os.path.join(options.uploads, f".{self.number}")
        with open(new, "wb") as file:
            for piece in self.body():
                file.write(piece)
                digest.update(piece)
                length += len(piece)
        os.rename(new, os.path.join(options.uploads, name[1] or "body"))
        self.answer_json(201, {"bytes": length, "sha256": digest.hexdigest()})

    do_POST = do_PUT

    def parse_request(self):
        self.number = next(numbers)
        self.sent = 0
        return super().parse_request()

    def handle_expect_100(self):
        proceed = super().handle_expect_100()
        self.wfile.flush()
        return proceed

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield from self.pieces(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
        else:
            yield from self.pieces(int(self.headers.get("Content-Length", 0)))

    def pieces(self, left):
        while left:
            piece = self.rfile.read(min(CHUNK, left))
            if not piece:
                raise ConnectionError("the body ends early")
            left -= len(piece)
            yield piece

    def document(self):
        name = urllib.parse.unquote(self.path.split("?")[0]).lstrip("/") or "index.html"
        path = os.path.realpath(os.path.join(options.root, name))
        inside = os.path.commonpath([path, options.root]) == options.root
        return path if inside and os.path.isfile(path) else None

    def range(self, size):
        """The first and the end of the range asked for; () if it cannot be had."""
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not asked or asked[0] == "bytes=-":
            return None
        if self.headers.get("If-Range", self.etag()) != self.etag():
            return None
        if asked[1]:
            start = int(asked[1])
            end = min(int(asked[2]) + 1, size) if asked[2] else size
        else:
            start, end = max(size - int(asked[2]), 0), size
        return (start, end) if start < end else ()

    def etag(self, path=None):
        facts = os.stat(path or self.document())
        return f'"{facts.st_size:x}-{facts.st_mtime_ns:x}"'

    def answer_json(self, status, value):
        text = (json.dumps(value) + "\n").encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.sent = len(text)
        if self.command != "HEAD":
            self.wfile.write(text)

    def send_response(self, code, message=None):
        super().send_response(code, message)
        self.status = code

    def end_headers(self):
        self.send_header("X-Backend", options.name)
        super().end_headers()

    def handle_one_request(self):
        self.status = None
        super().handle_one_request()
        if options.log and self.status:
            with log_lock, open(options.log, "a") as log:
                print(self.command, self.path, self.status, self.sent, file=log)

    def log_message(self, format, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 4096
    daemon_threads = True
    context = None

    def finish_request(self, request, address):
        # In the connection's own thread: a slow handshake holds up nobody.
        if self.context:
            try:
                request.settimeout(Handler.timeout)
                request = self.context.wrap_socket(request, server_side=True)
            except OSError:
                return
            with request:
                super().finish_request(request, address)
                request.shutdown(http.server.socket.SHUT_WR)
        else:
            super().finish_request(request, address)

    def server_bind(self):
        # The base class asks the resolver for the host's name, which takes time.
        self.socket.setsockopt(http.server.socket.SOL_SOCKET, http.server.socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = options.name, self.server_address[1]

    def handle_error(self, request, address):
        pass


def serve(port, tls):
    server = Server(("0.0.0.0", port), Handler)
    if tls:
        server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.context.load_cert_chain(options.certificate, options.key)
    threading.Thread(target=server.serve_forever).start()


parser = argparse.ArgumentParser()
for required in ("--name", "--root", "--uploads"):
    parser.add_argument(required, required=True)
for optional in ("--certificate", "--key", "--log"):
    parser.add_argument(optional)
for listed in ("--port", "--tls-port"):
    parser.add_argument(listed, type=int, action="append", default=[])
options = parser.parse_args()
options.root = os.path.realpath(options.root)
numbers = itertools.count(1)
log_lock = threading.Lock()
for port in options.port:
    serve(port, False)
for port in options.tls_port:
    serve(port, True)
