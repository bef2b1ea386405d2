"""The options of ``train`` for its fuzz: sound values of each, and odd ones beside them.

Odd ones are of the wrong kind, on a boundary, or absurdly large or small.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hypothesis import strategies as st
from unitkinds import INPUT_UNITS, KINDS, RBM_UNITS, UNITS

HUGE = "9" * 30
ODD = ("", "x", "-1", "0", "1.5", "nan", "inf", "1e400", HUGE, "1,2,3,4,5,6,7", " ", "\u0663")


class Option(NamedTuple):
    """Sound texts and odd ones; ``each`` separates the values of layers, if they may differ."""

    sound: Sequence[str]
    odd: Sequence[str] = ()
    each: str = ""
    models: str = "rbm autoencoder denoising contractive"


FLAG = "on"
RBMS, ENCODERS = "rbm", "autoencoder denoising contractive"
MODELS = [RBMS, *ENCODERS.split()]
# As large as a float32 can hold, larger, and the least that a float64 can.
RATES = ("1e4", "1e6", "1e20", "1e38", "3.5e38", "1e300", "1.7e308", "1e-45", "5e-324")
COMMON = {
    "--visible-units": Option(INPUT_UNITS, [name for name in KINDS if name not in INPUT_UNITS]),
    "--schedule": Option(
        ["synchronized", "greedy", "rounds", "greedy", "rounds", "async", "auto"], ["none"]
    ),
    "--group-size": Option(["1", "2", "100", HUGE]),
    "--pace": Option(["lockstep", "free"]),
    "--handoff": Option(["epoch", "minibatch"]),
    "--delay": Option(["0", "0.3", "2"], ["1000.5", "1e308"]),
    "--shuffle": Option(
        ["rows", "blocks:1", "blocks:3", "blocks:" + "9" * 18], ["blocks:" + HUGE, "blocks:0"]
    ),
    "--push-every": Option(["1", "3", "1000000"]),
    "--fetch-every": Option(["1", "6", "1000000"]),
    "--async-rate": Option(["staleness", "constant"]),
    "--delay-compensation": Option(["0", "0.1", "1e300"]),
    "--max-staleness": Option(["0", "1", "1000000"]),
    "--simulate-staleness": Option(["0", "1", "3"]),
    **dict.fromkeys(("--trim-replicas", "--no-trim-replicas"), Option([FLAG])),
    "--servers": Option(["1", "2", "3"], ["1025", HUGE]),
    "--exchange": Option(["messages"] * 3 + ["windows"]),
    "--runtime": Option(["serial", "threads"] * 4 + ["processes"]),
    "--backend": Option(["auto", "numpy"], ["cupy", "cupy:0", "cupy:x", "cupy:" + HUGE]),
    "--precision": Option(["float32", "bfloat16", "auto"], ["tf32", "float16", "float64"]),
    "--workers": Option(["1", "2", "4"], ["1024", "1025", "1000000000"]),
    "--replicas": Option(["1", "2", "3"], ["1000"], ","),
    "--split": Option(["examples", "units"], ["filters", "hybrid"]),
    "--shards": Option(["0", "1", "2", "3"], ["1000"], ","),
    "--epochs": Option(
        ["1", "2", "3", "auto:2"], ["1000001", "auto:0", "auto:x", "auto:1:1", "auto:"], ","
    ),
    "--settle": Option(["0", "0.1", "1e-300", "1e300"], ["1e-400"], ","),
    "--refresh-epochs": Option(["0", "1", "2"], ["1000001"], ","),
    "--refresh-when": Option(
        ["always", "drift:0.1", "drift:1e300"],
        ["drift", "drift:0", "drift:-1", "drift:nan", "always:1", ":", "drift:1e-400"],
        ",",
    ),
    "--finish": Option(["drain", "first-layer"]),
    "--patience": Option(["1", "2", HUGE]),
    "--learning-rate": Option(["0.1", "0.001", "1", "1e-45", "5e-324"], RATES, ","),
    "--momentum": Option(
        ["0", "0.5:1,0.9", "0.9", "0.9999", "0.1:1,0.2:1,0.3"],
        ["1", "0.5:0,0.9", "0.5:5", ":", "0.5:5,", f"0.5:{HUGE},0", ";", "0.5:1:1,0"],
        ";",
    ),
    "--weight-decay": Option(["0", "0.0002", "0.1", "1e-300"], RATES, ","),
    "--l1": Option(["0", "0.001", "1e-300"], RATES, ","),
    "--visible-bias": Option(["zero", "log-odds"]),
    "--blas-threads": Option(["1", "2", "3"], ["1025", "3000000000"]),
    "--seed": Option(["1", str(2**63 - 1), str(2**32)], [str(2**63), str(2**64)]),
    "--validation": Option(["0", "0.1", "0.5", "1e-300"], ["1", "0.999"]),
    "--labels": Option(["2", "3", "5"], ["1", "1000"]),
    "--examples": Option(["2", "5", "20"], ["1", "1000"]),
    "--test": Option(["0.1", "0.5", "1e-300"], ["1", "0", "0.999", "x.npy"]),
    "--task": Option(["classification"], ["regression"]),
    "--checkpoint-every": Option(
        ["1", "60s", "log:3", "0.001s", "1e308s", HUGE], ["s", "nans", "1m"]
    ),
    "--keep": Option(["1", "2", "3", HUGE]),
    "--max-restarts": Option(["0", "2", HUGE]),
    "--stall-timeout": Option(["600", "60.5", "1e308"]),
}
HIDDEN = {
    RBMS: Option(RBM_UNITS, [name for name in KINDS if name not in RBM_UNITS], ","),
    ENCODERS: Option(UNITS, [name for name in KINDS if name not in UNITS], ","),
}
STOPPING = {
    RBMS: Option(["none", "free-energy-gap", "pseudo-likelihood"], ["validation-error"]),
    ENCODERS: Option(["none", "validation-error"], ["free-energy-gap", "pseudo-likelihood"]),
}
NEGATIONS = ("--not-persistent", "--not-centred", "--visible-means", "--input-means", "--tied")
OF_RBMS = ("--persistent", "--centred", "--sample-visible", "--sample-input")
OF_MODELS = {
    **dict.fromkeys(NEGATIONS, Option([FLAG])),
    **dict.fromkeys(OF_RBMS, Option([FLAG], [], "", RBMS)),
    "--cd-steps": Option(["1", "2", "3"], ["1001"], ",", RBMS),
    "--sparsity-target": Option(["0.1", "0", "0.999"], ["1"], ",", RBMS),
    "--sparsity-cost": Option(["0", "0.1"], RATES, ",", RBMS),
    "--hidden-dropout": Option(["0", "0.5", "0.99", "0.9999999999999999"], ["1"], ",", RBMS),
    "--chains": Option(["0", "1", "7"], ["-1", "1e9"], ",", RBMS),
    "--chain-start": Option(["noise", "data"], ["h"], ",", RBMS),
    "--untied": Option([FLAG], [], "", ENCODERS),
    "--loss": Option(["squared", "cross-entropy"], [], "", ENCODERS),
    "--corruption": Option(
        ["none", "masking:0.25", "salt-and-pepper:0.999", "gaussian:0.1"],
        ["masking", "masking:1", "gaussian:0", "gaussian:1e300", "masking:1e-320", ":", "none:1"],
        ",",
        "denoising",
    ),
    "--contraction": Option(["0", "0.1", "10"], RATES, ",", "contractive"),
}
ASYNC = ("push-every", "fetch-every", "async-rate", "delay-compensation", "max-staleness")
FLAGS = ("finetune-nesterov", "no-finetune-nesterov")
FLAGS += ("finetune-trim-replicas", "no-finetune-trim-replicas")
TUNING = {
    **{f"--finetune-{name}": COMMON[f"--{name}"] for name in (*ASYNC, "simulate-staleness")},
    **{f"--{name}": Option([FLAG]) for name in FLAGS},
    "--finetune-epochs": Option(["1", "2", "3"], ["1000001"]),
    "--finetune-optimizer": Option(["adam", "sgd", "cg", "lbfgs"]),
    "--finetune-learning-rate": Option(["0.001", "0.1", "1", "5e-324"], RATES),
    "--finetune-rate-schedule": Option(["constant", "linear", "cosine"]),
    "--finetune-momentum": Option(["0", "0.9", "0.9999999999999999"], ["1"]),
    "--finetune-weight-decay": Option(["0", "0.01"], RATES),
    "--finetune-loss": Option(["squared", "cross-entropy"]),
    "--finetune-dropout": Option(["0", "0.5", "0.99", "0.9999999999999999"], ["1"]),
    "--finetune-input-dropout": Option(["0", "0.5", "0.99"], ["1"]),
    "--finetune-patience": Option(["1", "2", HUGE]),
    "--finetune-precision": Option(["float32", "bfloat16", "auto"], ["tf32", "float16"]),
    "--finetune-replicas": Option(["1", "2", "3"], ["1025", "1000000"]),
    "--finetune-schedule": Option(["synchronous", "async"]),
    "--finetune-servers": Option(["1", "2"], ["1025"]),
    "--finetune-runtime": Option(["serial", "threads"]),
    "--finetune-split": Option(["units", "examples"], ["filters", "hybrid"]),
    "--finetune-shards": Option(["0", "1", "2", "3"], ["1024", "1025", "100000000"]),
}
STEEP = {
    **dict.fromkeys(("--learning-rate", "--weight-decay", "--l1"), Option(RATES, RATES, ",")),
    "--sparsity-cost": Option(RATES, RATES, ",", RBMS),
    "--contraction": Option(RATES, RATES, ",", "contractive"),
    "--corruption": Option(
        [f"gaussian:{rate}" for rate in RATES], ["gaussian:1e30"], ",", "denoising"
    ),
    **dict.fromkeys(("--finetune-learning-rate", "--finetune-weight-decay"), Option(RATES)),
}
BESIDE = (
    *("--visible-units", "--hidden-units", "--momentum", "--runtime", "--visible-bias"),
    *("--schedule", "--pace", "--cd-steps", "--persistent", "--hidden-dropout", "--untied"),
    *("--loss", "--finetune-optimizer", "--finetune-dropout", "--finetune-loss"),
)


def table_of(model: str) -> dict[str, Option]:
    """Return the options of pretraining that a model has a use for."""
    own = {name: option for name, option in OF_MODELS.items() if model in option.models.split()}
    kind = RBMS if model == RBMS else ENCODERS
    return COMMON | own | {"--early-stopping": STOPPING[kind], "--hidden-units": HIDDEN[kind]}


def rare(draw, one_in: int) -> bool:
    """Draw true once in so many times."""
    return draw(st.integers(0, one_in - 1)) == one_in - 1


def subset(draw, names: Iterable[str], most: int) -> list[str]:
    """Draw up to so many names, none more likely than another."""
    names = sorted(names)
    count = min(draw(st.integers(0, most)), len(names))
    return draw(st.lists(st.sampled_from(names), unique=True, min_size=count, max_size=count))


def options(draw, names, table, depth, *, sound):
    """Draw the texts of options of these names, for so many layers where they may differ."""
    return {name: _text(draw, table[name], depth, sound) for name in names}


def words(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return options as the words of a command line."""
    return tuple(name if text == FLAG else f"{name}={text}" for name, text in given.items())


def _text(draw, option: Option, depth: int, sound: bool) -> str:
    texts = st.sampled_from(option.sound)
    if option.sound == [FLAG]:
        return FLAG
    if not sound and rare(draw, 10):
        texts = st.sampled_from([*option.odd, *ODD])
    if not option.each or draw(st.booleans()):
        return draw(texts)
    count = draw(st.integers(1, 7)) if not sound and rare(draw, 10) else depth
    return option.each.join(draw(texts) for _ in range(count))
