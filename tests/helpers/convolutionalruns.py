"""Runs of stacks with convolutions, of every model."""

from syncpretrain import pretrain
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.pretraining.streamed import StreamedPretraining
from syncpretrain.settings import settings_from

LAYERS = "1x8x8,conv:3x3,pool:2,conv:4x2,5"
BASE = {"batch_size": 20, "epochs": 2, "seed": 3}
RECTIFIED = {"hidden_units": ("relu", "relu", "bernoulli"), "learning_rate": 0.02}
MODELS = {
    "rbm": {"model": "rbm", "sparsity_cost": (0.5, 0.5, 0)},
    "gaussian": {"model": "rbm", "visible_units": "gaussian", "cd_steps": 2} | RECTIFIED,
    "denoising": {"model": "denoising", "corruption": ("masking:0.3", "gaussian:0.1", "none")},
    "autoencoder": {"model": "autoencoder", "tied": False, "visible_bias": "log-odds"} | RECTIFIED,
}


def train(images, *, layers=LAYERS, **options):
    return pretrain(images[:100], layers=layers, validation=images[100:], **(BASE | options))


def driver(images, **options):
    """Return what pretrains, by the hand-over."""
    others = {name: options.pop(name) for name in ("save", "resume") & options.keys()}
    settings = settings_from(LAYERS, **(BASE | options)).pretrain
    kind = StreamedPretraining if settings.handoff == "minibatch" else Pretraining
    return kind(settings, images[:100], images[100:], **others)
