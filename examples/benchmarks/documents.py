"""Replicated softmax on counts of words, beside LDA and LSA: perplexity, and search by codes.

    pip install 'syncpretrain[sklearn]' scipy
    python examples/benchmarks/documents.py FOLDER/20newsgroups --seeds 3

Reads ``FOLDER/20newsgroups-train.npz`` and ``-test.npz``, SciPy's sparse matrices of documents by
words, and ``-labels.npz`` with the classes ``train`` and ``test``. With ``--validation`` a fifth of
the training documents, drawn at random, stands for the test documents.

``perplexity``
    Per word of the documents that were not trained on: exp(-mean_n log p(v_n) / D_n), every
    document alike, as in Salakhutdinov and Hinton 2009; and in brackets exp(-sum log p / sum D),
    every word alike. The replicated softmax has its log Z by annealing over the length, with
    3 standard errors. LDA has its topics at their posterior means, and the shares of the topics
    of a document by their variational posterior (``bound``) or by importance sampling, half from
    this posterior and half from a wider one (``sampled``, which falls to the perplexity with the
    number of samples).
``precision``
    Documents that were not trained on are queries among those that were: the precision, in per
    cent, at the rank where a share of all documents of the query's class was found, by the cosine
    of codes, averaged over the queries. Codes of the replicated softmax are probabilities, or the
    log-odds of the hidden units; ``for search`` is trained with SEARCH and writes log-odds, and
    ``weighted`` multiplies the words of a document by their idf before. LSA is TruncatedSVD of
    tf-idf or of log(1 + count): both are printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from _timing import rst_table
from numpy.typing import NDArray
from scipy.sparse import load_npz
from scipy.special import gammaln, logsumexp, psi
from sklearn.decomposition import LatentDirichletAllocation, TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer

from syncpretrain import Stack, pretrain
from syncpretrain.models.perplexity import perplexity

Array = NDArray[Any]
RECALLS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5)
QUERIES_AT_ONCE = 500
SEARCH = {"cd_steps": 1, "learning_rate": 0.01}
WIDER = 4.0  # times less sure than the variational posterior


@dataclass(frozen=True, eq=False)  # found again by itself
class Corpus:
    """Counts of words as sparse matrices, and the class of each document."""

    train: Any
    test: Any
    train_classes: Array
    test_classes: Array


class Result(NamedTuple):
    """Codes of both parts, and perplexities of the second by name: by document, and by word."""

    train: Array
    test: Array
    perplexities: dict[str, tuple[float, float]] = {}  # noqa: RUF012
    note: str = ""


def read(path: Path, *, validation: bool) -> Corpus:
    """Return the parts of a corpus, or two parts of its training documents."""
    train, test = (load_npz(f"{path}-{part}.npz").tocsr() for part in ("train", "test"))
    with np.load(f"{path}-labels.npz") as labels:
        classes = labels["train"], labels["test"]
    if not validation:
        return Corpus(train, test, *classes)
    order = np.random.default_rng(0).permutation(train.shape[0])
    held, kept = order[: len(order) // 5], order[len(order) // 5 :]
    return Corpus(train[kept], train[held], classes[0][kept], classes[0][held])


class ReplicatedSoftmax:
    """A replicated softmax with the defaults, or with options of pretraining."""

    def __init__(self, hidden: int, **options: Any) -> None:
        self._hidden, self._options = hidden, options
        self._trained = cache(self._train)

    def probabilities(self, corpus: Corpus, seed: int) -> Result:
        """Return the probabilities of the hidden units, and the perplexity."""
        stack = self._trained(corpus, seed)
        found = perplexity(stack, corpus.test, seed=seed)
        note = f"{found.low:.1f} to {found.high:.1f}, 3 standard errors of log Z"
        figures = {"": (found.value, found.of_all_words)}
        return Result(stack.encode(corpus.train), stack.encode(corpus.test), figures, note)

    def log_odds(self, corpus: Corpus, seed: int) -> Result:
        """Return the log-odds of the hidden units."""
        stack = self._trained(corpus, seed)
        train, test = (stack.encode(X, log_odds=True) for X in (corpus.train, corpus.test))
        return Result(train, test)

    def weighted(self, corpus: Corpus, seed: int) -> Result:
        """Return the log-odds, without the biases, of documents whose words count by their idf."""
        weight = self._trained(corpus, seed).layers[0].weight
        weigh = TfidfTransformer(norm=None).fit(corpus.train)
        train, test = (weigh.transform(X) @ weight for X in (corpus.train, corpus.test))
        return Result(train, test)

    def _train(self, corpus: Corpus, seed: int) -> Stack:
        options = {"hidden": [self._hidden], "visible_units": "counts", **self._options}
        return pretrain(corpus.train, seed=seed, **options)


def lda(corpus: Corpus, hidden: int, seed: int, iterations: int) -> Result:
    """Fit scikit-learn's LDA; its codes are the shares of the topics."""
    model = LatentDirichletAllocation(hidden, max_iter=iterations, random_state=seed)
    train = model.fit_transform(corpus.train)
    test = model.transform(corpus.test)
    lengths = np.asarray(corpus.test.sum(axis=1)).ravel()
    used = np.flatnonzero(lengths)
    draws = np.random.default_rng(seed)
    bound, sampled = log_p_of_topics(model, corpus.test[used], test[used], draws)
    figures = {"bound": _both(bound, lengths[used]), "sampled": _both(sampled, lengths[used])}
    return Result(train, test, figures)


