"""The mistakes that people make, and what the answer to each must name: the value, the rule, the remedy.

    python -m tests.faults.bad_input

makes them in a process of its own, where no checks of types that the tests put around every function answer first, and
prints the answers as lines of JSON, in the order of the tables.
"""

# pyright: reportArgumentType=false
# Wrong types are among the mistakes.

import contextlib
import io
import json
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import softmax_jax as sj
from softmax_jax import theory
from softmax_jax.attention.flax_layers import attend

ROOT = Path(__file__).parents[2]
KEY = jax.random.key(0)
Z = jnp.arange(6.0).reshape(2, 3)
X = jnp.ones((2, 5, 4, 8))
SSMAX = sj.normalizer("ssmax")


def attention(query: Any = X, key: Any = X, value: Any = X, **others: Any) -> Any:
    return sj.dot_product_attention(query, key, value, **others)


CALLS: tuple[tuple[Any, ...], ...] = (
    # Names and numbers
    (partial(sj.normalizer, "sofmax"), "'sofmax'", "did you mean 'softmax'", "all of softmax_jax: python"),
    (partial(sj.normalizer, "softmax, ssmax"), "'softmax, ssmax'", "cannot read", "write a name"),
    (partial(sj.normalizer, "ssmax(biass=1)"), "'biass'", "did you mean 'bias'", "it takes"),
    (partial(sj.normalizer, "ssmax", t=1.0), "no number 't'", "it takes: s="),
    (partial(sj.normalizer, "ssmax", s="big"), "s is 'big'", "must be a number"),
    (partial(sj.normalizer, "ssmax", s=float("nan")), "s is nan", "finite number"),
    (partial(sj.normalizer, "entmax(alpha=1)"), "alpha is 1.0", "above 1"),
    (partial(sj.normalizer, "top_k(k=2.5)"), "k is 2.5", "whole"),
    (partial(sj.normalizer, "softpick(eps=0.0)"), "eps is 0.0", "above 0, at least 1e-37"),
    (partial(sj.top_p_mask, Z, 1.1), "p is 1.1", "above 0 and at most 1, such as 0.9"),
    (partial(sj.top_k_mask, Z, np.array([[1], [0]])), "k is 0", "at least 1, such as 10"),
    (partial(sj.top_k_mask, Z, np.array([1.0])), "k is a float64 array", "whole number at least 1"),
    (partial(sj.top_k_mask, Z, jnp.array([1, 2, 3])), "k has shape (3,)", "size 1 along axis -1"),
    (partial(sj.min_p_mask, Z, 1.1), "p_base is 1.1", "from 0 to 1, such as 0.1"),
    (partial(sj.gumbel_softmax, KEY, Z, temperature=0), "theta is 0.0", "above 0"),
    (partial(sj.normalizer, "adaptive(fit=nowhere.json)"), "nowhere.json", "does not exist", "fit_temperature.py"),
    # Rows of logits
    (partial(sj.softmax, Z.astype(int)), "int32", "floating point", ".astype"),
    (partial(SSMAX, Z.astype(int)), "int32", "floating point", ".astype"),
    (partial(sj.softmax, Z, axis=2), "axis is 2", "from -2 to 1"),
    (partial(sj.sample, KEY, Z, axis=(0, 1)), "axis is (0, 1)", "one axis", "reshape"),
    (partial(sj.cross_entropy, Z, jnp.zeros(2)), "float32", "whole numbers", ".astype"),
    (partial(sj.softmax, Z, where=np.ma.masked_array([True])), "masked array of numpy", "where=~x.mask"),
    (partial(sj.sparsemax, Z, where=np.array([0, 0, -1e9])), "holds -1e+09", "must be bool", "where=mask > -9000"),
    (partial(SSMAX, Z, where=np.zeros((2, 3))), "holds 0 alone", "must be bool", "mask != 0"),
    (partial(SSMAX, Z, where="all"), "'all'", "must be bool"),
    (partial(SSMAX, Z, where=jnp.ones(4, bool)), "(4,)", "must broadcast"),
    (partial(sj.normalizer("ssmax", s=jnp.ones((4, 1, 1))), Z), "(2, 3)", "a number for each row"),
    (partial(sj.Normalizer, sj.softmax, sj.LogLength), "LogLength", "must be a scale", "LogLength()"),
    (partial(sj.Normalizer, map=type(sj.softmax)), "map is the class Softmax", "must be a map", "Softmax()"),
    (partial(sj.normalizer, None), "normalizer is None", "the name of one", "called as jax.nn.softmax"),
    # Attention
    (partial(attention, normalizer=jnp.tanh), "the function tanh", "called as f(logits of shape (2, 3), -1, where)"),
    (partial(attention, normalizer=lambda z, axis, where: z[0]), "gives the shape (3,)", "logits of shape (2, 3)"),
    (partial(attention, implementation="stream"), "'stream'", "did you mean 'streaming'"),
    (partial(attention, return_weights=True, implementation="streaming"), "'streaming'", "needs 'dense'"),
    (partial(attention, query=X[0, 0]), "(4, 8)", "(batch, length, heads, size)"),
    (partial(attention, key=X[..., :4]), "(2, 5, 4, 4)", "those of the query"),
    (partial(attention, value=X[:, :3]), "(2, 3, 4, 8)", "that of the key"),
    (partial(attention, query=jnp.ones((2, 5, 3, 8))), "3 heads", "no multiple of the 4"),
    (partial(attention, query=X.astype(jnp.bfloat16)), "bfloat16", "one floating-point type", ".astype"),
    (partial(attention, mask=np.eye(5) - 1), "holds -1", "must be bool", "bias="),
    (partial(attention, query=[[1.0]]), "[[1.0]]", "must be an array"),
    (partial(attention, bias=True), "bool", "must be floating point", "mask="),
    (partial(attention, scale="1"), "scale is '1'", "must be a number"),
    (partial(attention, is_causal="yes"), "is_causal is 'yes'", "True or False"),
    (partial(attention, key_value_seq_lengths=[3.0, 4.0]), "float32", "whole numbers", ".astype"),
    (partial(attention, local_window_size=1.5), "local_window_size is 1.5", "(left, right)"),
    (partial(attention, block_size="2"), "block_size is '2'", "whole number at least 1"),
    (partial(attention, block_size=0, implementation="streaming"), "block_size is 0", "at least 1"),
    (partial(attention, mask=jnp.ones((4, 4), bool)), "(4, 4)", "must broadcast"),
    (partial(attend, SSMAX, X, X, X, dropout_rate=0.1), "dropout_rng is None", "give a key"),
    (partial(sj.NnxAttention, "ssmax", ("sink",)), "cannot learn 'sink'", "s, bias"),
    (partial(theory.length_forced_below, 0.5, -1.0), "spread is -1", "at least 0"),
)
"""Calls of the library, each with words of the one line that it must answer."""

