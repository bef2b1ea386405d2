"""The settings of a run: its sections, checked as a whole."""

from __future__ import annotations

from syncpretrain.errors import SettingsError
from syncpretrain.settings.architecture import check_architecture
from syncpretrain.settings.checks import (
    check_layers,
    check_per_layer,
    check_pretraining,
    check_schedule,
)
from syncpretrain.settings.defaults import PER_LAYER
from syncpretrain.settings.devices import check_tuning_backend
from syncpretrain.settings.fields import DataSettings, PretrainFields
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.settings.kinds import Frozen
from syncpretrain.settings.momentum import MomentumSchedule
from syncpretrain.settings.running import RunSettings

__all__ = [
    "DataSettings",
    "PretrainSettings",
    "Settings",
]


class PretrainSettings(PretrainFields, frozen=True, kw_only=True):
    """Pretraining: the fields of :class:`syncpretrain.settings.fields.PretrainFields`, checked."""

    def __post_init__(self) -> None:
        check_layers(self.layers)
        check_architecture(self.layers, self.architecture)
        for name in PER_LAYER:
            check_per_layer(name, getattr(self, name), len(self.layers) - 1)
        for momentum in self.momentum:
            MomentumSchedule(momentum)
        check_pretraining(self)
        check_schedule(self)
        if self.seed >= 2**63:
            raise SettingsError(f"seed: got {self.seed}, expected a number below 2**63")


class Settings(Frozen, frozen=True, kw_only=True):
    """Everything that determines a run; ``config.toml`` of a run folder holds it."""

    data: DataSettings = DataSettings()
    pretrain: PretrainSettings
    finetune: FinetuneSettings = FinetuneSettings()
    run: RunSettings = RunSettings()

    def __post_init__(self) -> None:
        check_tuning_backend(self.pretrain.backend, self.finetune)
