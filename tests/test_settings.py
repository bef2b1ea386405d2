"""Settings: what is refused and how it is said, one value for all layers, TOML there and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncpretrain.errors import SettingsError
from syncpretrain.settings import (
    FinetuneSettings,
    MomentumSchedule,
    PretrainSettings,
    checked,
    read_settings,
    settings_from,
    write_settings,
)

LAYERS = (64, 32, 8)


class TestMomentum:
    def test_one_number_holds_for_all_epochs(self):
        assert [MomentumSchedule("0.9").at(epoch) for epoch in (1, 5, 500)] == [0.9] * 3

    def test_a_stage_ends_after_its_epochs(self):
        schedule = MomentumSchedule("0.5:5,0.7:1,0.9")
        assert [schedule.at(epoch) for epoch in (1, 5, 6, 7, 100)] == [0.5, 0.5, 0.7, 0.9, 0.9]

    @pytest.mark.parametrize(
        "text", ["", "x", "0.5:5", "0.5,0.9", "0.5:0,0.9", "0.5:-1,0.9", "1", "-0.1", "nan", "inf"]
    )
    def test_other_texts_are_refused(self, text):
        with pytest.raises(SettingsError, match=r"^momentum: got"):
            MomentumSchedule(text)


class TestLayers:
    def test_one_value_stands_for_all_layers(self):
        pretrain = settings_from(LAYERS, epochs=3, learning_rate=(0.1, 0.2)).pretrain
        assert pretrain.epochs == (3, 3)
        assert pretrain.learning_rate == (0.1, 0.2)
        assert pretrain.refresh_epochs == (1, 1)

    def test_none_takes_the_default(self):
        assert settings_from(LAYERS, epochs=None, momentum=None) == settings_from(LAYERS)

    def test_numpys_numbers_will_do(self):
        found = settings_from(np.array(LAYERS), epochs=np.int64(3), learning_rate=np.float32(0.5))
        assert found == settings_from(LAYERS, epochs=3, learning_rate=0.5)


class TestRefusals:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"epochs": 0}, "epochs: got 0, expected a whole number of at least 1"),
            ({"epochs": "x"}, "epochs: got 'x', expected a whole number"),
            ({"epochs": (1, 2, 3)}, "epochs: got 3 values, expected one for all layers or 2"),
            ({"epochs": 10**9}, "epochs: got 1000000000, expected at most 1000000"),
            ({"learning_rate": 0}, "learning_rate: got 0, expected a number above 0"),
            ({"learning_rate": np.nan}, "learning_rate: got nan, expected a number above 0"),
            ({"weight_decay": np.inf}, "weight_decay: got inf, expected a finite number"),
            ({"schedule": "x"}, "schedule: got 'x', expected synchronized or greedy"),
            ({"workers": "x"}, "workers: got 'x', expected a whole number"),
            ({"seed": 2**63}, f"seed: got {2**63}, expected a number below 2"),
            ({"momentum": 2}, "momentum: got 2, expected at least 0 and below 1"),
            ({"epochz": 3}, "epochz: there is no such setting in [pretrain], expected one of"),
            ({"data": {"validation": 1}}, "validation: got 1, expected a number below 1"),
            ({"data": {"name": 3}}, "name: got 3, expected text"),
            ({"finetune": {"objective": "x"}}, "finetune_objective: got 'x', expected none or"),
            ({"finetune": {"learning_rate": np.inf}}, "finetune_learning_rate: got inf, expected"),
        ],
    )
    def test_a_wrong_value_is_named(self, given, message):
        with pytest.raises(SettingsError) as caught:
            settings_from(LAYERS, **given)
        assert str(caught.value).startswith(message)

    @pytest.mark.parametrize(
        ("layers", "message"),
        [
            ((), "layers: got nothing, expected two numbers or more"),
            ((64,), "layers: got 64, expected two numbers or more"),
            ((64, 0), "layers: got 0, expected a whole number of at least 1"),
            ((64, 10**30), "layers: got 1000000000000000000000000000000 units, expected at most"),
            (64, "layers: got 64, expected a list"),
            ("64,8", "layers: got '64,8', expected a list"),
            ((64, "x"), "layers: got 'x', expected a whole number"),
        ],
    )
    def test_wrong_layers_are_named(self, layers, message):
        with pytest.raises(SettingsError) as caught:
            settings_from(layers)
        assert str(caught.value).startswith(message)

    def test_a_setting_without_a_default_is_asked_for(self):
        with pytest.raises(SettingsError, match="layers: got nothing, expected a value"):
            checked({}, PretrainSettings)

    def test_settings_of_one_section_are_named_without_it(self):
        with pytest.raises(SettingsError, match=r"^batch_size: got 0, expected a whole number of"):
            checked({"batch_size": 0}, FinetuneSettings)


class TestFiles:
    @given(
        depth=st.integers(1, 3),
        seed=st.integers(0, 2**63 - 1),
        workers=st.none() | st.integers(1, 64),
        rate=st.floats(1e-6, 10),
        objective=st.sampled_from(["none", "reconstruction"]),
    )
    def test_what_is_written_is_read_back(
        self, tmp_path_factory, depth, seed, workers, rate, objective
    ):
        path = tmp_path_factory.mktemp("settings") / "config.toml"
        settings = settings_from(
            [9] * (depth + 1),
            seed=seed,
            workers=workers,
            learning_rate=rate,
            data={"name": "päth/to x.npy", "validation": 0.25},
            finetune={"objective": objective, "learning_rate": rate},
        )
        write_settings(settings, path)
        assert read_settings(path) == settings

    def test_a_file_by_hand_may_leave_settings_out(self, tmp_path):
        path = tmp_path / "mine.toml"
        path.write_text("[pretrain]\nlayers = [64, 32, 8]\nepochs = 3\nmomentum = 0.9\n")
        assert read_settings(path) == settings_from(LAYERS, epochs=3, momentum=0.9)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (b"[pretrain\n", "these settings are no TOML"),
            (b"\xff\xfe\x00", "these settings are no TOML"),
            (b"x = " + b"[" * 5000, "these settings are no TOML"),
            (b"", "layers: got nothing"),
            (b"pretrain = 3\n", "layers: got nothing"),
            (b"[pretrain]\nlayers = 64\n", "layers: got 64, expected a list"),
            (
                b"[pretrain]\nlayers = [64, 8]\nepochs = ['a']\n",
                "epochs: got 'a', expected a whole",
            ),
            (b"[pretrain]\nlayers = [64, 8]\nfoo = 1\n", "foo: there is no such setting in [pretr"),
            (b"[other]\n[pretrain]\nlayers = [64, 8]\n", "other: there is no such setting"),
            (b"finetune = 3\n[pretrain]\nlayers = [64, 8]\n", "finetune: got 3, expected a table"),
        ],
    )
    def test_a_damaged_file_is_named(self, tmp_path, text, message):
        path = tmp_path / "config.toml"
        path.write_bytes(text)
        with pytest.raises(SettingsError) as caught:
            read_settings(path)
        assert str(caught.value).startswith(f"{path}: {message}")

    def test_a_missing_file_is_named(self, tmp_path):
        path = tmp_path / "config.toml"
        with pytest.raises(SettingsError, match="cannot read these settings: No such file"):
            read_settings(path)
