"""Callers that ask a server for embeddings, in a process of their own: threads that read streams would take their time from them.

Called with the port, the model's name, seconds, and texts a second of all callers (0: as many as they get); prints texts a second.
Uses nothing but the standard library.
"""

import http.client
import json
import sys
import threading
import time

CALLERS, TEXTS = 4, 16


def ask(port, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", "/v1/embeddings", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    said = reply.read()
    connection.close()
    if reply.status != 200:
        raise RuntimeError(f"{reply.status} {said[:500]!r}")


def main(port, model, seconds, per_second):
    counts, failures, began = [], [], time.monotonic()

    def call(number):
        count = 0
        try:
            while (now := time.monotonic() - began) < seconds:
                due = per_second and count * CALLERS * TEXTS / per_second
                if due and due > now:
                    time.sleep(min(due - now, 0.05))
                    continue
                ask(port, {"model": model, "input": [f"text {number} {count} {at} of a document to embed" for at in range(TEXTS)]})
                count += 1
        except (OSError, RuntimeError) as error:
            failures.append(error)
        counts.append(count * TEXTS)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit(f"a caller failed: {failures[0]}")
    print(sum(counts) / (time.monotonic() - began))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
