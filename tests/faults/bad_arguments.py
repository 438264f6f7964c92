"""Bad arguments of every public function, and what the answer to each must name: the value, the rule, the remedy."""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong types are what this table is about.

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import softmax_jax as sj
from softmax_jax import temperature, theory
from softmax_jax.attention.flax import attend
from softmax_jax.measures import dispersion, evaluation, refit
from softmax_jax.runtime import devices
from softmax_jax.runtime.distributed import Cluster
from softmax_jax.tasks import max_retrieval
from softmax_jax.tasks.retrieval import Retrieval
from softmax_jax.tasks.signal import Signal
from softmax_jax.tasks.transformer import Transformer
from softmax_jax.training.config import Config
from softmax_jax.training.shootout import Recipe


class Case(NamedTuple):
    """A call that must be refused."""

    of: str
    """The function and its argument."""
    call: Callable[[], Any]
    words: tuple[str, ...]
    """What the one line must hold."""


NAN, INF = float("nan"), float("inf")
KEY = jax.random.key(0)
Z = jnp.arange(6.0).reshape(2, 3)
WHOLE, TEXT = jnp.ones((2, 3), int), "not softmax_jax.softmax"
W = jnp.full((2, 3), 1 / 3)
X = jnp.ones((2, 5, 4, 8))
LENGTHS, LABELS = jnp.array([5, 5], jnp.int32), jnp.zeros(2, int)

OF_ROWS: dict[str, Callable[..., Any]] = {
    name: getattr(sj, name)
    for name in (
        *("softmax", "softmax1", "sink_softmax", "softpick", "hardmax", "shifted_softmax", "signed_l1", "sparsemax"),
        *("entmax15", "entmax", "stieltjes", "top_k_softmax", "temperature_softmax", "adaptive_temperature_softmax"),
        *("ssmax", "scalable_softpick", "length_scaled_softmax", "log_softmax", "entropy"),
    )
} | {
    "gumbel_softmax": functools.partial(sj.gumbel_softmax, KEY),
    "top_k_mask": lambda logits, **others: sj.top_k_mask(logits, 2, **others),
    "top_p_mask": lambda logits, **others: sj.top_p_mask(logits, 0.5, **others),
    "cross_entropy": lambda logits, **others: sj.cross_entropy(logits, LABELS, **others),
    "soft_cross_entropy": lambda logits, **others: sj.soft_cross_entropy(logits, W, **others),
    "Normalizer": sj.normalizer("ssmax"),
}
ONE_AXIS = ("top_k_mask", "top_p_mask", "cross_entropy")


def rows() -> Iterator[Case]:
    """Logits, axes and masks of everything that takes rows of logits."""
    for name, of in OF_ROWS.items():
        for value, *words in (
            ([1.0, 2.0], "[1.0, 2.0]", "must be an array", "jnp.asarray"),
            ("logits", "'logits'", "must be an array", "jnp.asarray"),
            (None, "None", "must be an array", "jnp.asarray"),
            (WHOLE, "int32", "must be floating point", ".astype('float32')"),
            (Z.astype(jnp.complex64), "complex64", "must be floating point", ".astype('float32')"),
        ):
            yield Case(f"{name}.logits", functools.partial(of, value), ("logits", *words))
        for axis, *words in (
            (2, "2", "from -2 to 1"),
            (-3, "-3", "from -2 to 1"),
            ("last", "'last'", "must be a whole number", "such as -1"),
            (1.0, "1.0", "must be a whole number", "such as -1"),
            (None, "None", "must be a whole number", "such as -1"),
            (True, "True", "must be a whole number", "such as -1"),
            ((0, 0), "(0, 0)", "a whole number" if name in ONE_AXIS else "each once"),
            ((), "()", "a whole number" if name in ONE_AXIS else "each once"),
        ):
            yield Case(f"{name}.axis", functools.partial(of, Z, axis=axis), ("axis is", *words))
        for where, *words in (
            (jnp.ones(4, bool), "(4,)", "must broadcast", "its full size or 1"),
            (jnp.ones((1, 2, 3), bool), "(1, 2, 3)", "must broadcast", "its full size or 1"),
            (jnp.ones((2, 3)), "float32", "must be bool", "mask == 0"),
            ([True, False], "[True, False]", "must be a boolean array", "jnp.asarray"),
            ("causal", "'causal'", "must be a boolean array", "jnp.asarray"),
        ):
            if name != "where":
                yield Case(f"{name}.where", functools.partial(of, Z, where=where), ("the mask", *words))


PER_ENTRY = ("a number for each row", "size 1 along axis")
NUMBERS: tuple[tuple[str, Callable[..., Any], str, str], ...] = (
    ("sink_softmax", functools.partial(sj.sink_softmax, Z), "sink", ""),
    ("softpick", functools.partial(sj.softpick, Z), "eps", "0 -1.0 1e-60"),
    ("shifted_softmax", functools.partial(sj.shifted_softmax, Z), "s", ""),
    ("entmax", functools.partial(sj.entmax, Z), "alpha", "1 1.0 0.5 -2 1e30"),
    ("stieltjes", functools.partial(sj.stieltjes, Z), "q", "0 -4 1e-30 1e30"),
    ("top_k_softmax", functools.partial(sj.top_k_softmax, Z), "k", "0 -1 2.5"),
    ("temperature_softmax", functools.partial(sj.temperature_softmax, Z), "theta", "0 -1.0"),
    ("ssmax", functools.partial(sj.ssmax, Z), "s", ""),
    ("ssmax", functools.partial(sj.ssmax, Z), "bias", ""),
    ("scalable_softpick", functools.partial(sj.scalable_softpick, Z), "s", ""),
    ("scalable_softpick", functools.partial(sj.scalable_softpick, Z), "bias", ""),
    ("length_scaled_softmax", functools.partial(sj.length_scaled_softmax, Z), "m", "0 -1"),
    ("length_scaled_softmax", functools.partial(sj.length_scaled_softmax, Z), "eps", "0 1 2.0"),
    ("gumbel_softmax", functools.partial(sj.gumbel_softmax, KEY, Z), "temperature", "0 -1"),
    ("ConstantTemperature", sj.ConstantTemperature, "theta", "0 -1"),
    ("InverseTemperature", sj.InverseTemperature, "beta", ""),
    ("LogLength", sj.LogLength, "s", ""),
    ("LogLength", sj.LogLength, "bias", ""),
    ("ClippedLogLength", sj.ClippedLogLength, "s", ""),
    ("ClippedLogLength", sj.ClippedLogLength, "bias", ""),
    ("ClippedLogLength", sj.ClippedLogLength, "low", ""),
    ("ClippedLogLength", sj.ClippedLogLength, "high", ""),
    ("LogLengthPower", sj.LogLengthPower, "weight", ""),
    ("LogLengthPower", sj.LogLengthPower, "power", ""),
    ("LogLengthPower", sj.LogLengthPower, "delta", ""),
    ("LengthRule", sj.LengthRule, "m", "0 -1"),
    ("LengthRule", sj.LengthRule, "eps", "0 1"),
    ("EntropyPolynomial", sj.EntropyPolynomial, "threshold", ""),
    ("EntropyPolynomial", sj.EntropyPolynomial, "floor", ""),
)


