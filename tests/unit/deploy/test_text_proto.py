from __future__ import annotations

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from peagle_trt.deploy.text_proto import Symbol, write_message


def _parse(text: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def test_a_string_survives_whatever_it_holds() -> None:
    text = 'a "quoted" \\ path\nwith a tab\t, ünïcödé and \x00'
    assert _parse(write_message({"name": text})).name == text


def test_a_sequence_repeats_its_field() -> None:
    config = _parse(write_message({"version_policy": {"specific": {"versions": [1, 3]}}}))
    assert list(config.version_policy.specific.versions) == [1, 3]


def test_symbols_booleans_and_negative_numbers_have_no_quotes() -> None:
    tensor = {"name": "x", "data_type": Symbol("TYPE_INT32"), "dims": [-1], "optional": True}
    parsed = _parse(write_message({"input": [tensor]})).input[0]
    assert (parsed.data_type, list(parsed.dims), parsed.optional) == (model_config_pb2.TYPE_INT32, [-1], True)
