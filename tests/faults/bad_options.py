"""Bad options of every script, and what the one line on stderr must name: the value, the rule, the remedy."""

from typing import NamedTuple

NORMALIZERS = "softmax_jax.normalizers"
GALLERY = "softmax_jax.report.gallery"
SHARPEST = "softmax_jax.sharpest"


class Command(NamedTuple):
    """A command line that must be refused."""

    script: str
    """A file in the root, or a module."""
    arguments: tuple[str, ...]
    words: tuple[str, ...]
    files: dict[str, str]
    """Content by name of the files that lie in the directory."""


def refused(script: str, arguments: str, *words: str, **files: str) -> Command:
    """The arguments split at spaces, where _ stands for an empty one and + for a space within one."""
    split = tuple("" if text == "_" else text.replace("+", " ") for text in arguments.split())
    return Command(script, split, words, files)


HELP = "--help shows every option"
WHOLE = "must be a whole number"

TRAIN = (
    ("", "nothing", "must be a preset", "notebook, paper, quick"),
    ("papr", "papr", "did you mean 'paper'", "must be a preset"),
    ("--steps 10", "--steps", "must be a preset", "quick"),
    ("Quick", "Quick", "did you mean 'quick'", "must be a preset"),
    ("_", "the first argument", "must be a preset", "quick"),
    ("quick paper", "paper", "must follow the name", HELP),
    ("quick --steps 0", "--steps is 0", "from 1", "such as 100000"),
    ("quick --steps -5", "--steps is -5", "from 1", "such as 100000"),
    ("quick --steps 1e5", "--steps is '1e5'", WHOLE, "as in 128"),
    ("quick --steps 100_000.5", "'100_000.5'", WHOLE, "as in 128"),
    ("quick --steps", "--steps has no value", "must be followed", HELP),
    ("quick --steps 1000000000000", "1000000000000", "to 2147483647", "such as 100000"),
    ("quick --steps 10 --steps 20", "--steps is given twice", "must be given once", "leave one out"),
    ("quick --step 10", "--step is no option", "did you mean --steps", HELP),
    ("quick --learnig-rate 0.1", "--learnig-rate", "did you mean --learning-rate", HELP),
    ("quick --lr 0.1", "--lr is no option", "must be one of", HELP),
    ("quick --epochs 3", "--epochs", "option", HELP),
    ("quick --seeds 0", "--seeds is 0", "from 1", "such as 1"),
    ("quick --seeds 1000000000", "1000000000", "to 65536", "such as 1"),
    ("quick --seeds two", "'two'", WHOLE, "as in 128"),
    ("quick --first-seed -1", "--first-seed is -1", "from 0", "such as 0"),
    ("quick --first-seed 2147483647 --seeds 2", "--first-seed is 2147483647", "must be below 2**31", "2 seeds"),
    ("quick --sets 0", "--sets is 0", "from 1", "such as 128"),
    ("quick --sets 1000000000000000", "1000000000000000", "to 1048576", "such as 128"),
    ("quick --min-items 0", "--min-items is 0", "from 1", "such as 5"),
    ("quick --min-items 17", "--max-items is 16", "at least min_items=17", HELP),
    ("quick --max-items 4", "--max-items is 4", "at least min_items=5", HELP),
    ("quick --max-items 1000000000", "1000000000", "to 1048576", "such as 16"),
    ("quick --steps-per-batch 0", "--steps-per-batch is 0", "from 1", "such as 1"),
    ("quick --nearest-of 0", "--nearest-of is 0", "from 1", "such as 1"),
    ("quick --nearest-of 4 --min-items 1", "--nearest-of is 4", "so it must be 1", HELP),
    ("quick --normalizer sofmax", "sofmax", "did you mean 'softmax'", "known are"),
    ("quick --normalizer temperature(0.1", "temperature(0.1", "write a name", "as in"),
    ("quick --width 0", "--width is 0", "from 1", "such as 128"),
    ("quick --width 1000000", "--width is 1000000", "to 16384", "such as 128"),
    ("quick --width wide", "'wide'", WHOLE, "as in 128"),
    ("quick --l2 -0.1", "--l2 is -0.1", "at least 0", "such as 0.001"),
    ("quick --l2 nan", "--l2 is nan", "at least 0", "such as 0.001"),
    ("quick --l2 none", "'none'", "must be a number", "as in 0.001"),
    ("quick --learning-rate 0", "--learning-rate is 0.0", "above 0", "such as 0.001"),
    ("quick --learning-rate inf", "--learning-rate is inf", "above 0", "such as 0.001"),
    ("quick --learning-rate 1e30", "--learning-rate is 1e+30", "at most 1000", "such as 0.001"),
    ("quick --learning-rate 1,5", "'1,5'", "must be a number", "as in 0.001"),
    ("quick --optimizer adamm", "adamm", "did you mean 'adam", "must be one of optax"),
    ("quick --optimizer Adam", "Adam", "did you mean 'adam'", "must be one of optax"),
    ("quick --optimizer _", "--optimizer is ", "must be one of optax", "as adam"),
    ("quick --optimizer lbfgs", "lbfgs", "must take a step from a gradient alone", "choose another"),
    ("quick --optimizer cosine_decay_schedule", "cosine_decay_schedule", "must be one of optax", "as adam"),
    ("quick --optimizer-options b1", "--optimizer-options", "must be names, each with a number", "as in"),
    ("quick --optimizer-options b1 x", "--optimizer-options", "must be names, each with a number", "as in"),
    ("quick --optimizer-options b1 nan", "b1 is nan", "must be a finite number", "such as"),
    (
        "quick --optimizer-options wieght_decay 0.1 --optimizer adamw",
        "'wieght_decay'",
        "did you mean 'weight_decay'",
        "takes",
    ),
    ("quick --optimizer-options weight_decay 0.1", "'weight_decay'", "adam takes", "b1"),
    ("quick --optimizer-options learning_rate 0.1", "learning_rate 0.1", "must be given as", "--learning-rate"),
    ("quick --schedule cosine", "cosine", "must be one of optax", "cosine_decay_schedule"),
    ("quick --schedule cosine_decay_schedul", "did you mean 'cosine_decay_schedule'", "must be one of optax"),
    ("quick --schedule-options alpha 0.1", "'alpha'", "constant_schedule takes", "value"),
    ("quick --schedule cosine_decay_schedule --schedule-options alfa 0.1", "'alfa'", "did you mean 'alpha'", "takes"),
    (
        "quick --schedule cosine_decay_schedule --schedule-options decay_steps 0",
        "--schedule-options",
        "says",
        "give others",
    ),
    ("quick --schedule exponential_decay", "exponential_decay", "optax"),
    ("quick --chunk 0", "--chunk is 0", "from 1", "such as 500"),
    ("quick --chunks-per-checkpoint 0", "--chunks-per-checkpoint is 0", "from 1", "such as 10"),
    ("quick --workdir a.txt", "--workdir is a.txt", "must be a directory", "name another"),
    ("quick --workdir a.txt/run", "a.txt/run", "must be a directory", "name another"),
    ("quick --workdir", "--workdir has no value", "must be followed", HELP),
    ("quick --compilation-cache c --no-compilation-cache", "contradict", "only one must be given", "leave one out"),
    ("quick --no-compilation-cache yes", "yes", "must follow the name", HELP),
    ("quick --compilation-cache c --steps 0", "--steps is 0", "from 1", "such as"),
    ("quick --processes 0", "--processes is 0", "must be at least 1", HELP),
    ("quick --process 1", "--process 1 alone", "need --coordinator", "--processes"),
    ("quick --coordinator nowhere --processes 2 --process 0", "nowhere", "must be HOST:PORT", "as in"),
    ("quick --coordinator a:1 --processes 2 --process 2", "--process is 2", "must be from 0 to 1", HELP),
)
LENGTH_RULE = "must have"
EVALUATE = (
    ("--normalizers sofmax", "'sofmax'", "did you mean 'softmax'", "known are"),
    ("--normalizers", "--normalizers", "at least one", "each once"),
    ("--normalizers softmax softmax", "softmax twice", "each once", "leave one out"),
    ("--normalizers all softmax", "'all softmax'", "must stand by itself", "leave the others out"),
    ("--normalizers ssmax(s=)", "'ssmax(s=)'", "cannot read", "write a name"),
    ("--normalizers ssmax(S=1)", "'S'", "did you mean 's'", "it takes"),
    ("--normalizers temperature(0)", "theta is 0.0", "above 0", "such as 1.0"),
    ("--normalizers entmax(alpha=1)", "alpha is 1.0", "above 1", "such as 1.5"),
    ("--normalizers top_k(k=0)", "k is 0", "at least 1", "such as 8"),
    ("--normalizers softmax,ssmax", "'softmax,ssmax'", "cannot read", "write a name"),
    ("--normalizers adaptive(fit=none.json)", "none.json", "does not exist", "fit_temperature.py"),
    ("--normalizer softmax", "--normalizer is no option", "did you mean --normalizers", HELP),
    ("--lengths 0", "--lengths has 0", LENGTH_RULE, "such as 1024"),
    ("--lengths -16", "--lengths", "option", HELP),
    ("--lengths 16 16", "16 twice", "each once", "leave one out"),
    ("--lengths 16,32", "'16,32'", WHOLE, "as in 128"),
    ("--lengths 1e3", "'1e3'", WHOLE, "as in 128"),
    ("--lengths 16 many", "'many'", WHOLE, "as in 128"),
    ("--lengths 1073741824", "1073741824", LENGTH_RULE, "1048576 items"),
    ("--lengths nan", "'nan'", WHOLE, "as in 128"),
    ("--sets 0", "--sets is 0", "must be at least 1", "such as 512"),
    ("--sets -1", "--sets is -1", "must be at least 1", "such as 512"),
    ("--sets many", "--sets is 'many'", WHOLE, "as in 128"),
    ("--sets 1000000000000", "1000000000000", "at most 1048576", "such as 512"),
    ("--sets 3 --sets 4", "--sets is given twice", "must be given once", "leave one out"),
    ("--sets=3 --sets 4", "--sets is given twice", "must be given once", "leave one out"),
    ("--set 3", "--set is no option", "did you mean --sets", HELP),
    ("--protocol frsh", "'frsh'", "did you mean 'fresh'", "must be one of 'fresh', 'notebook'"),
    ("--protocol notebook --sets 64", "--sets is 64", "must have its own 32", "leave --sets out"),
    ("--checkpoint nowhere", "nowhere", "holds no run", "name a directory that train.py made"),
    ("--checkpoint a.txt", "not Flax msgpack bytes", "give a file of model parameters"),
    ("--checkpoint _", "holds no run", "name a directory that train.py made"),
    ("--checkpoint . --normalizers all", "holds no run", "name a directory that train.py made"),
    ("--output a.txt", "--output is a.txt", "must be a directory", "name another"),
    ("--output a.txt/deep/er", "a.txt/deep/er", "must be a directory", "name another"),
    ("--output /proc/evaluation --sets 0", "--sets is 0", "must be at least 1", "such as 512"),
    ("--output", "--output has no value", "must be followed", HELP),
    ("--compilation-cache here --no-compilation-cache", "contradict", "only one must be given", "leave one out"),
    ("--compilation-cache here --sets 0", "--sets is 0", "must be at least 1", "such as 512"),
    ("--compilation-cache here --checkpoint nowhere", "nowhere", "holds no run", "name a directory"),
    ("--no-compilation-cach --sets 3", "--no-compilation-cach", "did you mean --", HELP),
    ("--processes two", "'two'", WHOLE, "as in 128"),
    ("--process 0", "--process 0 alone", "need --coordinator", "--processes"),
    ("--coordinator a:99999 --processes 2 --process 0", "a:99999", "must be HOST:PORT", "as in"),
    ("16 32", "16", "must follow the name", HELP),
    ("runs/quick", "runs/quick", "must follow the name", HELP),
    ("-lengths 16", "-lengths", "no option", HELP),
)
FIT = (
    ("--checkpoint nowhere", "nowhere", "holds no run", "name a directory that train.py made"),
    ("--checkpoint a.txt", "not Flax msgpack bytes", "give a file of model parameters"),
    ("--lengths 1 4", "--lengths has 1", LENGTH_RULE, "such as 16"),
    ("--lengths", "--lengths", "at least one", "each once"),
    ("--lengths 4 8 4", "4 twice", "each once", "leave one out"),
    ("--lengths 4.0", "'4.0'", WHOLE, "as in 128"),
    ("--sets 0", "--sets is 0", "must be at least 1", "such as 64"),
    ("--sets 1000000", "--sets is 1000000", "at most 16384", "such as 64"),
    ("--sets 1.5", "'1.5'", WHOLE, "as in 128"),
    ("--degree 0", "--degree is 0", "at least 1 and at most 10", "such as 4"),
    ("--degree 11", "--degree is 11", "at least 1 and at most 10", "such as 4"),
    ("--degree four", "'four'", WHOLE, "as in 128"),
    ("--degre 3", "--degre is no option", "did you mean --degree", HELP),
    ("--criterion bin", "'bin'", "did you mean 'bins'", "must be one of 'inputs', 'bins', 'accuracy'"),
    ("--criterion", "--criterion has no value", "must be followed", HELP),
    ("--output a.txt", "--output is a.txt", "must be a directory", "name another"),
    ("--output o --checkpoint nowhere", "nowhere", "holds no run", "name a directory"),
)
SHOOTOUT = (
    ("--normalizers sotfmax", "'sotfmax'", "did you mean 'softmax'", "known are"),
    ("--normalizers softmax softmax", "softmax twice", "each once", "leave one out"),
    ("--normalizers softmax all", "'softmax all'", "must stand by itself", "leave the others out"),
    ("--normalizers entmax(alpha=0.5)", "alpha is 0.5", "above 1", "such as 1.5"),
    ("--task sigal", "'sigal'", "did you mean 'signal'", "must be one of"),
    ("--task max_retrieval", "'max_retrieval'", "did you mean 'max-retrieval'", "must be one of"),
    ("--seeds 0", "--seeds is 0", "must be at least 1", "such as 5"),
    ("--seeds 100000", "--seeds is 100000", "at most 1024", "such as 5"),
    ("--length 0", "--length is 0", "from 1", "such as 32"),
    ("--length 1000000", "--length is 1000000", "to 16384", "such as 32"),
    ("--length long", "'long'", "must be", "as in"),
    ("--task sort --length 1", "--length is 1", "from 2", "such as 64"),
    ("--epochs 0", "--epochs is 0", "from 1", "such as 15"),
    ("--epochs 10000000000", "10000000000", "to 1048576", "such as 15"),
    ("--hidden 10 --heads 4", "--hidden is 10", "must be a multiple of --heads, 4", "such as 8"),
    ("--hidden 0", "--hidden is 0", "from 1", "such as 64"),
    ("--heads 0", "--heads is 0", "from 1", "such as 4"),
    ("--heads 128", "--hidden is 64", "must be a multiple of --heads, 128", "such as 128"),
    ("--classes 1", "--classes is 1", "at least 2", "such as 4"),
    ("--classes 100", "--classes is 100", "from 2 to 64", "the features"),
    ("--task sort --classes 0", "--classes is 0", "from 2", "such as 10"),
    ("--signal-length 40", "--signal-length is 40", "must be at least 1 and at most the length, 32"),
    ("--signal-length 0", "--signal-length is 0", "at least 1", "such as 3"),
    ("--task sort --signal-length 3", "--signal-length is 3", "--task sort has none", "must be left out"),
    ("--task sort --pooling last", "--pooling is last", "--task sort has none", "must be left out"),
    ("--pooling max", "'max'", "must be one of", "'mean'"),
    ("--causal yes", "yes", "must follow the name", HELP),
    ("--causal --no-causal", "contradict", "only one must be given", "leave one out"),
    ("--test-lengths 0", "--test-lengths has 0", "must be from 3 to 16384", "such as 128"),
    ("--test-lengths 64 64", "64 twice", "each once", "leave one out"),
    ("--test-lengths 64.5", "'64.5'", WHOLE, "as in 128"),
    ("--output a.txt", "--output is a.txt", "must be a directory", "name another"),
    ("--output o --normalizers sotfmax", "'sotfmax'", "did you mean 'softmax'", "known are"),
    ("--layers 3", "--layers", "option", HELP),
)
REPORT = (
    ("nowhere", "nowhere", "holds no run", "name a directory that train.py made"),
    ("a.txt", "not Flax msgpack bytes", "give a file of model parameters"),
    ("nowhere nowhere", "nowhere twice", "each once", "leave one out"),
    ("--runs nowhere", "--runs", "option", HELP),
    ("--output a.txt", "--output is a.txt", "must be a directory", "name another"),
    ("nowhere --output o", "nowhere", "holds no run", "name a directory"),
    ("--normalizers sofmax", "'sofmax'", "did you mean 'softmax'", "known are"),
    ("--normalizers", "--normalizers", "at least one", "each once"),
    ("--normalizers softmax all", "'softmax all'", "must stand by itself", "leave the others out"),
    ("--lengths 1 16", "--lengths has 1", LENGTH_RULE, "such as 16"),
    ("--lengths 4 8", "'4 8'", "one of at least 16 items", "such as 1024"),
    ("--lengths", "--lengths", "at least one", "each once"),
    ("--lengths 16 16", "16 twice", "each once", "leave one out"),
    ("--lengths 16 x", "'x'", WHOLE, "as in 128"),
    ("--sets 0", "--sets is 0", "must be at least 1", "such as 256"),
    ("--sets 1e2", "'1e2'", WHOLE, "as in 128"),
    ("--seets 3", "--seets is no option", "did you mean --sets", HELP),
)
OTHERS = (
    (NORMALIZERS, "--markdwn", "--markdwn is no option", "did you mean --markdown", HELP),
    (NORMALIZERS, "softmax", "softmax", "must follow the name", HELP),
    (NORMALIZERS, "--markdown --no-markdown", "contradict", "only one must be given", "leave one out"),
    (SHARPEST, "--checkpoint nowhere", "nowhere holds no run", "name a directory"),
    (SHARPEST, "--checkpoint a.txt", "not Flax msgpack bytes", "give a file"),
    (SHARPEST, "--sets 0", "--sets is 0", "at least 1", "such as 131072"),
    (SHARPEST, "--setts 5", "--setts is no option", "did you mean --sets", HELP),
    (GALLERY, "--output a.txt", "--output is a.txt", "must be a directory", "name another"),
    (GALLERY, "--ouput a", "--ouput is no option", "did you mean --output", HELP),
    ("benchmarks.all", "--only trainin", "'trainin'", "did you mean 'training'", "must be one of"),
    ("benchmarks.all", "--only seeds seeds", "seeds twice", "each once", "leave one out"),
    ("benchmarks.all", "--output a.txt", "--output is a.txt", "must be a directory", "name another"),
    ("benchmarks.all", "--quick --quik", "--quik is no option", "did you mean --quick", HELP),
    ("benchmarks.attention", "--rounds 0", "--rounds is 0", "must be at least 1", "such as 7"),
    ("benchmarks.attention", "--rounds x", "'x'", WHOLE, "as in 128"),
    ("benchmarks.attention", "--names sofmax", "'sofmax'", "did you mean 'softmax'", "known are"),
    ("benchmarks.attention", "--names", "--names", "at least one", "each once"),
    ("benchmarks.sparse", "--rounds -1", "--rounds is -1", "must be at least 1", "such as 7"),
    ("benchmarks.sparse", "--rounds 1000000000", "1000000000", "at most 10000", "such as 7"),
    ("benchmarks.table", "", "FILES", "at least one", "each once"),
    ("benchmarks.table", "none.json", "none.json", "does not exist", "name a result file"),
    ("benchmarks.table", "a.txt", "a.txt", "is no result file", "name one"),
    ("benchmarks.table", "a.txt a.txt", "a.txt twice", "each once", "leave one out"),
    ("benchmarks.table", "a.txt --write --wirte", "--wirte is no option", "did you mean --write", HELP),
    *(
        (f"benchmarks.{name}", "--quick yes", "yes", "must follow the name", HELP)
        for name in ("seeds", "training", "evaluation")
    ),
    *(
        (f"benchmarks.{name}", "--contender us", "'us'", "must be one of")
        for name in ("seeds", "training", "evaluation")
    ),
)
ABLATE = (
    ("--preset papr", "papr", "did you mean 'paper'", "must be one of"),
    ("--steps 15", "--steps is 15", "at least 16", "such as 20000"),
    ("--steps many", "'many'", WHOLE, "as in 128"),
    ("--seeds 0", "--seeds is 0", "at least 1", "such as 3"),
    ("--groups widht", "widht", "did you mean 'width'", "must be of"),
    ("--lengths 1", "--lengths is 1", "at least 2", "such as 1024"),
    ("--lengths 32768", "--lengths is 32768", "at most 16384", "such as 1024"),
    ("--lengths 16 16", "--lengths has 16 twice", "must have each once", "leave one out"),
    ("--sets 0", "--sets is 0", "at least 1", "such as 256"),
    ("--output a.txt", "--output is a.txt", "must be a directory", "name another"),
    ("--page nowhere.md", "--page is nowhere.md", "must be a Markdown page", "No such file"),
    ("--page a.txt", "no place for losses", "put <!-- losses -->", HELP),
    ("--step 100", "--step is no option", "did you mean --steps", HELP),
)
FILES = {"a.txt": "not what you want\n"}
COMMANDS = tuple(
    Command(*refused(script, arguments, *words)[:3], files=FILES)
    for script, table in {
        "train.py": TRAIN,
        "evaluate.py": EVALUATE,
        "fit_temperature.py": FIT,
        "shootout.py": SHOOTOUT,
        "report.py": REPORT,
        "ablate.py": ABLATE,
    }.items()
    for arguments, *words in table
) + tuple(Command(*refused(script, arguments, *words)[:3], files=FILES) for script, arguments, *words in OTHERS)