def numbers() -> Iterator[Case]:
    """The numbers of maps, methods and scales, with those that break the rule of each."""
    for name, of, number, broken in NUMBERS:
        for value, said in (
            *(("cold", "'cold'"), (None, "None"), (True, "True"), (1j, "1j"), ([1.0], "[1.0]")),
            *(
                (NAN, "nan"),
                (INF, "inf"),
                (-INF, "-inf"),
                (10**400, "1000"),
                (np.float32(NAN), "nan"),
                (1e300, "1e+300"),
            ),
            (np.array([INF, 1.0]), "inf"),
        ):
            call = functools.partial(of, **{number: value})
            yield Case(f"{name}.{number}", call, (f"{number} is", said, "number", "such as"))
        for value in map(float, broken.split()):
            call = functools.partial(of, **{number: value})
            yield Case(f"{name}.{number}", call, (f"{number} is {value!r}", "must be a finite number", "such as"))
    for name, of, number, _ in NUMBERS[:14]:
        for shape in ((3,), (4, 1, 1), (5, 1)):
            call = functools.partial(of, **{number: jnp.full(shape, 2, jnp.int32 if number == "k" else jnp.float32)})
            yield Case(f"{name}.{number}", call, ("has shape", str((2, 3)), *PER_ENTRY))
    for name, value in ("s", jnp.ones(2, complex)), ("bias", jnp.ones(2, bool)):
        yield Case(
            f"ssmax.{name}", functools.partial(sj.ssmax, Z, **{name: value}), (f"{name} is a", "must be a number")
        )
    yield Case("top_k_softmax.k", lambda: sj.top_k_softmax(Z, k=jnp.ones(())), ("k is", "must be whole", ".astype"))
    yield Case("ClippedLogLength.high", lambda: sj.ClippedLogLength(low=2.0, high=1.0), ("low is 2.0", "below", "give"))
    polynomial, adaptive = sj.EntropyPolynomial, functools.partial(sj.adaptive_temperature_softmax, Z)
    for name, of in ("EntropyPolynomial", polynomial), ("adaptive_temperature_softmax", adaptive):
        for field, value, *words in (
            ("coefficients", (), "()", "at least one number", "such as"),
            ("coefficients", 3.0, "3.0", "must be a tuple of numbers", "(1.0,)"),
            ("coefficients", jnp.ones(5), "(5,)", "must be a tuple of numbers", "call tuple"),
            ("coefficients", "1 2", "'1 2'", "must be a tuple of numbers", "call tuple"),
            ("coefficients", (1.0, NAN), "nan", "finite number", "such as"),
            ("coefficients", (1.0, "a"), "'a'", "must be a number", "such as"),
            ("entropy_range", 3.0, "3.0", "must be a tuple (low, high)", "such as"),
            ("entropy_range", (3.0, 2.0), "(3.0, 2.0)", "low below high", "such as"),
            ("entropy_range", (1.0,), "(1.0,)", "must be (low, high)", "such as"),
            ("entropy_range", (0.0, INF), "inf", "finite number", "such as"),
        ):
            yield Case(f"{name}.{field}", functools.partial(of, **{field: value}), (field, *words))
    knots = jnp.array([1.0, 2.0])
    for field, arguments, *words in (
        ("entropies", (jnp.array([2.0, 1.0]), knots), "[2.0, 1.0]", "must ascend", "sort"),
        ("entropies", ((1.0, 2.0), knots), "(1.0, 2.0)", "must be an array", "such as"),
        ("entropies", (jnp.ones(3), knots), "(3,)", "must be alike", "give one β"),
        ("betas", (knots, jnp.ones((2, 1))), "(2, 1)", "must be an array", "such as"),
        ("betas", (knots, np.array([1.0, NAN])), "nan", "finite number", "such as"),
        ("betas", (knots, jnp.zeros(0)), "(0,)", "at least one number", "such as"),
        ("threshold", (knots, knots, "low"), "'low'", "must be a number", "such as"),
        ("floor", (knots, knots, 0.5, NAN), "nan", "finite number", "such as"),
    ):
        yield Case(
            f"EntropyInterpolation.{field}", functools.partial(sj.EntropyInterpolation, *arguments), (field, *words)
        )


