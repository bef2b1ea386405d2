"""Programs with closed standard streams: whose numbers the first files get."""

import os
import subprocess
import sys

import numpy as np
import pytest

from syncpretrain import pretrain
from syncpretrain.parallel.descriptors import above_standard, standard_stream

CLOSED = pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]], ids=str)

START = """
import sys, traceback
try:
    reported = work()
except BaseException:
    reported = traceback.format_exc()
with open(sys.argv[1], "w") as file:
    file.write(reported)
"""

PRETRAIN = """
def work():
    import numpy as np
    from syncpretrain import pretrain
    X = np.eye(16, dtype=np.float32).repeat(3, axis=0)
    layers = [16, 8, 4]
    return pretrain(X, layers=layers, epochs=2, batch_size=8, runtime="processes").parameters_sha256
"""

AVERAGE = """
def serve(handle):
    import numpy as np
    with handle as worker:
        for shard in worker.shards:
            worker.gradients[shard][0][:] = shard + 1
        worker.average(lambda p, mean, where: np.subtract(p, mean, out=p))

def work():
    import multiprocessing
    from syncpretrain.parallel import GradientAverager
    context = multiprocessing.get_context("spawn")
    with GradientAverager([(3,)], shards=3, workers=2, timeout=30) as averager:
        other = context.Process(target=serve, args=(averager.worker(1),))
        other.start()
        serve(averager.worker(0))
        other.join(30)
        return str(averager.parameters[0].tolist())
"""


def reported(closed, code, tmp_path):
    """Run a program with some streams closed; return what its ``work`` did."""
    program, out = tmp_path / "program.py", tmp_path / "out"
    guarded = "".join(f"    {line}\n" for line in START.splitlines())
    program.write_text(f"{code}\nif __name__ == '__main__':\n{guarded}")
    redirected = " ".join(f"{number}>&-" for number in closed)
    shell = f'exec "$0" "$@" {redirected}'
    command = ["sh", "-c", shell, sys.executable, str(program), str(out)]
    subprocess.run(command, timeout=60, check=True, cwd=tmp_path, capture_output=True)
    return out.read_text()


@CLOSED
def test_processes_train_though_streams_are_closed(closed, tmp_path):
    X = np.eye(16, dtype=np.float32).repeat(3, axis=0)
    expected = pretrain(X, layers=[16, 8, 4], epochs=2, batch_size=8).parameters_sha256
    assert reported(closed, PRETRAIN, tmp_path) == expected


@pytest.mark.parametrize("closed", [[0], [2]], ids=str)
def test_processes_average_though_a_stream_is_closed(closed, tmp_path):
    assert reported(closed, AVERAGE, tmp_path) == "[-2.0, -2.0, -2.0]"


def test_a_descriptor_of_a_file_stays():
    read, write = os.pipe()
    try:
        assert above_standard(read) == read
        assert standard_stream(write) == subprocess.DEVNULL, "of this process alone"
        os.set_inheritable(write, True)
        assert standard_stream(write) is None
    finally:
        os.close(read)
        os.close(write)
    assert standard_stream(write) == subprocess.DEVNULL, "closed"
