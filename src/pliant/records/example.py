"""tf.Example messages, without TensorFlow.

The messages are declared here, in a pool of their own: TensorFlow and other readers declare the same ones, and protobuf
refuses two declarations of a name in one pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from pliant.records.packages import needs_package

PACKAGE = "pliant.records"
LISTS = (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List"))

Features = dict[str, Any]
"""The features of one example: arrays of float32 or int64, or lists of bytes, by name."""


def parse_example(data: bytes) -> Features:
    """Return the features of a serialized tf.Example. Raises ValueError if it is damaged."""
    message_class, bad = _example_class()
    try:
        features = message_class.FromString(data).features.feature
    except bad as error:
        raise ValueError(f"this is no tf.Example: {error}") from error
    return {name: _value(features[name]) for name in sorted(features)}


def serialize_example(features: Mapping[str, Any]) -> bytes:
    """Return a serialized tf.Example. Values are lists of bytes, of floats or of integers, or arrays of numbers."""
    message = _example_class()[0]()
    for name in sorted(features):
        feature, value = message.features.feature[name], features[name]
        if isinstance(value, list) and value and isinstance(value[0], bytes):
            feature.bytes_list.value.extend(value)
        elif np.issubdtype(np.asarray(value).dtype, np.integer):
            feature.int64_list.value.extend(np.asarray(value).ravel().tolist())
        else:
            feature.float_list.value.extend(np.asarray(value, np.float32).ravel().tolist())
    return bytes(message.SerializeToString(deterministic=True))


def _value(feature: Any) -> Any:
    match feature.WhichOneof("kind"):
        case "bytes_list":
            return list(feature.bytes_list.value)
        case "float_list":
            return np.array(feature.float_list.value, np.float32)
        case "int64_list":
            return np.array(feature.int64_list.value, np.int64)
        case _:
            return np.array([], np.float32)


@cache
def _example_class() -> tuple[Any, type[Exception]]:
    """Return the class of the message tf.Example, and the error that damaged bytes raise."""
    with needs_package("protobuf"):
        from google.protobuf import descriptor_pool, message, message_factory
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_declarations().SerializeToString())
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.Example"))
    return made, message.DecodeError


def _declarations() -> Any:
    from google.protobuf import descriptor_pb2

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="pliant_example.proto", package=PACKAGE, syntax="proto3")
    add = _field_adder(field)
    for (_, name), kind in zip(LISTS, (field.TYPE_BYTES, field.TYPE_FLOAT, field.TYPE_INT64), strict=True):
        add(file.message_type.add(name=name), "value", 1, kind, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, message) in enumerate(LISTS, 1):
        add(feature, name, number, field.TYPE_MESSAGE, message=message).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, field.TYPE_STRING)
    add(entry, "value", 2, field.TYPE_MESSAGE, message="Feature")
    add(features, "feature", 1, field.TYPE_MESSAGE, message="Features.FeatureEntry", repeated=True)
    add(file.message_type.add(name="Example"), "features", 1, field.TYPE_MESSAGE, message="Features")
    return file


def _field_adder(field: Any) -> Callable[..., Any]:
    def add(owner: Any, name: str, number: int, kind: int, *, message: str = "", repeated: bool = False) -> Any:
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        made = owner.field.add(name=name, number=number, type=kind, label=label)
        if message:
            made.type_name = f".{PACKAGE}.{message}"
        return made

    return add
