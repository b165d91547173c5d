"""config.pbtxt: what is written is what is read."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdeploy.errors import ConfigError
from specdeploy.triton.pbtxt import (
    EnsembleStep,
    InstanceGroup,
    ModelConfig,
    PbtxtError,
    Queue,
    Tensor,
    Warmup,
    WarmupInput,
    parse,
    quote,
    render,
)

# Protobuf strings are Unicode without surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
types = st.sampled_from(["TYPE_BOOL", "TYPE_INT32", "TYPE_UINT64", "TYPE_FP16", "TYPE_FP32", "TYPE_STRING"])
shapes = st.lists(st.integers(-1, 2**40), max_size=4).map(tuple)
outputs = st.builds(
    Tensor, name=texts, data_type=types, dims=shapes, reshape=st.none() | shapes, optional=st.just(False)
)
inputs = st.builds(
    Tensor,
    name=texts,
    data_type=types,
    dims=shapes,
    reshape=st.none() | shapes,
    optional=st.booleans(),
    allow_ragged_batch=st.booleans(),
)
maps = st.dictionaries(texts, texts, max_size=4)
steps = st.builds(EnsembleStep, model_name=texts, model_version=st.integers(-1, 9), input_map=maps, output_map=maps)
configs = st.builds(
    ModelConfig,
    name=texts,
    backend=texts,
    platform=texts,
    max_batch_size=st.integers(0, 4096),
    inputs=st.lists(inputs, max_size=3).map(tuple),
    outputs=st.lists(outputs, max_size=3).map(tuple),
    instance_group=st.lists(
        st.builds(InstanceGroup, count=st.integers(0, 9), kind=st.sampled_from(["KIND_CPU", "KIND_GPU", "KIND_AUTO"])),
        max_size=2,
    ).map(tuple),
    decoupled=st.booleans(),
    parameters=maps,
    steps=st.lists(steps, min_size=0, max_size=2).map(tuple),
    default_model_filename=texts,
    comments=st.dictionaries(st.just("") | texts, texts, max_size=2),
)


@settings(deadline=None)  # the first example imports protobuf
@given(configs)
def test_what_is_rendered_parses_to_the_same_value(config: ModelConfig) -> None:
    """``parse(render(config)) == config`` for every configuration, whatever its strings hold."""
    assert parse(render(config)) == config


def test_parameters_keep_their_order_and_carry_their_comments() -> None:
    """Parameters are written in the order given, each under the comment that explains it."""
    text = render(ModelConfig(name="m", parameters={"z": "1", "a": "2"}, comments={"": "Head.", "a": "Why\ntwo."}))

    assert text.splitlines() == [
        "# Head.",
        'name: "m"',
        "max_batch_size: 0",
        'parameters { key: "z" value { string_value: "1" } }',
        "# Why",
        "# two.",
        'parameters { key: "a" value { string_value: "2" } }',
    ]


def test_printable_text_stays_readable_and_the_rest_is_escaped() -> None:
    """A path with an accent can be read in the file; control characters cannot break a line."""
    assert quote('é/"x"\\\n\x07') == '"é/\\"x\\"\\\\\\n\\007"'


def test_a_string_that_is_not_unicode_is_refused() -> None:
    """An undecodable file name is an error that shows it, not a broken file."""
    with pytest.raises(ConfigError, match="udcff"):
        quote("/engines/\udcff")


def test_a_broken_file_is_reported_with_its_line() -> None:
    """An unknown field names itself and its place."""
    with pytest.raises(PbtxtError, match='no field named "max_batch"') as caught:
        parse('name: "m"\nbackend: "python"\nmax_batch: 3\n')

    assert (caught.value.line, caught.value.column) == (3, 1)


def test_fields_that_we_have_no_use_for_are_accepted() -> None:
    """NVIDIA's own files parse: fields outside of our type are checked by protobuf and left out."""
    text = 'name: "m" optimization { priority: PRIORITY_MAX } input [ { name: "X" dims: [ 1 ] } ]'

    assert parse(text) == ModelConfig(name="m", inputs=(Tensor(name="X", data_type="TYPE_INVALID", dims=(1,)),))


def test_queues_rate_limits_and_warm_ups_survive_the_text() -> None:
    """What is rendered is read back as the same value."""
    warmup = Warmup(name="w", inputs=(WarmupInput(name="X", data_type="TYPE_INT32", dims=(2,), file="x"),))
    config = ModelConfig(
        name="m",
        instance_group=(InstanceGroup(count=2, resources={"slots": 1}),),
        queue=Queue(max_size=3, timeout_us=5, priority_levels=3),
        warmups=(warmup,),
    )

    assert parse(render(config)) == config
    assert parse(render(ModelConfig(name="m", queue=Queue()))).queue == Queue()


def test_bytes_that_are_not_utf_8_are_taken_as_triton_takes_them() -> None:
    """Triton's parser is not particular; what is text stays text, and an escaped backslash is no escape."""
    assert parse(r'name: "\xff\303\244" backend: "\\xff"').name == "\N{REPLACEMENT CHARACTER}" * 3
    assert parse(r'name: "\303\244" backend: "a\xff"').name == "ä"
    assert parse(r'name: "\xff" backend: "\\xff"').backend == r"\xff"
    with pytest.raises(PbtxtError, match='no field named "sise"') as caught:
        parse('name: "\\xff"\nsise: 3\n')
    assert caught.value.line == 2


def test_numbers_of_types_and_kinds_that_have_no_name_stay_numbers() -> None:
    """Triton lets them pass, and so do we."""
    config = parse('input { name: "X" data_type: 999 dims: 1 } instance_group { kind: 99 }')

    assert config.inputs[0].data_type == "999"
    assert config.instance_group[0].kind == "99"


def test_parsing_does_not_import_the_client() -> None:
    """The messages are loaded without gRPC and NumPy, and whoever imports the client afterwards gets the same ones."""
    script = (
        "import sys\n"
        "from specdeploy.triton.pbtxt import parse_message\n"
        "message = parse_message('name: \"m\"')\n"
        "assert not {'grpc', 'numpy', 'tritonclient'} & set(sys.modules), 'heavy'\n"
        "import tritonclient.grpc\n"
        "assert tritonclient.grpc.model_config_pb2.ModelConfig is type(message), 'another'\n"
        "answer = tritonclient.grpc.service_pb2.ModelConfigResponse(config=message)\n"
        "assert answer.config.name == 'm'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
