"""Has dramatiq's own test suite, of a checkout, run with the broker in the place of its stub: `pytest -p`.

What the suite asks of its stub beyond that a broker has: the failed messages, and raw messages of its queues.
"""

import os
import sys
import types
from collections import defaultdict
from typing import Any

import dramatiq.brokers.stub
from dramatiq.errors import QueueNotFound

from beanlite.client import NotFound
from beanlite.dramatiq import BeanliteBroker, BeanliteConsumer, BeanliteMessage


class Raw:
    """The raw messages of a queue."""

    def __init__(self, broker, name):
        self._broker = broker
        self._name = name

    def put(self, data):
        self._broker.run(self._broker.client.put(data, self._name))

    def get(self, timeout):
        consumer = self._broker.consume(self._name, timeout=timeout * 1000)
        message = next(consumer)
        consumer.ack(message)
        consumer.close()
        return message.encode()


class Queues(dict):
    """Raw messages by queue."""

    def __init__(self, broker):
        super().__init__()
        self._broker = broker

    def __setitem__(self, name, _value):
        super().__setitem__(name, Raw(self._broker, name))


class AsStub(BeanliteBroker):
    """The broker, as a stub."""

    def __init__(self, middleware=None, *, fail_fast_default=True):
        super().__init__(os.environ["DRAMATIQ_SERVER"], middleware=middleware)
        self.queues = Queues(self)
        self.dead_letters_by_queue = defaultdict(list)
        self.fail_fast_default = fail_fast_default

    @property
    def dead_letters(self):
        return [message for messages in self.dead_letters_by_queue.values() for message in messages]

    def consume(self, queue_name, prefetch=1, timeout=100):
        self._check(queue_name)
        return Consumer(self, queue_name, prefetch, timeout)

    def flush_all(self):
        super().flush_all()
        for messages in self.dead_letters_by_queue.values():
            messages.clear()

    def join(self, queue_name, *, timeout=None, fail_fast=None):
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        super().join(queue_name, timeout=timeout)
        if self.fail_fast_default if fail_fast is None else fail_fast:
            for message in self.dead_letters_by_queue[queue_name]:
                raise (message._exception or Exception("Message failed with unknown error")) from None


class Kept(BeanliteMessage):
    """A message whose error stays known when it has failed, as that of the stub's."""

    def clear_exception(self):
        pass


class Consumer(BeanliteConsumer):
    def __next__(self):
        message = super().__next__()
        return None if message is None else Kept(message.job)

    def nack(self, message):
        broker: Any = self._broker
        broker.dead_letters_by_queue[self._tube].append(message)
        super().nack(message)


stub: Any = dramatiq.brokers.stub
stub.StubBroker = AsStub
stub._StubMessageProxy = Kept
memcached: Any = types.ModuleType("pylibmc")  # which the suite imports, and skips if no server answers
memcached.SomeErrors = (OSError, TypeError)
memcached.Client = memcached.ClientPool = None
memcached.NotFound = NotFound
sys.modules.setdefault("pylibmc", memcached)
