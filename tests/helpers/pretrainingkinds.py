"""Settings of pretraining: runs of every kind, and layers of every kind."""

VARIANTS = {
    "plain": {"epochs": 4},
    "uneven": {"epochs": (2, 5, 3), "refresh_epochs": (0, 2, 3)},
    "first-layer": {"epochs": (4, 2, 1), "refresh_epochs": 2, "finish": "first-layer"},
    "cd-2": {"epochs": 2, "cd_steps": (2, 1, 2), "weight_decay": 0.001},
    "greedy": {"epochs": 3, "schedule": "greedy", "blas_threads": 1},
}
UNITS = {"hidden_units": ("relu", "gaussian", "bernoulli"), "learning_rate": 0.005}
KINDS = {
    "autoencoder": {"model": "autoencoder"},
    "untied": {"model": "autoencoder", "tied": False, "loss": "squared"},
    "rectified autoencoder": {"model": "autoencoder"} | UNITS,
    "denoising": {"model": "denoising", "corruption": ("masking:0.3", "gaussian:0.1", "none")},
    "contractive": {"model": "contractive"},
    "hyperbolic tangents": {"model": "denoising", "hidden_units": ("tanh", "tanh", "gaussian")}
    | {"corruption": "salt-and-pepper:0.2", "visible_bias": "log-odds", "learning_rate": 0.005},
    "gaussian and relu": {"visible_units": "gaussian"} | UNITS,
    "persistent": {"persistent": True, "cd_steps": (1, 2, 1)},
    "persistent gaussian and relu": {"visible_units": "gaussian", "persistent": True} | UNITS,
    "chains": {"persistent": True, "chains": (50, 7, 33), "cd_steps": (1, 2, 1)},
    "hidden dropout": {"hidden_dropout": (0.5, 0.0, 0.2)},
    "sparsity": {"sparsity_cost": 0.1, "sparsity_target": 0.2},
    "l1 and log-odds": {"l1": 0.001, "visible_bias": "log-odds"},
}