def calculus() -> Iterator[Case]:
    """Weights, tangents, labels, targets, random keys."""
    for name, of in {
        "softmax_jacobian": sj.softmax_jacobian,
        "weight_entropy": sj.weight_entropy,
        "softmax_jvp": lambda weights: sj.softmax_jvp(weights, Z),
        "softmax_vjp": lambda weights: sj.softmax_vjp(weights, Z),
        "sample": functools.partial(sj.sample, KEY),
    }.items():
        for value, *words in (
            ([0.5, 0.5], "[0.5, 0.5]", "must be an array", "jnp.asarray"),
            (WHOLE, "int32", "must be floating point", ".astype"),
            (jnp.float32(1), "()", "axis", "give it one"),
        ):
            yield Case(f"{name}.weights", functools.partial(of, value), (*words,))
    for name in "softmax_jvp", "softmax_vjp":
        of = functools.partial(getattr(sj, name), W)
        yield Case(
            f"{name}.tangent", functools.partial(of, Z[0]), ("tangent has shape (3,)", "must be (2, 3)", "broadcast")
        )
        yield Case(f"{name}.tangent", functools.partial(of, WHOLE), ("tangent has dtype int32", "must be", ".astype"))
        yield Case(f"{name}.axis", functools.partial(of, Z, axis=5), ("axis is 5", "must be from -2 to 1", "each once"))
        yield Case(f"{name}.where", functools.partial(of, Z, where=W), ("float32", "must be bool", "mask == 0"))
    for name, of in ("weight_entropy", sj.weight_entropy), ("sample", functools.partial(sj.sample, KEY)):
        for axis in (7, "n", 0.5):
            yield Case(f"{name}.axis", functools.partial(of, W, axis=axis), (f"axis is {axis!r}", "must be"))
    for labels, *words in (
        (jnp.zeros(3, int), "(3,)", "must be (2,)"),
        (jnp.zeros((2, 1), int), "(2, 1)", "must be (2,)"),
        (jnp.zeros(2), "float32", "must be an integer array", ".astype('int32')"),
        ([0, 1], "[0, 1]", "must be an integer array"),
    ):
        yield Case("cross_entropy.labels", functools.partial(sj.cross_entropy, Z, labels), ("labels", *words))
    for targets, *words in (
        (Z[0], "(3,)", "must be (2, 3)"),
        (WHOLE, "int32", "must be floating point"),
        (None, "None", "must be an array"),
    ):
        yield Case(
            "soft_cross_entropy.targets", functools.partial(sj.soft_cross_entropy, Z, targets), ("targets", *words)
        )
    for name, of in (
        ("sample", lambda key: sj.sample(key, W)),
        ("gumbel_softmax", lambda key: sj.gumbel_softmax(key, Z)),
    ):
        for key, *words in (
            (0, "0", "must be a random key", "jax.random.key(0)"),
            (Z, "float32", "must be a random key", "jax.random.key(0)"),
            (jax.random.split(KEY), "(2,)", "must be a single key", "jax.vmap"),
        ):
            yield Case(f"{name}.key", functools.partial(of, key), ("key", *words))
    yield Case("gumbel_softmax.hard", lambda: sj.gumbel_softmax(KEY, Z, hard="yes"), ("'yes'", "must be True or False"))
    for k, *words in (
        (0, "at least 1"),
        (-2, "at least 1"),
        (2.5, "whole number"),
        ("3", "whole number"),
        (NAN, "whole"),
    ):
        yield Case(
            "top_k_mask.k", functools.partial(sj.top_k_mask, Z, k), (f"k is {k!r}", "must be", *words, "such as 10")
        )
    for p in (0, -0.1, 1.5, NAN, "most", None):
        yield Case("top_p_mask.p", functools.partial(sj.top_p_mask, Z, p), (f"p is {p!r}", "at most 1", "such as 0.9"))
    yield Case("top_p_mask.p", lambda: sj.top_p_mask(Z, jnp.ones(3)), ("(3,)", *PER_ENTRY))
    yield Case(
        "straight_through.soft", lambda: sj.straight_through(Z, Z[0]), ("(3,)", "must be (2, 3)", "broadcast it")
    )
    yield Case(
        "straight_through.hard", lambda: sj.straight_through([1.0], Z), ("[1.0]", "must be an array", "jnp.asarray")
    )
    yield Case("straight_through.soft", lambda: sj.straight_through(Z, WHOLE), ("int32", "must be floating", ".astype"))


def registry() -> Iterator[Case]:
    """Normalizers, by name and by parts, and what is registered."""
    for spec, *words in (
        ("sofmax", "'sofmax'", "did you mean 'softmax'", "known are"),
        ("SSMax", "'SSMax'", "did you mean 'ssmax'", "known are"),
        ("entmax_15", "'entmax_15'", "did you mean 'entmax15'", "known are"),
        ("", "''", "cannot read", "write a name"),
        ("softmax, ssmax", "'softmax, ssmax'", "cannot read", "write a name"),
        (5, "5", "must be given by name", "such as 'softmax'"),
        (None, "None", "must be given by name", "such as 'softmax'"),
        (sj.softmax, "the function softmax", "must be given by name", "such as 'softmax'"),
        ("ssmax(S=1)", "'S'", "did you mean 's'", "it takes: s="),
        ("ssmax(biass=1)", "'biass'", "did you mean 'bias'", "it takes: s="),
        ("temperature(0)", "theta is 0.0", "must be a finite number above 0", "such as"),
        ("temperature(hot)", "'temperature(hot)'", "cannot read", "write a name"),
        ("entmax(alpha=1)", "alpha is 1.0", "above 1", "such as 1.5"),
        ("entmax(alpha=0.5)", "alpha is 0.5", "above 1", "such as 1.5"),
        ("top_k(k=0)", "k is 0", "at least 1", "such as 8"),
        ("top_k(k=2.5)", "k is 2.5", "whole", "such as 8"),
        ("stieltjes(q=-1)", "q is -1.0", "above 0", "such as 4.0"),
        ("softpick(eps=0)", "eps is 0.0", "at least 1e-37", "such as 1e-06"),
        ("as_stieltjes(q=0)", "q is 0.0", "above 0", "such as 4.0"),
        ("adaptive(fit=nowhere.json)", "nowhere.json", "does not exist", "fit_temperature.py"),
        ("adaptive(fit=nowhere.json, coefficients=(1,))", "nowhere.json", "does not exist", "fit_temperature.py"),
    ):
        yield Case("normalizer.spec", functools.partial(sj.normalizer, spec), (*words,))
    yield Case(
        "normalizer.numbers", lambda: sj.normalizer("ssmax", s="big"), ("s is 'big'", "must be a number", "such as")
    )
    yield Case("normalizer.numbers", lambda: sj.normalizer("ssmax", t=1.0), ("no number 't'", "it takes: s="))
    yield Case("normalizer.numbers", lambda: sj.normalizer("ssmax(1)", s=1.0), ("s twice", "give each number once"))
    for name, bad, *words in (
        ("name", ("softmax", sj.softmax), "'softmax'", "must be new"),
        ("name", (5, sj.softmax), "5", "a Python identifier"),
        ("name", ("two words", sj.softmax), "'two words'", "a Python identifier"),
        ("map", ("mine", "softmax"), "map is 'softmax'", "must be a function", "such as"),
        ("scale", ("mine", sj.softmax, sj.LogLength()), "scale is LogLength", "must be a class", "leave the () out"),
        ("scale", ("mine", sj.softmax, 3.0), "scale is 3.0", "must be a function", "such as"),
    ):
        yield Case(f"register.{name}", functools.partial(sj.register, *bad), (*words,))
    yield Case(
        "register.fit",
        lambda: sj.register("mine", sj.softmax, fit="a.json"),
        ("fit is 'a.json'", "must be a function", "path"),
    )
    for field, bad, *words in (
        ("map", ("softmax",), "map is 'softmax'", "must be a function", "softmax_jax.normalizer"),
        ("map", (None,), "map is None", "must be a function", "give one"),
        ("scale", (sj.softmax, sj.LogLength), "the class LogLength", "must be a scale", "LogLength()"),
        ("scale", (sj.softmax, 0.5), "scale is 0.5", "must be a scale", "give one"),
        ("scale", (sj.softmax, "ssmax"), "scale is 'ssmax'", "must be a scale", "give one"),
        ("scale", (sj.softmax, sj.LogLength(jnp.ones(3))), "LogLength has shape", *PER_ENTRY),
        ("scale", (sj.softmax, sj.LogLength(jnp.ones((4, 1, 1)))), "LogLength has shape", *PER_ENTRY),
    ):
        yield Case(f"Normalizer.{field}", lambda bad=bad: sj.Normalizer(*bad)(Z), (*words,))
    yield Case("scale.cls", lambda: sj.scale(5), ("5", "must be a class", "@scale"))
    yield Case(
        "shift_invariant.map", lambda: sj.shift_invariant("softmax"), ("'softmax'", "must be a function", "such as")
    )
    yield Case(
        "streaming_form.map", lambda: sj.streaming_form("softmax"), ("'softmax'", "must be a function", "such as")
    )