ONCE, WHOLE, DIRECTORY = "each once", "must be a whole number", "must be a directory to write to"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("train.py", "nothing", "must be a preset", "notebook, paper, paper_float32, quick"),
    ("train.py papr", "Unknown preset papr", "Did you mean paper?"),
    ("train.py --steps 10", "--steps", "must be a preset"),
    ("train.py sort --batch 0", "--batch is 0", "from 1", "such as"),
    ("train.py quick --width 1000000", "--width is 1000000", "to 16384"),
    ("train.py quick --min-items 17", "--max-items is 16", "at least min_items=17"),
    ("train.py quick --normalizer sofmax", "sofmax", "did you mean 'softmax'"),
    ("train.py quick --optimizer adamm", "adamm", "did you mean 'adam", "optax"),
    ("train.py quick --optimizer chain", "chain"),
    ("train.py quick --optimizer chain(clip_by_globl_norm(1.0),adam)", "did you mean 'clip_by_global_norm'"),
    ("train.py quick --optimizer chain(clip(1.0),adam", "calls of such"),
    ("train.py quick --optimizer adam(learning_rate=0.5)", "adam(learning_rate=0.5)", "given as --learning-rate"),
    ("train.py quick --schedule _schedule", "--schedule is _schedule", "must be one of optax"),
    ("train.py quick --schedule cosin", "cosin", "did you mean 'cosine_decay_schedule'"),
    ("train.py quick --schedule warmup_cosine_decay_schedule", "warmup_steps"),
    ("train.py quick --schedule-options warmup 1.0", "warmup"),
    ("train.py quick --schedule-options value 0.5", "must be given as --learning-rate"),
    ("train.py quick --l2 nan", "--l2 is nan"),
    ("train.py quick --matmul bfloat", "--matmul is 'bfloat'", "did you mean"),
    ("train.py quick --rounded input", "did you mean 'inputs'"),
    ("train.py sort --length 1", "--length is 1"),
    ("train.py signal --length 8 --signal-length 9", "--signal-length is 9", "at most the length, 8"),
    ("train.py signal --classes 17 --features 16", "--classes is 17", "from 2 to 16"),
    ("train.py signal --dropout 1", "--dropout is 1"),
    ("train.py quick --workdir a.txt/run", "--workdir is a.txt/run", f"{DIRECTORY}, and a.txt is a file; name another"),
    ("train.py quick --no-compilation-cache --compilation-cache c", "--compilation-cache is given twice"),
    ("train.py quick --processes 2", "did not find each other", "Name a reachable --coordinator"),
    ("train.py clrs_text --algorithms minimun", "'minimun'", "did you mean 'minimum'"),
    ("train.py clrs_text --lengths 2 4", "--lengths has 2", "kmp_matcher must have from 3"),
    ("evaluate.py --sets 0", "--sets is 0", "such as 512"),
    ("evaluate.py --lengths 16 1", "--lengths has 1", "from 2 to", "such as 1024"),
    ("studies.competition --lengths 1", "--lengths has 1", "from 2 to", "such as 1024"),
    ("shootout.py --test-lengths 0", "--test-lengths has 0", "from 2 to", "such as 64"),
    ("shootout.py --task max_retrieval --test-lengths 1", "--test-lengths has 1", "from 2 to", "such as 64"),
    ("shootout.py --test-lengths 2", "--test-lengths is 2", "from 3 to", "such as 16"),
    ("shootout.py --epochs 0", "--epochs is 0", "such as 15"),
    ("train.py signal --length 1 --signal-length 1", "--length is 1", "from 2 to"),
    ("evaluate.py --normalizers nowhere:mine", "nowhere:mine", "cannot be imported", "name one that is installed"),
    ("evaluate.py --normalizers math:pi", "math:pi is 3.14", "must be a map", "called as jax.nn.softmax"),
    ("train.py quick --normalizer math:mine", "math:mine", "math must hold a normalizer", "add it"),
    ("report.py --normalizers math:sqrt", "math:sqrt is the function sqrt", "called as jax.nn.softmax"),
    ("evaluate.py --normalizers softmax softmax", "softmax twice", ONCE),
    ("evaluate.py --normalizers all softmax", "'all softmax'", "by itself"),
    ("evaluate.py --sets 1000000000000", "1000000000000", "such as 512"),
    ("evaluate.py --checkpoint nowhere", "nowhere does not exist", "name the directory of a run"),
    ("evaluate.py --checkpoint a.txt", "not Flax msgpack bytes", "give a file"),
    ("evaluate.py --checkpoint " + 300 * "a", "cannot be read: File name too long", "name another"),
    ("evaluate.py --checkpoint .", " holds no run", "name a directory that train.py made"),
    ("evaluate.py --normalizers adaptive(fit=.)", ". is a directory: it must be a regular file", "fit_temperature.py"),
    ("evaluate.py --normalizers adaptive(fit=a.txt)", "a.txt cannot be read as JSON", "fit_temperature.py"),
    ("train.py quick --workdir run --start-from .", ". holds no run"),
    ("studies.ablation --page none.md", "none.md cannot be read: No such file", "name another"),
    ("shootout.py --task max-retrieval", "--task is max-retrieval", "transformer-max-retrieval"),
    ("shootout.py --task clrs_text", "--task is clrs_text", "tables of its own", "train.py clrs_text"),
    ("shootout.py --task sigal", "did you mean 'signal'"),
    ("shootout.py --task nowhere:Mine", "cannot be imported"),
    ("shootout.py --task math:pi", "must hold a class of that name that derives from Task"),
    ("evaluate.py --output a.txt", f"--output is a.txt: it {DIRECTORY}, and this is a file; name another"),
    ("fit_temperature.py --output a.txt", f"--output is a.txt: it {DIRECTORY}, and this is a file; name another"),
    ("fit_temperature.py --degree 11", "--degree is 11", "such as 4"),
    ("shootout.py --hidden 10 --heads 4", "10", "multiple"),
    ("report.py --lengths 4 8", "'4 8'", "at least 16 items"),
    ("studies.ablation --groups widht", "widht", "did you mean 'width'"),
    ("studies.ablation --page a.txt", "no place for losses", "put <!-- losses -->"),
    ("studies.precision --recipes .", "--recipes is .", "what studies.ablation --groups precision wrote"),
    ("studies.precision --lengths 48", "--lengths is (48,)", "must be among the published, (16, 32, "),
    ("studies.clrs_text.study --seeds 5 --together 2", "--seeds is 5", "must be a multiple"),
    ("studies.clrs_text.study --regimes sofmax", "softmax"),
    ("studies.clrs_text.pretrained --regimes ssmax", "softmax must be first"),
    ("studies.clrs_text.pretrained --regimes softmax ssmaxx", "did you mean 'ssmax'"),
    ("studies.clrs_text.pretrained --workdir runs/[1]", "has one of"),
    ("studies.clrs_text.pretrained --most-steps 70", "multiples of 5 and 50"),
    ("studies.clrs_text.pretrained --lengths 4 4", "--lengths has 4 twice"),
    ("studies.clrs_text.pretrained --longer 16 20", "--lengths with --longer has 16 twice"),
    ("studies.critical --lengths 16", "--lengths has 16", "32"),
    ("benchmarks.all --only trainin", "'trainin'", "did you mean 'training'"),
    ("benchmarks.table none.json", "none.json", "does not exist"),
)
"""Command lines, each with words of the one line on stderr that it must end in."""


