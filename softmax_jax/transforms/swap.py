"""`swap`: any JAX function with other normalizers in the place of its softmaxes."""

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import NormalizerLike, as_normalizer
from softmax_jax.refusal import Refusal
from softmax_jax.transforms.execution import execute
from softmax_jax.transforms.program import Node, Value, trace
from softmax_jax.transforms.replacement import Empty, Recorder, Replacement
from softmax_jax.transforms.sites import Site, TracedSite, check_callable, find_sites
from softmax_jax.transforms.unread import UNREADABLE

Where = Callable[[Site], bool] | None
"""Says of a site whether it is chosen; None chooses every attention site."""
Normalizers = NormalizerLike | Mapping[Any, NormalizerLike]
"""One for all chosen sites, or by index, or by scope, in which `*` stands for anything."""
BY_DEFAULT = ("attention", *UNREADABLE)
"""The uses of sites that are chosen unless others are named; those that cannot be read are refused."""
INSIDE = "swap inside, before the derivative is taken, as in jax.grad(sj.swap(f, ...))"
"""The remedy for a derivative in the function."""


def swap(
    fun: Callable[..., Any], normalizer: Normalizers, *, where: Where = None, empty: Empty = "model"
) -> Callable[..., Any]:
    r"""Replaces the softmax of a function's attention by a normalizer, as if the function were edited by hand.

    $$w = \operatorname{softmax}(z) \quad\to\quad w = \operatorname{normalizer}(z)$$

    The mask is that of the model: entries that it hides with a predicate or a large negative number are hidden before
    any scale multiplies, get weight 0, and do not count in n.

    The function is traced at every call, as under `jax.grad`: wrap the result in `jax.jit`. It composes with `jit`,
    `grad`, `vmap`, `scan` and `checkpoint`. A normalizer that is an argument of the compiled function may change
    without a new compilation. Objects of `flax.nnx` among the arguments keep what `fun` writes to them, such as a
    cache.

    Swap first and differentiate after: a function that takes the derivative of a chosen softmax itself is refused,
    since only the forward pass would change. A custom rule for derivatives around a swapped softmax
    (`jax.custom_jvp`, `jax.custom_vjp`) gives way to the derivative of the new normalizer; `sites` names a rule that
    JAX does not define.

    Arguments:
        fun: Any JAX function.
        normalizer: A `Normalizer`, its name, a map, or a function with the signature of `jax.nn.softmax`. Or several by
            pattern, `{"*/block_3": "ssmax(s=0.4)", 7: "entmax15"}`: a pattern is an index in `sites(fun)(...)`, or a
            scope in which `*` stands for anything. The first that matches a site counts; a site that none matches
            stays. Numbers per head have the shape (heads, 1, 1) for logits of shape (batch, heads, queries, keys). In a
            scan over layers, numbers with as many axes as the logits, or more, have the layers first, as
            (layers, heads, 1, 1). A scan over time that carries a state and slices inputs of floating point looks like
            one over layers, and its numbers too have the turns first, or 1 for all turns alike. For logits of shape
            (entries, heads) over segments they have the shape (heads,).
        where: Says of a `Site` whether it is chosen. Without it the sites are chosen whose use is attention, over
            segments too. Others, such as routers and the pointers of a pointer network, are chosen where an index names
            them, or a scope that matches no attention.
        empty: What a row with nothing visible gets: "model" leaves it as the model has it, often uniform; "zeros" gives
            it no weight. A row of only -inf gets 0. Under "model", a swap to softmax leaves a site as it is.

    Returns:
        A function of the same arguments and results.

    Raises:
        TypeError: `fun` is no function, or `normalizer` none.
        ValueError: `fun` has no softmax; a pattern matches nothing; a chosen site cannot be read, or `fun` takes its
            derivative itself; numbers do not fit a site; `fun` writes to an object of NNX that is none of its
            arguments.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> attend = lambda q, k, v: jax.nn.softmax(q @ k.T) @ v
        >>> x = jnp.array([[1.0, 0.0], [0.0, 2.0]])
        >>> swap(attend, "hardmax")(x, x, x)
        Array([[1., 0.],
               [0., 2.]], dtype=float32)
    """
    transformed = transform(fun, by_pattern(normalizer), where, empty)

    @functools.wraps(fun, updated=())
    def swapped(*args: Any, **kwargs: Any) -> Any:
        return transformed(*args, **kwargs)[0]

    return swapped


def by_pattern(normalizers: Normalizers) -> dict[Any, Normalizer]:
    """Returns normalizers by the pattern of their sites."""
    patterns = normalizers if isinstance(normalizers, Mapping) else {"*": normalizers}
    return {pattern: as_normalizer(normalizer) for pattern, normalizer in patterns.items()}