MESH = jax.make_mesh((1,), ("keys",))
ATTENTIONS: dict[str, Callable[..., Any]] = {
    "dot_product_attention": sj.dot_product_attention,
    "streaming_attention": sj.streaming_attention,
    "fused_attention": sj.fused_attention,
    "sharded_attention": functools.partial(sj.sharded_attention, mesh=MESH, axis="keys"),
}
SHARED: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("query", {"query": [[1.0]]}, ("[[1.0]]", "must be an array", "jnp.asarray")),
    ("query", {"query": None}, ("None", "must be an array", "jnp.asarray")),
    ("query", {"query": X[0, 0]}, ("(4, 8)", "must be (batch, length, heads, size)", "give")),
    ("query", {"query": X.astype(int)}, ("int32", "must be one floating-point type", ".astype")),
    ("query", {"query": X.astype(jnp.bfloat16)}, ("bfloat16", "must be one floating-point type", ".astype")),
    ("query", {"query": jnp.ones((2, 5, 3, 8))}, ("3 heads", "no multiple of the 4", "let each")),
    ("query", {"query": X[..., :0], "key": X[..., :0], "value": X[..., :0]}, ("(2, 5, 4, 0)", "at least 1", "larger")),
    ("key", {"key": X[:1]}, ("(1, 5, 4, 8)", "must be those of the query", "(batch, length, heads, size)")),
    ("key", {"key": X[..., :4]}, ("(2, 5, 4, 4)", "must be those of the query", "(batch, length, heads, size)")),
    ("key", {"key": X[0]}, ("(5, 4, 8)", "must be those of the query", "(batch, length, heads, size)")),
    ("key", {"key": "keys"}, ("'keys'", "must be an array", "jnp.asarray")),
    ("value", {"value": X[:, :3]}, ("(2, 3, 4, 8)", "must be that of the key", "pair each")),
    ("value", {"value": [1.0]}, ("[1.0]", "must be an array", "jnp.asarray")),
    ("bias", {"bias": jnp.ones((3, 1, 1))}, ("(3, 1, 1)", "must broadcast", "its full size or 1")),
    ("bias", {"bias": jnp.ones((5, 5), bool)}, ("bool", "must be floating point", "as mask=")),
    ("bias", {"bias": 0.5}, ("0.5", "must be an array", "jnp.asarray")),
    ("mask", {"mask": jnp.ones((4, 4), bool)}, ("(4, 4)", "must broadcast", "its full size or 1")),
    ("mask", {"mask": jnp.ones((5, 5))}, ("float32", "must be bool", "as bias=")),
    ("mask", {"mask": [[True]]}, ("[[True]]", "must be an array", "jnp.asarray")),
    ("scale", {"scale": NAN}, ("nan", "must be a finite number", "such as")),
    ("scale", {"scale": "sqrt"}, ("'sqrt'", "must be a number", "such as")),
    ("scale", {"scale": jnp.ones(8)}, ("(8,)", "must be one number", "normalizer")),
    ("is_causal", {"is_causal": "yes"}, ("'yes'", "must be True or False", "give one")),
    ("is_causal", {"is_causal": None}, ("None", "must be True or False", "give one")),
    ("query_seq_lengths", {"query_seq_lengths": jnp.ones(2)}, ("float32", "must be int32", ".astype('int32')")),
    ("query_seq_lengths", {"query_seq_lengths": LENGTHS[:1]}, ("(1,)", "must be (2,)", "give one length")),
    ("key_value_seq_lengths", {"key_value_seq_lengths": 5}, ("5", "must be an int32 array", "jnp.asarray")),
    ("key_value_seq_lengths", {"key_value_seq_lengths": LENGTHS[:1]}, ("(1,)", "must be (2,)", "give one length")),
    ("local_window_size", {"local_window_size": 1.5}, ("1.5", "must be one whole number", "give (left, right)")),
    ("local_window_size", {"local_window_size": -1}, ("-1", "at least 0", "give (left, right)")),
    ("local_window_size", {"local_window_size": (1, 2, 3)}, ("(1, 2, 3)", "a tuple of two", "give (left, right)")),
    ("normalizer", {"normalizer": "sofmax"}, ("'sofmax'", "did you mean 'softmax'", "known are")),
    (
        "normalizer",
        {"normalizer": sj.softmax},
        ("the function softmax", "must be a Normalizer", "give 'ssmax(s=0.43)'"),
    ),
    ("normalizer", {"normalizer": sj.LogLength()}, ("LogLength", "must be a Normalizer", "Normalizer(map, scale)")),
    ("normalizer", {"normalizer": None}, ("None", "must be a Normalizer", "give")),
    ("normalizer", {"normalizer": "temperature(-1)"}, ("theta is -1.0", "above 0", "such as")),
    (
        "normalizer",
        {"normalizer": sj.normalizer("ssmax", s=jnp.ones((3, 1, 1)))},
        ("LogLength.s has shape", *PER_ENTRY),
    ),
)
OWN: tuple[tuple[str, str, dict[str, Any], tuple[str, ...]], ...] = (
    ("dot_product_attention", "implementation", {"implementation": "stream"}, ("did you mean 'streaming'", "one of")),
    ("dot_product_attention", "implementation", {"implementation": "flash"}, ("'flash'", "must be one of", "'dense'")),
    ("dot_product_attention", "implementation", {"implementation": 3}, ("3", "must be one of", "'dense'")),
    ("dot_product_attention", "return_weights", {"return_weights": "yes"}, ("'yes'", "must be True or False", "give")),
    (
        *("dot_product_attention", "return_weights", {"return_weights": True, "implementation": "streaming"}),
        ("'streaming'", "never forms all weights", "needs 'dense'"),
    ),
    (
        *("dot_product_attention", "block_size", {"block_size": 4, "implementation": "dense"}),
        ("block_size is 4", "must be 'streaming'", "leave block_size out"),
    ),
    ("dot_product_attention", "block_size", {"block_size": 0}, ("block_size is 0", "at least 1", "such as 1024")),
    ("streaming_attention", "block_size", {"block_size": -5}, ("block_size is -5", "at least 1", "such as 1024")),
    ("streaming_attention", "block_size", {"block_size": 2.5}, ("2.5", "must be a whole number", "such as 1024")),
    ("sharded_attention", "block_size", {"block_size": "big"}, ("'big'", "must be a whole number", "such as 1024")),
    ("sharded_attention", "mesh", {"mesh": jax.devices()}, ("CpuDevice", "must be a mesh", "jax.make_mesh")),
    ("sharded_attention", "axis", {"axis": "key"}, ("'key'", "did you mean 'keys'", "must be one of the mesh")),
    ("sharded_attention", "axis", {"axis": None}, ("None", "must be one of the mesh", "keys")),
    ("fused_attention", "implementation", {"implementation": "cuddn"}, ("did you mean 'cudnn'", "must be one of")),
    ("fused_attention", "normalizer", {"normalizer": "entmax15"}, ("entmax15", "is no softmax", "implementation=")),
    (
        "fused_attention",
        "bias",
        {"normalizer": "softmax1", "bias": Z[:1, :1]},
        ("softmax1", "leave bias out", "or use"),
    ),
)


