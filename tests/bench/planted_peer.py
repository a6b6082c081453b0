"""A real bench one of whose peers writes to address 8, as a library with a bug would."""

from __future__ import annotations

from normgen.bench.peers import Options
from normgen.bench.peers.bench import PeerBench
from normgen.codegen.module import KernelEntry, Launch, Module, Param, Source
from normgen.cuda.compiler import compile_module
from normgen.cuda.launch import LoadedModule

__all__ = ["PlantedBench"]
FAULTY = "liger"  # the name under which it comes
MODULE = Module(
    instructions="",
    text='extern "C" __global__ void stray(int count) { *reinterpret_cast<volatile int*>(8ull) = count; }\n',
    kernels=(
        KernelEntry(
            name="stray",
            params=(Param(name="count", ctype="int", source=Source.ROWS),),
            launch=Launch(threads=32, blocks=1),
        ),
    ),
)


class PlantedBench(PeerBench):
    @staticmethod
    def versions(name: str) -> dict[str, str]:
        return {} if name == FAULTY else PeerBench.versions(name)

    def prepare(self, name: str, options: Options) -> float:
        if name == FAULTY:
            with self._theirs(name):
                stray = LoadedModule(MODULE, compile_module(MODULE, self._facts.arch), device=self._index)
                stray.bind().set(rows=1).launch(self._stream)
                self._stream.synchronize()
        return super().prepare(name, options)