def transform(
    fun: Callable[..., Any],
    normalizers: Mapping[Any, Normalizer | None],
    where: Where = None,
    empty: Empty = "model",
    recorder: Recorder | None = None,
) -> Callable[..., tuple[Any, list[tuple[Site, Any]]]]:
    """Returns a function that returns what `fun` returns under normalizers by pattern, and a record of each site.

    None as a normalizer leaves the weights of the model, which are recorded. Raises as `swap` does.
    """
    check_callable(fun)
    checks.one_of("empty", empty, get_args(Empty))

    def transformed(*args: Any, **kwargs: Any) -> tuple[Any, list[tuple[Site, Any]]]:
        program = trace(fun, args, kwargs)
        chosen = choose(find_sites(program, fun), normalizers, where)
        candidates = [Replacement(traced, normalizer, empty, recorder) for traced, normalizer in chosen.items()]
        replacements = {candidate.softmax.node: candidate for candidate in candidates if candidate.changes or recorder}
        refuse_derivatives(replacements.values())
        changed = {node for node, replacement in replacements.items() if replacement.changes}
        required = [value for replacement in replacements.values() for value in replacement.required_values()]
        sliced: dict[Node, dict[Value, Any]] = {}
        for replacement in replacements.values():
            if scan := replacement.traced.scan:
                sliced[scan] = sliced.get(scan, {}) | replacement.numbers.sliced
        results, records = execute(program, replacements, changed, required, sliced)
        return program.restore(results), [(traced.site, records.get(str(traced.site.index))) for traced in chosen]

    return transformed


def choose(
    traced_sites: list[TracedSite], normalizers: Mapping[Any, Normalizer | None], where: Where
) -> dict[TracedSite, Normalizer | None]:
    """Returns the chosen sites with the normalizer of the first pattern that matches each.

    Raises ValueError for a pattern that matches no site, for a chosen site that cannot be read, and if none is chosen.
    """
    chosen: dict[TracedSite, Normalizer | None] = {}
    for pattern, normalizer in normalizers.items():
        matched = _matching(traced_sites, pattern)
        named = _names_all(pattern, matched)
        for traced in matched:
            site = traced.site
            if not (where(site) if where else named or site.use in BY_DEFAULT):
                continue
            if traced.softmax is None:
                why = UNREADABLE.get(site.use, UNREADABLE["unread"])
                remedy = INSIDE if site.use == "derivative" else "choose the model's plain attention"
                raise Refusal(
                    f"site {site.index} at {site.line} is {site.what}, {why}: {remedy}, or leave the "
                    f"site as it is with where=lambda site: site.index != {site.index} and site.use in ('attention', "
                    "'segments')"
                )
            chosen.setdefault(traced, normalizer)
    if not chosen:
        listed = ", ".join(f"{site.index}: {site.scope} ({site.use})" for site, *_ in traced_sites)
        raise Refusal(
            f"no site is chosen among {listed}: choose some by where=, by their index or scope; in a function that was "
            "swapped already, probe and swap the original"
        )
    return chosen


def _names_all(pattern: str | int, matched: list[TracedSite]) -> bool:
    """Says whether a pattern names all sites that it matches, rather than those whose use is chosen by default.

    An index does, and so does a scope without a site of such a use: "block_1" of a layer with attention and a router is
    its attention, and "block_1/router" is the router.
    """
    if isinstance(pattern, int):
        return True
    return bool(pattern.strip("*")) and not any(traced.site.use in BY_DEFAULT for traced in matched)


def refuse_derivatives(replacements: Iterable[Replacement]) -> None:
    """Raises ValueError for weights that change while a derivative, taken in the function itself, would stay."""
    for replacement in replacements:
        if replacement.changes and replacement.traced.derived:
            site = replacement.traced.site
            raise Refusal(
                f"site {site.index} at {site.line} is a softmax whose derivative the function takes itself, and a swap "
                f"would leave: {INSIDE}"
            )


def _matching(traced_sites: list[TracedSite], pattern: str | int) -> list[TracedSite]:
    """Returns the sites that a pattern matches. Raises ValueError, with the nearest scopes first, for none."""
    matched = [traced for traced in traced_sites if traced.site.matches(pattern)]
    if not matched:
        if isinstance(pattern, int):
            raise Refusal(f"there is no site {pattern}: the sites are 0 to {len(traced_sites) - 1}")
        scopes = list(dict.fromkeys(traced.site.scope for traced in traced_sites))
        near = sorted(scopes, key=lambda scope: -difflib.SequenceMatcher(None, pattern, scope).ratio())
        raise Refusal(f"no site matches {pattern!r}; the scopes are {', '.join(map(repr, near))}")
    return matched