def attention() -> Iterator[Case]:
    """Everything that attends."""
    for name, of in ATTENTIONS.items():
        for argument, bad, words in SHARED:
            arguments = {"query": X, "key": X, "value": X} | bad
            yield Case(f"{name}.{argument}", functools.partial(of, **arguments), words)
    for name, argument, bad, words in OWN:
        arguments = {"query": X, "key": X, "value": X} | bad
        yield Case(f"{name}.{argument}", functools.partial(ATTENTIONS[name], **arguments), words)
    normalizer = sj.normalizer("softmax")
    for argument, bad, words in (
        ("normalizer", {"normalizer": sj.softmax}, ("the function softmax", "must be a Normalizer", "give")),
        ("query", {"query": X.astype(int)}, ("int32", "must be floating point", ".astype")),
        ("query", {"query": X[0, 0]}, ("(4, 8)", "must be (*batch, length, heads, size)", "give")),
        ("key", {"key": X[..., :4]}, ("(2, 5, 4, 4)", "its size must be", "project")),
        ("key", {"key": X[:1]}, ("(1, 5, 4, 8)", "batch axes of the query", "give")),
        ("value", {"value": X[:, :3]}, ("(2, 3, 4, 8)", "must be those of the key", "pair each")),
        ("value", {"value": None}, ("None", "must be an array", "jnp.asarray")),
        ("bias", {"bias": jnp.ones((3, 3))}, ("(3, 3)", "must broadcast", "its full size or 1")),
        ("mask", {"mask": jnp.ones((3, 3))}, ("(3, 3)", "must broadcast", "its full size or 1")),
        ("mask", {"mask": [1]}, ("[1]", "must be an array", "jnp.asarray")),
        ("broadcast_dropout", {"broadcast_dropout": "no"}, ("'no'", "must be True or False", "give")),
        ("deterministic", {"deterministic": None}, ("None", "must be True or False", "give")),
        ("dropout_rate", {"dropout_rate": 1.0}, ("1.0", "must be at least 0 and below 1", "use 0")),
        ("dropout_rate", {"dropout_rate": -0.1}, ("-0.1", "must be at least 0 and below 1", "use 0")),
        ("dropout_rate", {"dropout_rate": "0.1"}, ("'0.1'", "must be at least 0 and below 1", "use 0")),
        ("dropout_rng", {"dropout_rate": 0.1}, ("dropout_rng is None", "dropout_rate is 0.1", "give a key")),
        (
            "dropout_rng",
            {"dropout_rate": 0.1, "dropout_rng": 3},
            ("key is 3", "must be a random key", "jax.random.key"),
        ),
        ("dtype", {"dtype": "float33"}, ("'float33'", "must be a floating-point type", "such as 'float32'")),
        ("dtype", {"dtype": jnp.int32}, ("int32", "must be a floating-point type", "such as 'float32'")),
        ("is_causal", {"is_causal": 1}, ("1", "must be True or False", "give")),
    ):
        arguments = {"normalizer": normalizer, "query": X, "key": X, "value": X} | bad
        yield Case(f"attend.{argument}", functools.partial(attend, **arguments), words)
    for spec, *words in (("sofmax", "did you mean 'softmax'", "known are"), (3, "3", "must be a Normalizer", "give")):
        yield Case("attention_fn.normalizer", functools.partial(sj.attention_fn, spec), (*words,))
    linen = {"LinenAttention": lambda *bad: sj.LinenAttention(*bad).init(KEY, X, X, X)}
    for name, of in (linen | {"NnxAttention": sj.NnxAttention}).items():
        for field, bad, *words in (
            ("normalizer", ("sofmax", ("s",)), "did you mean 'softmax'", "known are"),
            ("normalizer", (sj.ssmax, ("s",)), "the function ssmax", "must be a Normalizer", "give"),
            ("learn", ("ssmax", ("sink",)), "cannot learn 'sink'", "the numbers of this normalizer are s, bias"),
            ("learn", ("ssmax", ("biass",)), "cannot learn 'biass'", "did you mean 'bias'"),
            ("learn", ("ssmax", "s"), "learn is 's'", "must be a tuple of names", "('s',)"),
            ("learn", ("ssmax", ("s", "s")), "('s', 's')", "each once", "such as"),
            ("heads", ("ssmax", ("s",), 0), "heads is 0", "at least 1", "such as"),
            ("heads", ("ssmax", ("s",), 2.0), "heads is 2.0", "must be a whole number", "such as"),
        ):
            if name == "NnxAttention" or bad[2:] == ():  # Linen compares its heads with those of the layer first
                yield Case(f"{name}.{field}", functools.partial(of, *bad), (*words,))
    yield Case(
        "LinenAttention.heads", lambda: linen["LinenAttention"]("ssmax", ("s",), 3), ("3 heads", "has 4", "give")
    )
    for field, bad, *words in (
        ("heads", (0, 8), "heads is 0", "at least 1", "such as"),
        ("heads", ("4", 8), "'4'", "must be a whole number", "such as"),
        ("size", (4, -8), "size is -8", "at least 1", "such as"),
        ("map", (4, 8, "softmax"), "'softmax'", "must be a function", "such as"),
    ):
        yield Case(f"NnxQueryTemperature.{field}", functools.partial(sj.NnxQueryTemperature, *bad), (*words,))
    read = lambda z: sj.Block(z, lambda w: w)  # noqa: E731
    for argument, bad, words in (
        ("normalizer", {"normalizer": "softmax"}, ("'softmax'", "must be a Normalizer", "softmax_jax.normalizer")),
        ("read", {"read": Z}, ("(2, 3)", "must be a function", "Block")),
        ("blocks", {"blocks": ()}, ("[]", "at least 1", "give the blocks")),
        ("blocks", {"blocks": (Z, Z[:1])}, ("(1,), (2,)", "same length", "give the blocks")),
        ("blocks", {"blocks": 3.0}, ("()", "leading axis", "give the blocks")),
        ("measure", {"measure": "entropy"}, ("'entropy'", "must be a function", "weights")),
    ):
        arguments = {"normalizer": normalizer, "read": read, "blocks": Z[:, None]} | bad
        yield Case(f"stream.{argument}", functools.partial(sj.stream, **arguments), words)


