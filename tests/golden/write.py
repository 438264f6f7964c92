"""Keeps the numbers of this jax, in place of those kept before: after a change that is meant to change results.

    python -m tests.golden.write

Says by how much of what is allowed they moved. With `--print` it writes nothing and prints them.
"""

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import json

import jax

from softmax_jax.files import versions, write_json
from tests.golden.numbers import differences, kept, numbers, path_of


def main() -> None:
    found = numbers()
    if "--print" in sys.argv:
        print(json.dumps(found))
        return
    path = path_of(jax.__version__)
    for line in differences(found, kept(jax.__version__)[0]) if path.exists() else ():
        print(line)
    write_json(path, {"versions": versions(), **found})
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
