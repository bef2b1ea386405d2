"""Exported parts in ONNX Runtime."""

import json

import exportcases as cases
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the format is that of the package onnx")
runtime = pytest.importorskip("onnxruntime", reason="exports are opened by ONNX Runtime")


def session(model):
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    content = model.SerializeToString()
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def feed(opened, name, part):
    if name == "table" and part != "decoder":
        age, colour, code, size = cases.columns_of(name)
        numbers = [np.array(column, dtype=np.float32)[:, None] for column in (age, code)]
        texts = [np.array([x or "" for x in c], dtype=object)[:, None] for c in (colour, size)]
        return {"age": numbers[0], "colour": texts[0], "codes": numbers[1], "size": texts[1]}
    return {opened.get_inputs()[0].name: cases.inputs_of(name, part)}


@pytest.mark.parametrize("name", cases.CASES)
def test_the_outputs_are_those_of_the_stack(name):
    for head in cases.HEADS:
        for part in cases.parts_of_case(name, head):
            stack = cases.case(name, head)
            opened = session(stack.to_onnx(part))
            found = opened.run(None, feed(opened, name, part))
            cases.close(found[0], cases.expected(name, head, part))
            if part == "classifier":
                assert found[1].tolist() == stack.predict(cases.rows_of(name)).tolist()


def test_names_and_what_stands_beside_them(tmp_path, call):
    cases.case("table", "three").save(tmp_path / "model.safetensors")
    call("export", tmp_path, "--out", tmp_path / "c.onnx")
    opened = session(onnx.load(tmp_path / "c.onnx"))
    assert [x.name for x in opened.get_inputs()] == ["age", "colour", "codes", "size"]
    assert [x.name for x in opened.get_outputs()] == ["probabilities", "label"]
    about = json.loads(opened.get_modelmeta().custom_metadata_map["syncpretrain"])
    assert about["classes"] == ["b", "c", "a"]
    encoder = session(cases.case("table").to_onnx())  # a column has the name of the output
    assert [x.name for x in encoder.get_outputs()] == ["codes_"]
