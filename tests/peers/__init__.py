"""Other libraries' own tests, run with our functions in the place of theirs.

python -m tests.peers quack FOLDER    FOLDER: a checkout of that library's repository, whose tests are run as they are

A module of this folder says for one library which of its names are ours (`modules`), which of its files are run and
what is left out, with the reason. The library itself need not be installed: the names that its tests import are all
there is. Without a GPU tests that ask for one run on the CPU, where our operators are formulas: that shows whether the
names fit, not whether kernels are right.
"""