def log_p_of_topics(
    model: Any, documents: Any, shares: Array, draws: np.random.Generator, samples: int = 200
) -> tuple[Array, Array]:
    """Return log p of each document, words in their order: its bound, and by sampling."""
    topics = model.components_ / model.components_.sum(axis=1, keepdims=True)
    prior = np.full(len(topics), model.doc_topic_prior_)
    bound, sampled = np.empty((2, documents.shape[0]))
    for i, share in enumerate(shares):
        row = documents[i]
        counts, words = row.data, topics[:, row.indices]
        posterior = share * (prior.sum() + counts.sum())  # the variational one
        mean_log = psi(posterior) - psi(posterior.sum())
        gained = np.log(np.exp(mean_log) @ words) @ counts
        bound[i] = gained - divergence(posterior, prior)
        wide = prior + np.maximum(posterior - prior, 0) / WIDER
        theta = np.concatenate([draws.dirichlet(p, samples // 2) for p in (posterior, wide)])
        theta = np.maximum(theta, np.finfo(float).tiny)
        proposed = np.logaddexp(log_dirichlet(theta, posterior), log_dirichlet(theta, wide))
        weights = np.log(theta @ words) @ counts + log_dirichlet(theta, prior) - proposed
        sampled[i] = logsumexp(weights) + np.log(2) - np.log(len(theta))
    return bound, sampled


def divergence(posterior: Array, prior: Array) -> float:
    """Return the Kullback-Leibler divergence of one Dirichlet distribution from another."""
    constant = gammaln(posterior.sum()) - gammaln(posterior).sum()
    constant -= gammaln(prior.sum()) - gammaln(prior).sum()
    mean_log = psi(posterior) - psi(posterior.sum())
    return float(constant + (posterior - prior) @ mean_log)


def log_dirichlet(theta: Array, alpha: Array) -> Array:
    """Return the log density of each row of theta."""
    constant = gammaln(alpha.sum()) - gammaln(alpha).sum()
    density: Array = constant + np.log(theta) @ (alpha - 1)
    return density


def lsa(corpus: Corpus, hidden: int, seed: int, weighting: str) -> Result:
    """Return the codes of latent semantic analysis."""
    if weighting == "tf-idf":
        weigh = TfidfTransformer(sublinear_tf=True).fit(corpus.train)
        train, test = weigh.transform(corpus.train), weigh.transform(corpus.test)
    else:
        train, test = corpus.train.log1p(), corpus.test.log1p()
    svd = TruncatedSVD(hidden, random_state=seed)
    return Result(svd.fit_transform(train), svd.transform(test))


def precisions(result: Result, corpus: Corpus) -> Array:
    """Return the precision of search by codes at each of the recalls."""
    train, test = (_unit(codes) for codes in (result.train, result.test))
    sizes = np.bincount(corpus.train_classes)
    total = np.zeros(len(RECALLS))
    for start in range(0, len(test), QUERIES_AT_ONCE):
        rows = slice(start, start + QUERIES_AT_ONCE)
        order = np.argsort(-(test[rows] @ train.T), axis=1, kind="stable")
        classes = corpus.test_classes[rows]
        hits = (corpus.train_classes[order] == classes[:, None]).cumsum(axis=1)
        for i, recall in enumerate(RECALLS):
            wanted = np.maximum(1, np.ceil(recall * sizes[classes])).astype(int)
            ranks = (hits < wanted[:, None]).sum(axis=1) + 1
            total[i] += (wanted / ranks).sum()
    mean: Array = 100 * total / len(test)
    return mean


def _unit(codes: Array) -> Array:
    codes = np.array(codes, dtype=np.float64)
    codes /= np.maximum(np.linalg.norm(codes, axis=1, keepdims=True), 1e-12)
    return codes


def _both(log_p: Array, lengths: Array) -> tuple[float, float]:
    by_document, by_word = (log_p / lengths).mean(), log_p.sum() / lengths.sum()
    return float(np.exp(-by_document)), float(np.exp(-by_word))


def methods(
    hidden: int, iterations: int, options: dict[str, Any]
) -> dict[str, Callable[[Corpus, int], Result]]:
    """Return what each method makes of a corpus and a seed."""
    usual = ReplicatedSoftmax(hidden, **options)
    search = ReplicatedSoftmax(hidden, **SEARCH | options)
    return {
        "replicated softmax": usual.probabilities,
        "replicated softmax, log-odds": usual.log_odds,
        "replicated softmax, for search": search.log_odds,
        "replicated softmax, for search, weighted": search.weighted,
        "LDA": lambda c, seed: lda(c, hidden, seed, iterations),
        "LSA, tf-idf": lambda c, seed: lsa(c, hidden, seed, "tf-idf"),
        "LSA, log counts": lambda c, seed: lsa(c, hidden, seed, "log"),
    }


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("corpus", type=Path, help="the files' path up to -train.npz")
    parser.add_argument("--hidden", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--lda-iterations", type=int, default=10)
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--only", help="names of methods, separated by semicolons")
    for name, type_ in {"epochs": int, "cd_steps": int, "learning_rate": float}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type_)
    given = parser.parse_args()
    names = ("epochs", "cd_steps", "learning_rate")
    options = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    corpus = read(given.corpus, validation=given.validation)
    searched, figures = [], []
    for name, method in methods(given.hidden, given.lda_iterations, options).items():
        if given.only and name not in given.only.split(";"):
            continue
        started, found = perf_counter(), [method(corpus, seed) for seed in range(given.seeds)]
        seconds = (perf_counter() - started) / given.seeds
        mean = np.mean([precisions(result, corpus) for result in found], axis=0)
        searched.append([name, *(f"{value:.1f}" for value in mean), f"{seconds:.0f}"])
        for kind in found[0].perplexities:
            values = np.array([result.perplexities[kind] for result in found])
            by_document, by_word = values.mean(axis=0)
            each = ", ".join(f"{value:.1f}" for value in values[:, 0])
            label = f"{name}, {kind}" if kind else name
            figures.append([label, f"{by_document:.1f}", f"({by_word:.1f})", each, found[0].note])
        print(*searched[-1], *figures[-2:], flush=True)
    print(rst_table(["perplexity", "by document", "by word", "seeds", "the first"], figures))
    heads = [f"{100 * recall:g} %" for recall in RECALLS]
    print(rst_table(["precision at a recall of", *heads, "seconds"], searched))


if __name__ == "__main__":
    main()