def shows() -> Iterator[Case]:
    """Pictures of arrays."""
    for argument, bad, words in (
        ("axes", {"axes": ("row",)}, ("['row']", "the array has the shape (2, 3)", "give 2 different names")),
        ("labels", {"axes": ("a", "b"), "labels": {"c": "xy"}}, ("'c'", "the axes are a, b")),
        ("labels", {"axes": ("a", "b"), "labels": {"a": "xyz"}}, ("labels['a']", "3 names", "2 places")),
        ("columns", {"axes": ("a", "b"), "columns": ("c",)}, ("'c'", "the axes are a, b")),
        ("limits", {"axes": ("a", "b"), "limits": (1.0, 0.0)}, ("(1.0, 0.0)", "must be (low, high)", "such as")),
        ("limits", {"axes": ("a", "b"), "limits": (0.0, NAN)}, ("nan", "must be (low, high)", "such as")),
        ("path", {"path": 5}, ("5", "must be the name of a file", "such as")),
        ("path", {"path": "/"}, ("'/'", "must be the name of a file", "such as")),
    ):
        yield Case(f"show.{argument}", functools.partial(sj.show, Z, **bad), words)


def bounds() -> Iterator[Case]:
    """Theory."""
    for name in "weight_bounds", "loose_weight_bounds", "largest_weight_bounds", "entropy_bounds":
        of = getattr(theory, name)
        for argument, bad, *words in (
            ("n", (0, 1.0), "n is 0", "at least 1"),
            ("n", (NAN, 1.0), "n is nan", "at least 1"),
            ("n", ("many", 1.0), "'many'", "must be a real number", "such as"),
            ("n", ([1, 2], [1.0, 2.0, 3.0]), "(2,), (3,)", "must broadcast", "its full size or 1"),
            ("spread", (10, -1.0), "spread is -1", "at least 0"),
            ("spread", (10, None), "None", "must be a real number", "such as"),
            ("spread", (10, INF, 0.0), "inf", "must be finite"),
            ("beta", (10, 1.0, -0.5), "beta is -0.5", "at least 0"),
            ("beta", (10, 1.0, 1j), "1j", "must be a real number", "such as"),
        ):
            yield Case(f"{name}.{argument}", functools.partial(of, *bad), (*words,))
    for argument, of, bad, *words in (
        ("counts", theory.largest_weight_from_nearest, ([0, 2], [0.0, 1.0]), "counts is 0", "at least 1"),
        (
            "counts",
            theory.largest_weight_from_nearest,
            ([1, 2], [0.0, 1.0, 2.0]),
            "(2,)",
            "must be that of",
            "give one",
        ),
        ("spreads", theory.largest_weight_from_nearest, ([1, 2], [0.0, -1.0]), "spreads is -1", "at least 0"),
        ("beta", theory.largest_weight_from_nearest, ([1, 2], [0.0, 1.0], "b"), "'b'", "must be a real number"),
        ("threshold", theory.length_forced_below, (0, 1.0), "threshold is 0", "between 0 and 1", "such as"),
        ("threshold", theory.length_forced_below, (1.0, 1.0), "threshold is 1", "between 0 and 1", "such as"),
        ("spread", theory.length_forced_below, (0.5, -1.0), "spread is -1", "at least 0"),
        ("beta", theory.length_forced_below, (0.5, 1.0, NAN), "beta is nan", "at least 0"),
        ("query_kernel", theory.spread_from_norms, (np.ones(3), np.eye(3), 1.0, 1.0), "(3,)", "must be", "matrix"),
        ("key_kernel", theory.spread_from_norms, (np.eye(3), np.eye(3) * NAN, 1.0, 1.0), "nan", "must be finite"),
        ("query", theory.spread_from_norms, (np.eye(3), np.eye(3), -1.0, 1.0), "query is -1", "at least 0", "such as"),
        ("item", theory.spread_from_norms, (np.eye(3), np.eye(3), 1.0, "x"), "'x'", "must be a real number"),
        ("scale", theory.spread_from_norms, (np.eye(3), np.eye(3), 1.0, 1.0, NAN), "scale is nan", "at least 0"),
    ):
        yield Case(f"{of.__name__}.{argument}", functools.partial(of, *bad), (*words,))


PARAMETERS = {"item_in": {"kernel": jnp.ones((2, 11, 8))}}
MEASURED: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("parameters", {"parameters": Z}, ("(2, 3)", "must be those of the max-retrieval model", "load_checkpoint")),
    ("parameters", {"parameters": {"item_in": {"kernel": Z}}}, ("(2, 3)", "must have a leading axis", "leaf[None]")),
    ("normalizers", {"normalizers": {}}, ("{}", "at least one", "give")),
    ("normalizers", {"normalizers": ("softmax",)}, ("('softmax',)", "must be normalizers by name", "give")),
    ("normalizers", {"normalizers": {"a": "softmax"}}, ("normalizers['a']", "must be a Normalizer", "by name")),
    ("seeds", {"seeds": ()}, ("()", "at least one", "leave")),
    ("seeds", {"seeds": (0,)}, ("1 seeds", "must have a leading axis", "leaf[None]")),
    ("seeds", {"seeds": (0, -1)}, ("-1", "must be from 0", "such as")),
    ("seeds", {"seeds": 2}, ("seeds is 2", "must be a sequence", "such as")),
    ("lengths", {"lengths": ()}, ("()", "at least one", "leave")),
    ("lengths", {"lengths": (16, 16)}, ("(16, 16)", "each once", "leave")),
    ("lengths", {"lengths": (0,)}, ("0", "must be from", "such as 16")),
    ("lengths", {"lengths": (16.5,)}, ("16.5", "must be a whole number", "such as 16")),
    ("lengths", {"lengths": (10**9,)}, ("1000000000", "to 1048576", "such as 16")),
    ("sets", {"sets": 0}, ("sets is 0", "from 1 to", "such as 512")),
    ("sets", {"sets": 2.5}, ("2.5", "must be a whole number", "such as 512")),
    ("sets", {"sets": 10**12}, ("1000000000000", "from 1 to 1048576", "such as 512")),
    ("key", {"key": 7}, ("key is 7", "must be a random key", "jax.random.key(0)")),
)


