from __future__ import annotations

import json

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from peagle_trt.deploy.hosting.settings import HostSettings, read_settings
from peagle_trt.deploy.model_configs import model_configs
from peagle_trt.errors import UsageError
from peagle_trt.spec import EngineManifest
from peagle_trt_repo import tensors


def _parse(text: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def test_every_configuration_is_what_the_server_parses(manifest: EngineManifest) -> None:
    configs = model_configs(manifest, HostSettings())
    assert {name: _parse(text).name for name, text in configs.items()} == {name: name for name in configs}


def test_the_engine_model_is_decoupled_and_asks_for_no_gpu(manifest: EngineManifest) -> None:
    config = _parse(model_configs(manifest, HostSettings())["peagle"])
    assert config.model_transaction_policy.decoupled
    assert [group.kind for group in config.instance_group] == [model_config_pb2.ModelInstanceGroup.KIND_CPU]


def test_a_repository_tells_the_method_of_its_head(manifest: EngineManifest) -> None:
    config = _parse(model_configs(manifest, HostSettings())["peagle"])
    assert config.parameters["method"].string_value == manifest.drafter.method == "p-eagle"


def test_every_input_is_optional_for_the_server_because_the_models_check_them(manifest: EngineManifest) -> None:
    for name in ("peagle", "ensemble", "preprocessing"):
        config = _parse(model_configs(manifest, HostSettings())[name])
        assert all(tensor.optional for tensor in config.input), name


def test_the_ensemble_declares_the_classic_inputs(manifest: EngineManifest) -> None:
    declared = {tensor.name for tensor in _parse(model_configs(manifest, HostSettings())["ensemble"]).input}
    classic = {"text_input", "max_tokens", "stream", "stop_words", "bad_words", "end_id", "pad_id", "top_k", "top_p"}
    assert classic <= declared


def test_settings_come_back_as_they_went_in(manifest: EngineManifest) -> None:
    settings = HostSettings(
        exclude_input_in_output=False,
        max_pending_requests=7,
        num_threads=2,
        default_draft_tokens="auto",
        default_prompt_lookup=True,
        reuse_prefixes=True,
    )
    config = _parse(model_configs(manifest, settings)["peagle"])
    as_json = json.dumps(json_format.MessageToDict(config, preserving_proto_field_name=True))
    assert read_settings({"model_config": as_json}) == settings


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_a_senseless_parameter_is_named(text: str) -> None:
    config = {"parameters": {"max_pending_requests": {"string_value": text}}}
    with pytest.raises(UsageError, match="max_pending_requests"):
        read_settings({"model_config": json.dumps(config)})


def test_an_unknown_default_of_k_is_refused_with_the_known_ones() -> None:
    config = {"parameters": {"default_draft_tokens": {"string_value": "most"}}}
    with pytest.raises(UsageError, match="`default_draft_tokens` is `most`, expected one of `build`, `auto`"):
        read_settings({"model_config": json.dumps(config)})


def test_a_default_of_prompt_lookup_is_true_or_false() -> None:
    config = {"parameters": {"default_prompt_lookup": {"string_value": "auto"}}}
    with pytest.raises(UsageError, match="`default_prompt_lookup` is `auto`, expected `true` or `false`"):
        read_settings({"model_config": json.dumps(config)})


def test_every_refused_input_with_a_filler_value_names_a_declared_tensor() -> None:
    assert set(tensors.HARMLESS_VALUES) <= {field.name for field in tensors.REFUSED_INPUTS}
