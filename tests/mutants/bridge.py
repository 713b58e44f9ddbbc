"""Faults in what two processes share on a device, which `tests/device/test_bridge.py` tells."""

from tests.mutants.faults import ADAPTERS, Fault

_TESTS = "tests/device/test_bridge.py::"
_ORDER = (
    "test_an_answer_is_read_until_the_one_after_the_next[numpy_task]",
    "test_an_answer_is_read_until_the_one_after_the_next[torch_task]",
)
_STREAMS = ("test_a_copy_is_in_order_with_its_arrays_own_stream",)
_END = ("test_tensors_outlive_the_environment",)
_GROWS = ("test_large_answers_and_calls_move_to_larger_memory",)
_HOST = ("test_what_cannot_be_shared_goes_through_the_host_and_is_said_once",)


def fault(name: str, file: str, before: str, after: str, *tests: str) -> Fault:
    path = f"{ADAPTERS}bridge/{file}.py"
    names = tuple(_TESTS + x for x in tests)
    return Fault(f"bridge: {name}", path, before, after, ("-m", "slow or not slow", *names))


BRIDGE = [
    fault(
        "the server does not wait for the call",
        "server",
        "        link.wait(stream)\n",
        "",
        *_ORDER,
    ),
    fault(
        "the server's event is recorded before its copies",
        "server",
        "        link.wait(stream)\n",
        "        link.wait(stream)\n        link.record(stream)\n        link.record = print\n",
        *_ORDER,
    ),
    fault(
        "the client does not wait for the answer",
        "tasks",
        "        answer = self._connection.ask(server.CALL, body, data=after)\n"
        "        self._link.wait(self._stream)\n",
        "        answer = self._connection.ask(server.CALL, body, data=after)\n",
        *_ORDER,
    ),
    fault(
        "the client waits before the answer is there",
        "tasks",
        "        answer = self._connection.ask(server.CALL, body, data=after)\n"
        "        self._link.wait(self._stream)\n",
        "        self._link.wait(self._stream)\n"
        "        answer = self._connection.ask(server.CALL, body, data=after)\n",
        *_ORDER,
    ),
    fault(
        "the client's event is not recorded",
        "tasks",
        "        self._link.record(self._stream)\n",
        "",
        *_ORDER,
    ),
    fault(
        "the client's event is recorded before its copies",
        "tasks",
        "            sent.device.clear(self._stream)\n",
        "            sent.device.clear(self._stream)\n"
        "            self._link.record(self._stream)\n            self._link.record = print\n",
        *_ORDER,
    ),
    fault(
        "an answer overwrites the last one",
        "server",
        "        self._arenas.reverse()\n",
        "",
        *_ORDER,
    ),
    fault(
        "an event is waited for that was never recorded",
        "cuda",
        "        self.record(DEFAULT_STREAM)  # so that the other side never waits for nothing\n",
        "",
        *_ORDER,
    ),
    fault(
        "calls are made without a context",
        "cuda",
        "        with self:\n            self._driver.call(name, *arguments)\n",
        "        self._driver.call(name, *arguments)\n",
        *_STREAMS,
    ),
    fault(
        "a copy does not wait for what writes the array",
        "cuda",
        "    device.follow(stream, array.stream)\n",
        "",
        *_STREAMS,
    ),
    fault(
        "what writes the array again does not wait for the copy",
        "cuda",
        "    device.follow(array.stream, stream)  # which may write to it again, or free it\n",
        "",
        *_STREAMS,
    ),
    fault(
        "memory is closed while it is used",
        "cuda",
        "            device.synchronize()\n            device.call(",
        "            device.call(",
        *_GROWS,
    ),
    fault(
        "memory is not kept by the tensors that show it",
        "cuda",
        "        array = Array(self.pointer + at, typestr, shape, stream, self)\n",
        "        array = Array(self.pointer + at, typestr, shape, stream, None)\n",
        *_END,
    ),
    fault(
        "the client keeps the server's event for too long",
        "tasks",
        "            link.disconnect()\n",
        "            pass\n",
        *_END,
    ),
    fault(
        "the client destroys its event before the server has ended",
        "tasks",
        "            link.disconnect()\n",
        "            link.disconnect()\n            link.close()\n",
        *_END,
    ),
    fault(
        "the server keeps memory that it has larger memory for",
        "server",
        "                link.memory.close()\n                link.memory = borrowed\n",
        "                self.kept = link.memory\n                link.memory = borrowed\n",
        *_GROWS,
    ),
    fault(
        "copies to the host are read before they are done",
        "server",
        "            self._reader.finish()\n        if arena.device",
        "            pass\n        if arena.device",
        *_HOST,
    ),
    fault(
        "devices are paired by their numbers",
        "cuda",
        "            if cls.of(ordinal).uuid == uuid:\n",
        "            if True:\n",
        "test_devices_are_paired_by_what_they_are",
    ),
]