def answer_to_call(call: Callable[[], Any]) -> dict[str, Any]:
    """What a call says when it is refused."""
    try:
        said = call()
    except Exception as error:
        return {"error": type(error).__name__, "said": str(error)}
    return {"error": "none", "said": f"returned {said!r}"[:200]}


def answer_to_command(command: str) -> dict[str, Any]:
    """What a script says in this process, how it ends, and what it leaves in a directory that holds `a.txt` alone."""
    script, *arguments = command.split()
    said, status = io.StringIO(), None
    sys.argv = [script, *arguments]
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        os.environ["XDG_CACHE_HOME"] = f"{directory}/cache"
        Path("a.txt").write_text("not what you want\n")
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            try:
                if script.endswith(".py"):
                    runpy.run_path(str(ROOT / script), run_name="__main__")
                else:
                    runpy.run_module(script, run_name="__main__", alter_sys=True)
            except SystemExit as stop:
                status = stop.code
            except Exception as error:
                status = f"{type(error).__name__}: {error}"[:300]
        left = {str(path): path.read_text() if path.is_file() else "" for path in Path().rglob("*")}
    return {"status": status, "said": said.getvalue(), "left": left}


def answers() -> Iterator[dict[str, Any]]:
    """The answers to both tables, each with the number of programs that were compiled for it."""
    compiled: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(seconds) if event.endswith("backend_compile_duration") else None
    )
    for mistake, *_ in CALLS + COMMANDS:
        compiled.clear()
        signal.alarm(60)  # ends this process if the mistake is not refused, and something long begins
        answer = answer_to_command(mistake) if isinstance(mistake, str) else answer_to_call(mistake)
        yield answer | {"compiled": len(compiled)}


if __name__ == "__main__":
    for made in answers():
        print(json.dumps(made), file=sys.__stdout__, flush=True)
