"""Exported parts as scikit-learn's perceptrons."""

import exportcases as cases
import numpy as np
import pytest

from syncpretrain.errors import SettingsError

pytest.importorskip("sklearn", minversion="1.6", reason="exports are scikit-learn's perceptrons")


def why_refused(name, part):
    if name == "convolutions" or "pooling" in name:
        return f"dense layers alone, and the {part} has convolutions"
    if name == "standardized" and part in ("autoencoder", "classifier", "regressor"):
        return "are relu and tanh"
    if name in ("blocks", "table") and part in ("decoder", "autoencoder"):
        return "columns of several kinds"
    return None


def inputs(name, part):
    if name == "table" and part != "decoder":
        return np.array(cases.columns_of(name, missing=False), dtype=object).T
    return cases.inputs_of(name, part, missing=False)


@pytest.mark.parametrize("name", cases.CASES)
def test_the_outputs_are_those_of_the_stack_or_it_is_refused(name):
    for head in cases.HEADS:
        for part in cases.parts_of_case(name, head):
            stack = cases.case(name, head)
            if message := why_refused(name, part):
                with pytest.raises(SettingsError, match=f"^format: got sklearn, .*{message}"):
                    stack.to_sklearn(part)
                continue
            model, X = stack.to_sklearn(part), inputs(name, part)
            wanted = cases.expected(name, head, part, missing=False)
            if part != "classifier":
                cases.close(model.predict(X), wanted)
                continue
            cases.close(model.predict_proba(X), wanted[:, np.argsort(stack.head.classes)])
            labels = stack.predict(cases.rows_of(name, missing=False))
            assert model.predict(X).tolist() == labels.tolist()


def test_linear_units_inside_are_no_layer():
    model = cases.case("linear code").to_sklearn("autoencoder")
    assert [weight.shape for weight in model.coefs_] == [(12, 9), (9, 9), (9, 12)]
    model.partial_fit(np.zeros((3, 12)), np.zeros((3, 12)))  # it can be trained on


def test_the_file_needs_no_trust(tmp_path, call):
    io = pytest.importorskip("skops.io", reason="files are those of skops")
    stack = cases.case("table", "three")
    stack.save(tmp_path / "model.safetensors")
    call("export", tmp_path, "--out", tmp_path / "c.skops")
    assert io.get_untrusted_types(file=tmp_path / "c.skops") == []
    model = io.load(tmp_path / "c.skops")
    X = inputs("table", "classifier")
    assert model.predict(X).tolist() == stack.to_sklearn().predict(X).tolist()
