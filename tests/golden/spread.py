"""How far the numbers move without a change of the code: by compiler settings, by the CPU, by devices and threads.

    python -m tests.golden.spread

Prints the largest difference from the numbers kept, as a share of what the test allows. CPUs with older instruction
sets are imitated: XLA uses no newer ones than it is told.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax

from tests.golden.numbers import kept, largest_share

SETTINGS = {
    "as a user runs it": "",
    "as the tests run it": "--xla_force_host_platform_device_count=2",
    "a CPU with AVX2": "--xla_cpu_max_isa=AVX2",
    "a CPU with SSE4.2": "--xla_cpu_max_isa=SSE4_2",
    "no threads within an operation": "--xla_cpu_multi_thread_eigen=false",
}
ROOT = Path(__file__).parents[2]


def main() -> None:
    theirs, said = kept(jax.__version__)
    print(f"as shares of what is allowed, against {said}")
    for setting, flags in SETTINGS.items():
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "tests.golden.write", "--print"]
        done = subprocess.run(command, env=environment, cwd=ROOT, text=True, capture_output=True, check=True)
        shares = largest_share(json.loads(done.stdout.splitlines()[-1]), theirs)
        print(f"{setting}: {', '.join(f'{name} {share:.2g}' for name, share in shares.items())}", flush=True)


if __name__ == "__main__":
    main()