def measuring() -> Iterator[Case]:
    """Evaluation, dispersion, refits."""
    for name, of in ("evaluate", evaluation.evaluate), ("measure_sets", dispersion.measure_sets):
        for argument, bad, words in MEASURED:
            good = {"parameters": PARAMETERS, "normalizers": {"softmax": sj.normalizer("softmax")}, "seeds": (0, 1)}
            yield Case(f"{name}.{argument}", functools.partial(of, **good | bad), words)
    evaluate = functools.partial(evaluation.evaluate, PARAMETERS, {"softmax": sj.normalizer("softmax")}, seeds=(0, 1))
    yield Case("evaluate.protocol", lambda: evaluate(protocol="notebok"), ("did you mean 'notebook'", "must be one of"))
    yield Case("summarize.rows", lambda: evaluation.summarize([]), ("empty", "must have at least one", "give"))
    yield Case("sets_at.items", lambda: dispersion.sets_at(0, 4), ("items is 0", "at least 1", "such as"))
    yield Case("nearest_counts.items", lambda: dispersion.nearest_counts(-1), ("items is -1", "at least 1", "such as"))
    yield Case("forced_rows.threshold", lambda: dispersion.forced_rows([], 2.0), ("2.0", "between 0 and 1", "such as"))
    yield Case("crossing.values", lambda: dispersion.crossing([1, 2], [1.0], 0.5), ("1;", "must pair up", "give"))
    yield Case(
        "resolution.points", lambda: dispersion.resolution(PARAMETERS, points=1), ("points is 1", "from 2", "such as")
    )
    yield Case("resolution.query", lambda: dispersion.resolution(PARAMETERS, query=NAN), ("nan", "finite", "such as"))
    yield Case(
        "resolution.parameters", lambda: dispersion.resolution({}), ("{}", "max-retrieval model", "load_checkpoint")
    )
    found = dispersion.Measured(("softmax",), (3, 4), {})
    yield Case(
        "attention_maps.seed", lambda: dispersion.attention_maps(found, 5), ("seed is 5", "must be one of", "3, 4")
    )
    yield Case(
        "attention_maps.sets", lambda: dispersion.attention_maps(found, sets=0), ("sets is 0", "at least 1", "such as")
    )
    yield Case("name_bad_rows.on", lambda: sj.name_bad_rows("yes"), ("on is 'yes'", "must be True or False", "give"))
    here = temperature.Path()
    for specs, *words in (((), "()", "at least one", "give"), ("softmax", "'softmax'", "must be a tuple", "give")):
        yield Case("named_normalizers.specs", functools.partial(refit.named_normalizers, specs, here, {}), (*words,))
    loss = lambda attended: attended.sum(-1)  # noqa: E731
    values = jnp.ones((2, 3, 4))
    for argument, bad, words in (
        ("logits", {"logits": Z[0]}, ("(3,)", "must be (rows, n)", "add an axis")),
        ("logits", {"logits": [[1.0]]}, ("[[1.0]]", "must be an array", "jnp.asarray")),
        ("logits", {"logits": Z[:0], "values": values[:0]}, ("(0, 3)", "at least 1", "add")),
        ("values", {"values": values[:1]}, ("(1, 3, 4)", "(2, 3) in front", "give one vector")),
        ("loss", {"loss": "nll"}, ("'nll'", "must be a function", "per row")),
        ("loss", {"loss": lambda attended: attended.mean()}, ("shape ()", "one number per row", "drop mean()")),
        ("error", {"error": lambda attended: attended}, ("(2, 4)", "one number per row", "drop mean()")),
        ("where", {"where": jnp.ones(5, bool)}, ("(5,)", "must broadcast", "its full size or 1")),
    ):
        arguments = {"logits": Z, "values": values, "loss": loss} | bad
        yield Case(f"search.{argument}", functools.partial(temperature.search, **arguments), words)
    some = temperature.Rows(*(np.ones((2, 3)) for _ in range(4)), *(np.ones((2, 3, 49)) for _ in range(2)))
    points = temperature.Points(np.arange(3.0), np.ones(3), np.ones(3), (0.0, 2.0))
    fit = functools.partial(temperature.fit, seeds=(0, 1))
    for of, call, *words in (
        ("points.criterion", lambda: temperature.points(some, "bin"), "'bin'", "did you mean 'bins'", "must be one of"),
        ("polynomial.degree", lambda: temperature.polynomial(points, -1), "degree is -1", "from 0", "such as"),
        ("polynomial.degree", lambda: temperature.polynomial(points, 1.5), "1.5", "a whole number", "such as"),
        ("polynomial.degree", lambda: temperature.polynomial(points, 4), "too few for degree 4", "3 points", "a lower"),
        ("fit.rows", lambda: fit({}, {16: some}), "no rows", "give lengths"),
        ("fit.held_out", lambda: fit({16: some}, {}), "held_out is empty", "must have rows", "at least one"),
        ("fit.seeds", lambda: temperature.fit({16: some}, {16: some}, seeds=(0,)), "seeds are 1", "as many", "shape"),
        ("fit.degree", lambda: fit({16: some}, {16: some}, degree=-1), "degree is -1", "from 0", "such as"),
        ("fit.criterion", lambda: fit({16: some}, {16: some}, criterion="best"), "'best'", "must be one of", "'bins'"),
        (
            "cross_validate.folds",
            lambda: temperature.cross_validate(some, "bins", 1),
            "folds is 1",
            "at least 2",
            "such as",
        ),
        ("cross_validate.criterion", lambda: temperature.cross_validate(some, "x"), "'x'", "must be one of", "'bins'"),
        (
            *("TemperatureFit.load", lambda: temperature.TemperatureFit.load(here / "none.json")),
            *("none.json", "does not exist", "fit_temperature.py"),
        ),
    ):
        yield Case(of, call, (*words,))


