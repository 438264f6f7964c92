import os
import subprocess
import sys

import pytest

FLAGS = ("--xla_cpu_multi_thread_eigen", "--xla_force_host_platform_device_count")
"""How many devices and threads there are; nothing that changes what the compiler makes of a program."""
AS_A_COMMAND = """
import os
import jax
from softmax_jax.runtime.command_line import one_device_per_core
one_device_per_core()
jax.jit(lambda x: x)(1.0)
print(os.environ["XLA_FLAGS"])
"""


@pytest.mark.full
@pytest.mark.parametrize("flags", [None, "as in the tests"])
def test_commands_and_tests_compile_as_users_programs_do(flags):
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS" or flags}
    ran = subprocess.run([sys.executable, "-c", AS_A_COMMAND], env=environment, capture_output=True, text=True)
    given = [flag.split("=")[0] for flag in ran.stdout.split()]
    assert given
    assert set(given) <= set(FLAGS)
