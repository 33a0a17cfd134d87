#!/usr/bin/env python3
"""A plugin of watcherd: stores each event once, and the current state of each object, in SQLite.

    python3 sink.py /tmp/sink.sock changes.db
    watcherd sinktest --url unix:///tmp/sink.sock

watcherd starts it by `plugin: {command: [python3, sink.py, "{socket}", changes.db]}`, and it ends with its input then.
With SINK_TOKEN set, requests must carry it as a bearer token.
"""
import hmac
import json
import os
import socketserver
import sqlite3
import sys
import threading
from http.server import BaseHTTPRequestHandler

LIMIT = 64 << 20  # bytes of a request
# What an event that is not understood raises.
REFUSED = (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError)
TABLES = """
create table if not exists history (id text primary key, sequence integer not null, type text not null, key text not null, event text not null);
create table if not exists objects (key text primary key, sequence integer not null, deleted integer not null, object text);
"""


class Store:
    def __init__(self, path):
        self.lock = threading.Lock()
        self.db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self.db.executescript("pragma journal_mode = wal; pragma synchronous = full;" + TABLES)

    def write(self, batch):
        """Returns a result for each event, once all of them are on disk."""
        with self.lock:
            self.db.execute("begin immediate")
            try:
                results, failed = [], set()
                for event in batch:
                    results.append(self.event(event, failed))
                self.db.execute("commit")
                return results
            except BaseException:
                if self.db.in_transaction:  # a full disk ends it
                    self.db.execute("rollback")
                raise

    def event(self, event, failed):
        key = event["partitionkey"]
        if key in failed:  # behind a failed event no later one of its object is stored
            return {"status": "held"}
        try:
            sequence, kind = int(event["sequence"]), event["type"]
            # A number beyond Python's would become Infinity, which is no JSON.
            row = event["id"], sequence, kind, key, json.dumps(event, allow_nan=False)
            deleted = kind.endswith(".deleted") or event["data"].get("selection") == "left"
            state = key, sequence, deleted, json.dumps(event["data"].get("object"))
            self.db.execute("insert into history values (?, ?, ?, ?, ?) on conflict (id) do nothing", row)
            if kind != "dev.watcherd.gap":
                self.db.execute(
                    "insert into objects values (?, ?, ?, ?) on conflict (key) do update"
                    " set sequence = excluded.sequence, deleted = excluded.deleted, object = excluded.object"
                    " where objects.sequence < excluded.sequence",
                    state,
                )
            return {"status": "accepted"}
        except REFUSED as e:
            failed.add(key)
            return {"status": "poison", "message": repr(e)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open
    timeout = 300

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        length = int(length) if length.isdecimal() else -1
        if not 0 <= length <= LIMIT:
            return self.answer(413 if length > LIMIT else 411, {"error": "a length of at most 64 MiB is wanted"}, close=True)
        body = self.rfile.read(length)
        if len(body) < length:  # the client has given up
            self.close_connection = True
            return
        token = os.environ.get("SINK_TOKEN", "")
        if token and not hmac.compare_digest(self.headers.get("Authorization", "").encode(), ("Bearer " + token).encode()):
            return self.answer(401, {"error": "another token is wanted"})
        try:
            batch = json.loads(body)
            if not isinstance(batch, list) or not all(isinstance(e, dict) and isinstance(e.get("partitionkey"), str) for e in batch):
                raise ValueError("not an array of CloudEvents")
        except (ValueError, RecursionError) as e:
            return self.answer(400, {"error": str(e)})
        try:
            results = self.server.store.write(batch)
        except sqlite3.Error as e:  # a full disk, say: nothing of the batch is stored
            return self.answer(503, {"error": str(e)})
        self.answer(200, {"results": results})

    def answer(self, status, document, close=False):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if close:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

    def address_string(self):
        return "watcherd"


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *request):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # the client has given up
            super().handle_error(*request)


def main():
    path, database = sys.argv[1:3]
    if "WATCHERD_SOCKET" in os.environ:  # started by watcherd, whose end is that of the input
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    if os.path.exists(path):
        os.unlink(path)  # of a process that was killed
    os.umask(0o177)  # only this user may connect
    with Server(path, Handler) as server:
        server.store = Store(database)
        server.serve_forever()


if __name__ == "__main__":
    main()