def tasks() -> Iterator[Case]:
    """Data, models and settings."""
    for name, of in (
        ("sample", max_retrieval.sample),
        ("sample_blocks", lambda *bad: list(max_retrieval.sample_blocks(*bad))),
    ):
        for argument, bad, *words in (
            ("key", (0, 2, 4), "key is 0", "must be a random key", "jax.random.key(0)"),
            ("sets", (KEY, 0, 4), "sets is 0", "from 1", "such as 128"),
            ("sets", (KEY, 2.0, 4), "2.0", "must be a whole number", "such as 128"),
            ("items", (KEY, 2, -4), "items is -4", "from 1", "such as 16"),
            ("items", (KEY, 2, 10**10), "10000000000", "to 16777216", "such as 16"),
            ("lengths", (KEY, 2, 4, [4, 1]), "[4, 1]", "must be an integer array", "jnp.asarray"),
            ("lengths", (KEY, 2, 4, jnp.array([1, 2, 3])), "(3,)", "must be (2,)", "give one"),
            ("lengths", (KEY, 2, 4, jnp.ones(2)), "float32", "must be an integer array", "jnp.asarray"),
        ):
            yield Case(f"max_retrieval.{name}.{argument}", functools.partial(of, *bad), (*words,))
    rngs = nnx.Rngs(0)
    signal, asked = Signal(), Retrieval("sort")
    transformer = functools.partial(Transformer, features=3, classes=5, normalizer=sj.normalizer("softmax"), rngs=rngs)
    for of, call, *words in (
        (
            "MaxRetrievalModel.width",
            lambda: max_retrieval.MaxRetrievalModel(0, rngs=rngs),
            "width is 0",
            "from 1",
            "such as 128",
        ),
        (
            "MaxRetrievalModel.rngs",
            lambda: max_retrieval.MaxRetrievalModel(8, rngs=KEY),
            "key<fry>",
            "keys of Flax",
            "nnx.Rngs(0)",
        ),
        ("Transformer.hidden", lambda: transformer(hidden=10, heads=4), "hidden is 10", "multiple of heads", "give"),
        ("Transformer.heads", lambda: transformer(heads=0), "heads is 0", "from 1", "such as 4"),
        ("Transformer.layers", lambda: transformer(layers=1.5), "1.5", "must be a whole number", "such as 2"),
        ("Transformer.dropout", lambda: transformer(dropout=1.0), "dropout is 1.0", "below 1", "such as 0.05"),
        ("Transformer.normalizer", lambda: transformer(normalizer="sofmax"), "did you mean 'softmax'", "known are"),
        ("Transformer.rngs", lambda: transformer(rngs=0), "rngs is 0", "keys of Flax", "nnx.Rngs(0)"),
        ("Transformer.causal", lambda: transformer(causal="no"), "'no'", "must be True or False", "give"),
        ("Signal.length", lambda: Signal(length=0), "--length is 0", "from 1", "such as 32"),
        ("Signal.length", lambda: Signal(length=10**6), "--length is 1000000", "to 16384", "such as 32"),
        ("Signal.signal_length", lambda: Signal(signal_length=40), "--signal-length is 40", "at most the length, 32"),
        ("Signal.classes", lambda: Signal(classes=1), "--classes is 1", "at least 2", "such as 4"),
        ("Signal.classes", lambda: Signal(classes=65), "--classes is 65", "from 2 to 64", "the features"),
        ("Signal.batch", lambda: Signal(batch=0), "--batch is 0", "from 1", "such as 32"),
        ("Signal.pooling", lambda: Signal(pooling="max"), "'max'", "must be one of", "'mean'"),
        ("Signal.examples", lambda: signal.examples(KEY, "tset", LABELS, 8), "did you mean 'test'", "one of"),
        ("Signal.examples", lambda: signal.examples(KEY, "test", LABELS, 2), "length is 2", "at least 3", "such as"),
        ("Retrieval.kind", lambda: Retrieval("srt"), "'srt'", "did you mean 'sort'", "must be one of"),
        ("Retrieval.length", lambda: Retrieval("copy", length=1), "--length is 1", "from 2", "such as 64"),
        ("Retrieval.classes", lambda: Retrieval("copy", classes=0), "--classes is 0", "from 2", "such as 10"),
        ("Retrieval.queries", lambda: Retrieval("copy", queries=0), "--queries is 0", "from 1", "such as 16"),
        (
            "Retrieval.test_batch",
            lambda: asked.test_batch(KEY, 10**6, jnp.int32(0), 2),
            "1000000",
            "to 16384",
            "such as",
        ),
        ("Recipe.hidden", lambda: Recipe(hidden=0), "--hidden is 0", "from 1", "such as 64"),
        ("Recipe.hidden", lambda: Recipe(hidden=10), "--hidden is 10", "multiple of --heads, 4", "such as 8"),
        ("Recipe.dropout", lambda: Recipe(dropout=NAN), "dropout is nan", "below 1", "such as 0.05"),
        ("Recipe.learning_rate", lambda: Recipe(learning_rate=0), "learning_rate is 0", "above 0", "such as 0.0003"),
        ("devices.shares", lambda: devices.shares(0, 0, 0), "0 seeds of 0 sets", "do not divide", "let a multiple"),
        ("Cluster.processes", lambda: Cluster(processes=0), "--processes is 0", "must be at least 1"),
        ("Cluster.coordinator", lambda: Cluster("here", 2, 0), "--coordinator is here", "must be HOST:PORT", "as in"),
        ("Cluster.process", lambda: Cluster("a:1", 2, 5), "--process is 5", "must be from 0 to 1"),
    ):
        yield Case(of, call, (*words,))
    for field, value, *words in (
        ("steps", 0, "--steps is 0", "from 1", "such as 100000"),
        ("steps", 1.5, "--steps is 1.5", "must be a whole number", "such as 100000"),
        ("steps", "many", "'many'", "must be a whole number", "such as 100000"),
        ("steps", True, "True", "must be a whole number", "such as 100000"),
        ("seeds", -1, "--seeds is -1", "from 1", "such as 1"),
        ("first_seed", 2**31, "2147483648", "from 0 to 2147483647", "such as 0"),
        ("sets", None, "None", "must be a whole number", "such as 128"),
        ("min_items", 17, "--max-items is 16", "must be at least min_items=17"),
        ("max_items", 4, "--max-items is 4", "must be at least min_items=5"),
        ("steps_per_batch", 0, "--steps-per-batch is 0", "from 1", "such as 1"),
        ("nearest_of", 0, "--nearest-of is 0", "from 1", "such as 1"),
        ("normalizer", 3, "--normalizer is 3", "must be the name of a normalizer", "such as softmax"),
        ("width", 10**9, "--width is 1000000000", "from 1 to 16384", "such as 128"),
        ("l2", -1.0, "--l2 is -1.0", "at least 0", "such as 0.001"),
        ("l2", NAN, "--l2 is nan", "at least 0", "such as 0.001"),
        ("learning_rate", 0.0, "--learning-rate is 0.0", "above 0", "such as 0.001"),
        ("learning_rate", "fast", "'fast'", "must be a number", "such as 0.001"),
        ("optimizer", 3, "--optimizer is 3", "must be a name of optax", "such as adam"),
        ("schedule", None, "--schedule is None", "must be a name of optax", "such as constant_schedule"),
        ("optimizer_options", [1], "[1]", "must be numbers by name", "such as"),
        ("optimizer_options", {"b1": NAN}, "--optimizer-options b1 is nan", "finite number", "such as"),
        ("schedule_options", {"alpha": "low"}, "'low'", "must be a number", "such as"),
        ("chunk", 0, "--chunk is 0", "from 1", "such as 500"),
        ("chunks_per_checkpoint", 0, "--chunks-per-checkpoint is 0", "from 1", "such as 10"),
    ):
        yield Case(f"Config.{field}", lambda field=field, value=value: Config(**{field: value}), (*words,))


def cases() -> list[Case]:
    """The whole table."""
    parts = (rows, numbers, calculus, registry, attention, shows, bounds, measuring, tasks)
    return [case for part in parts for case in part()]
