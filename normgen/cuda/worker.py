"""One compiling process: jobs come in on standard input, answers go out on standard output, both pickled.

Started by `normgen.cuda.pool`; it ends when its input ends, so it never outlives the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from typing import BinaryIO

from normgen.cuda import nvrtc
from normgen.errors import NoDeviceError


def serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Answer (text, name, options, instances) with a Compiled, or a NoDeviceError's sentence, until the input ends."""
    while True:
        try:
            text, name, options, instances = pickle.load(jobs)
        except EOFError:
            return
        answer: nvrtc.Compiled | str
        try:
            answer = nvrtc.compile_text(text, name=name, options=options, instances=instances)
        except NoDeviceError as error:
            answer = str(error)
        try:
            pickle.dump(answer, answers)
            answers.flush()
        except BrokenPipeError:  # the process that asked was killed
            os._exit(0)  # without a second try to flush, which Python makes at its end


def main() -> None:
    """Serve on the process's own pipes; anything a library prints goes to standard error instead."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(NoDeviceError):  # each job meets the same and can say so
        nvrtc.version()  # loads the library before the first job is there
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
