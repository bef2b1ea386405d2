"""Streamed runs of layers of every kind."""

from syncpretrain.pretraining.streamed import StreamedPretraining
from syncpretrain.settings import settings_from

LAYERS = (16, 12, 8, 5)
VARIANTS = {
    "rbm": {},
    "uneven": {"epochs": (3, 1, 2)},
    "gaussian": {"visible_units": "gaussian", "hidden_units": ("relu", "bernoulli", "gaussian")},
    "persistent": {"persistent": True, "sparsity_cost": 0.1},
    "dropout": {"hidden_dropout": 0.3, "cd_steps": 2},
    "examples": {"shards": 3, "replicas": 2},
    "units": {"shards": (2, 1, 3), "replicas": (2, 1, 2), "split": "units"},
    "autoencoder": {"model": "autoencoder", "hidden_units": "tanh"},
    "denoising": {"model": "denoising", "tied": False},
    "contractive": {"model": "contractive"},
    "log-odds": {"visible_bias": "log-odds"},
    "shards of noise": {"model": "denoising", "shards": 2},
    "stopped early": {"early_stopping": "pseudo-likelihood", "patience": 1, "epochs": (9, 3, 6)},
}


def streamed(bits, variant, *, delay=0.0, observers=(), **others) -> StreamedPretraining:
    options = {"epochs": 2, "batch_size": 30, "seed": 3, **VARIANTS[variant], **others}
    settings = settings_from(LAYERS, handoff="minibatch", delay=delay, **options).pretrain
    return StreamedPretraining(settings, bits, bits[:50], observers=observers)
