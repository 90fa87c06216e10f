"""Threads whose time is simulated: one runs at a time, until it sleeps, waits for a server or ends. It takes the
place of the module `time`."""

import heapq
import threading

STACK_BYTES = 256 * 1024


class Simulation:
    def __init__(self):
        self._now, self._served_until, self._number = 0.0, 0.0, 0
        self._sleeping: list = []  # (when it wakes, number, its lock)
        self._ended = threading.Event()

    def monotonic(self):
        return self._now

    def sleep(self, seconds):
        woken = threading.Lock()
        woken.acquire()
        self._number += 1
        heapq.heappush(self._sleeping, (self._now + seconds, self._number, woken))
        self._wake_next()
        woken.acquire()

    def serve(self, seconds):
        """Waits for a server that does one thing at a time."""
        self._served_until = max(self._served_until, self._now) + seconds
        self.sleep(self._served_until - self._now)

    def _wake_next(self):
        if not self._sleeping:
            self._ended.set()
            return
        self._now, _, woken = heapq.heappop(self._sleeping)
        woken.release()

    def run(self, body, count):
        """body(n) in a thread each. Returns when all have ended."""
        failed = []

        def one(n, woken):
            woken.acquire()
            try:
                body(n)
            except Exception as e:
                failed.append(e)
            self._wake_next()

        before = threading.stack_size(STACK_BYTES)
        for n in range(count):
            woken = threading.Lock()
            woken.acquire()
            self._number += 1
            heapq.heappush(self._sleeping, (0.0, self._number, woken))
            threading.Thread(target=one, args=(n, woken), daemon=True).start()
        threading.stack_size(before)
        self._wake_next()
        self._ended.wait()
        if failed:
            raise failed[0]
