"""UCXX, the Python package over UCX: GPU memory and host memory sent to the other end and back.
Prints `right` for each kind whose bytes came back.
"""

import asyncio

import ucxx
from gpu import gpu_bytes, gpu_memory

LENGTH = 1 << 20


class Vram:
    """GPU memory as packages show it to each other."""

    def __init__(self, fill):
        self.address = gpu_memory(LENGTH, fill)
        self.__cuda_array_interface__ = {
            "shape": (LENGTH,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }

    def bytes(self):
        return gpu_bytes(self.address, LENGTH)


class Dram(bytearray):
    def __init__(self, fill):
        super().__init__([fill] * LENGTH)

    def bytes(self):
        return bytes(self)


KINDS = {"VRAM": Vram, "DRAM": Dram}


async def main():
    ended = asyncio.Event()

    async def echo(endpoint):
        for kind in KINDS.values():
            found = kind(0)
            await endpoint.recv(found)
            await endpoint.send(found)
        await endpoint.close()
        ended.set()

    listener = ucxx.create_listener(echo)
    endpoint = await ucxx.create_endpoint("127.0.0.1", listener.port)
    for name, kind in KINDS.items():
        sent, back = kind(0x5A), kind(0xA5)
        await endpoint.send(sent)
        await endpoint.recv(back)
        same = back.bytes() == bytes([0x5A]) * LENGTH
        print(f"{name} and back:", "right" if same else "wrong", flush=True)
    await ended.wait()
    await endpoint.close()
    listener.close()


asyncio.run(main())
