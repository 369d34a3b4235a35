"""flash_attention.toml is the one description: generated header, op_schema, function body and README agree with it."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from ortflash.attributes import Attributes
from ortflash.graph_tools import function_body, op_schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
TOML = tomllib.loads((ROOT / "plugin_src/flash_attention.toml").read_text(encoding="utf-8"))

# Prints everything that the header says as JSON, infinities as strings, in the toml's own terms.
DUMP = r"""
#include <cstdio>
#include "flash_attention_schema.h"
using namespace ortflash::schema;

void types(uint32_t bits) {
  const struct { uint32_t bit; const char* name; } names[] = {
      {kTypeQuery, "query"}, {kTypeFloat32, "float32"}, {kTypeFloat16, "float16"}, {kTypeBFloat16, "bfloat16"},
      {kTypeBool, "bool"}, {kTypeInt32, "int32"},
      {kTypeInt64, "int64"}};
  const char* comma = "";
  std::printf("[");
  for (const auto& each : names) {
    if (bits & each.bit) { std::printf("%s\"%s\"", comma, each.name); comma = ","; }
  }
  std::printf("]");
}
void number(float value) {
  if (value == kInf || value == -kInf) std::printf("\"%s\"", value > 0 ? "inf" : "-inf");
  else std::printf("%.9g", double(value));
}
void attribute(const IntAttribute& a) {
  std::printf("{\"name\":\"%s\",\"type\":\"int\",\"default\":%lld,\"minimum\":%lld,\"maximum\":%lld,\"choices\":[",
              a.name, (long long)a.default_value, (long long)a.minimum, (long long)a.maximum);
  for (size_t i = 0; i < a.choice_count; ++i) std::printf("%s%lld", i ? "," : "", (long long)a.choices[i]);
  std::printf("]}");
}
void attribute(const FloatAttribute& a) {
  std::printf("{\"name\":\"%s\",\"type\":\"float\",\"default\":", a.name); number(a.default_value);
  std::printf(",\"minimum\":"); number(a.minimum);
  std::printf(",\"maximum\":"); number(a.maximum);
  std::printf("}");
}
void attribute(const StringAttribute& a) {
  std::printf("{\"name\":\"%s\",\"type\":\"string\",\"default\":\"%s\",\"choices\":[", a.name, a.default_value);
  for (size_t i = 0; i < a.choice_count; ++i) std::printf("%s\"%s\"", i ? "," : "", a.choices[i]);
  std::printf("]}");
}
int main() {
  std::printf("{\"name\":\"%s\",\"domain\":\"%s\",\"version\":%d,\"max_head_size\":%lld,\"query_types\":",
              kOpName, kDomain, kOpVersion, (long long)kMaxHeadSize);
  types(kQueryTypes);
  std::printf(",\"block_sizes\":[");
  const char* comma = "";
  for (int64_t size : kBlockSizes) { std::printf("%s%lld", comma, (long long)size); comma = ","; }
  std::printf("],\"inputs\":[");
  comma = "";
  for (const Input& in : kInputs) {
    std::printf("%s{\"name\":\"%s\",\"shapes\":\"%s\",\"optional\":%s,\"types\":", comma, in.name, in.shapes,
                in.optional ? "true" : "false");
    types(in.types); std::printf("}"); comma = ",";
  }
  std::printf("],\"outputs\":[");
  comma = "";
  for (const Output& out : kOutputs) {
    std::printf("%s{\"name\":\"%s\",\"optional\":%s,\"types\":", comma, out.name, out.optional ? "true" : "false");
    types(out.types); std::printf("}"); comma = ",";
  }
  std::printf("],\"attributes\":[");
  @ATTRIBUTES@
  std::printf("],\"names\":[");
  comma = "";
  const char* kinds[] = {"int", "float", "string"};
  for (const AttributeName& a : kAttributes) {
    std::printf("%s[\"%s\",\"%s\"]", comma, a.name, kinds[int(a.type)]); comma = ",";
  }
  std::printf("]}\n");
}
"""


def generate(folder: Path) -> Path:
    """Run gen_schema.py as the build does; return the header."""
    header = folder / "flash_attention_schema.h"
    script = ROOT / "plugin_src/gen_schema.py"
    subprocess.run([sys.executable, script, ROOT / "plugin_src/flash_attention.toml", header], check=True)
    return header


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the C++ compiler reads in the generated header."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("schema")
    generate(folder)
    names = ["k" + "".join(word.capitalize() for word in entry["name"].split("_")) for entry in TOML["attributes"]]
    calls = ' std::printf(",");\n'.join(f"attribute({name});" for name in names)
    (folder / "dump.cc").write_text(DUMP.replace("@ATTRIBUTES@", calls))
    subprocess.run([compiler, "-std=c++17", "-I", folder, folder / "dump.cc", "-o", folder / "dump"], check=True)
    dumped: dict[str, Any] = json.loads(subprocess.run([folder / "dump"], check=True, capture_output=True).stdout)
    return dumped


def test_header_has_the_operator_and_its_limits(header: dict[str, Any]) -> None:
    for key in ("name", "domain", "version"):
        assert header[key] == TOML["op"][key]
    for key in ("max_head_size", "query_types", "block_sizes"):
        assert header[key] == TOML["limits"][key]


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_header_has_inputs_and_outputs(header: dict[str, Any], kind: str) -> None:
    assert [entry["name"] for entry in header[kind]] == [entry["name"] for entry in TOML[kind]]
    for ours, entry in zip(header[kind], TOML[kind], strict=True):
        assert sorted(ours["types"]) == sorted(entry["types"])
        assert ours["optional"] == entry.get("optional", False)
        if kind == "inputs":
            assert ours["shapes"] == " or ".join(entry["shapes"])


def test_header_has_attributes(header: dict[str, Any]) -> None:
    assert header["names"] == [[entry["name"], entry["type"]] for entry in TOML["attributes"]]
    for ours, entry in zip(header["attributes"], TOML["attributes"], strict=True):
        assert ours["name"] == entry["name"]
        assert ours["type"] == entry["type"]
        assert ours["default"] == entry["default"]
        assert ours.get("choices", []) == entry.get("choices", [])
        extremes = {"int": (-(2**63), 2**63 - 1), "float": ("-inf", "inf")}
        if entry["type"] in extremes:
            assert (ours["minimum"], ours["maximum"]) == (
                entry.get("minimum", extremes[entry["type"]][0]),
                entry.get("maximum", extremes[entry["type"]][1]),
            )


def test_header_has_the_gradient(tmp_path: Path) -> None:
    text = generate(tmp_path).read_text(encoding="utf-8")
    section = text[text.index("namespace grad {") : text.index("}  // namespace grad")]
    spec = op_schema.gradient_schema()
    for kind, entries in (("Input", spec.inputs), ("Output", spec.outputs)):
        names = ["k" + kind + "".join(word.capitalize() for word in one.name.split("_")) for one in entries]
        indices = ", ".join(f"{name} = {index}" for index, name in enumerate(names))
        assert f"enum {kind}Index : size_t {{ {indices}, k{kind}Count = {len(names)} }};" in section
    assert f'kOpName[] = "{spec.name}"' in section
    assert "kDeterministic = " in section


def test_header_is_rewritten_only_where_it_changes(tmp_path: Path) -> None:
    header = generate(tmp_path)
    before = header.stat().st_mtime_ns
    generate(tmp_path)
    assert header.stat().st_mtime_ns == before
    header.write_text("stale")
    generate(tmp_path)
    assert "kOpName" in header.read_text()


def test_op_schema_reads_everything() -> None:
    spec = op_schema.schema()
    assert (spec.name, spec.domain, spec.version) == tuple(TOML["op"][key] for key in ("name", "domain", "version"))
    assert spec.max_head_size == TOML["limits"]["max_head_size"]
    assert list(spec.query_types) == TOML["limits"]["query_types"]
    assert [one.name for one in spec.inputs] == [entry["name"] for entry in TOML["inputs"]]
    assert [one.name for one in spec.outputs] == [entry["name"] for entry in TOML["outputs"]]
    for one, entry in zip(spec.inputs, TOML["inputs"], strict=True):
        assert list(one.types) == entry["types"]
        assert one.optional == entry.get("optional", False)
    for attribute, entry in zip(spec.attributes, TOML["attributes"], strict=True):
        assert (attribute.name, attribute.type) == (entry["name"], entry["type"])
        default = float(entry["default"]) if entry["type"] == "float" else entry["default"]
        assert attribute.default == default
        assert list(attribute.choices) == entry.get("choices", [])


def test_every_optional_input_has_a_neutral_constant_of_one_element() -> None:
    for entry in TOML["inputs"]:
        if not entry.get("optional", False):
            assert "neutral" not in entry
            continue
        constant = op_schema.neutral_constant(entry["name"], "x", onnx.TensorProto.FLOAT16)
        value = onnx.numpy_helper.to_array(constant)
        assert value.size == 1
        assert float(value.reshape(())) == float(entry["neutral"])


@pytest.mark.parametrize("input_count", range(3, len(TOML["inputs"]) + 1))
def test_function_body_has_the_schema_s_signature(input_count: int) -> None:
    node = op_schema.make_node(
        {entry["name"]: entry["name"] for entry in TOML["inputs"][:input_count]},
        "output",
        name="node",
        input_count=input_count,
        softmax_lse="softmax_lse",
    )
    function = function_body.build_function(function_body.traits_of([node], 18, onnx.TensorProto.FLOAT))
    assert (function.domain, function.name) == (TOML["op"]["domain"], TOML["op"]["name"])
    assert list(function.input) == [entry["name"] for entry in TOML["inputs"][:input_count]]
    assert list(function.output) == [entry["name"] for entry in TOML["outputs"]]
    assert sorted(function.attribute) == sorted(entry["name"] for entry in TOML["attributes"])


def test_made_nodes_spell_out_every_attribute() -> None:
    names = {"query": "q", "key": "k", "value": "v"}
    node = op_schema.make_node(names, "o", name="n", input_count=3)
    values = op_schema.node_attributes(node)
    assert list(values) == [entry["name"] for entry in TOML["attributes"]]
    for entry in TOML["attributes"]:
        default = float(entry["default"]) if entry["type"] == "float" else entry["default"]
        assert values[entry["name"]] == default or math.isclose(values[entry["name"]], default, rel_tol=1e-6)


def test_a_call_s_attributes_are_the_operator_s() -> None:
    """Those that aren't a node's own."""
    kinds = {"int": "int", "float": "float", "str": "string"}
    ours = {one.name: one for one in dataclasses.fields(Attributes)}
    entries = {entry["name"]: entry for entry in TOML["attributes"]}
    assert list(ours) == [name for name in entries if name != "return_lse" and not name.startswith("plugin_")]
    for name, one in ours.items():
        assert kinds[str(one.type)] == entries[name]["type"]
        default = entries[name]["default"]
        assert one.default == (float(default) if one.type == "float" else default)
        assert list(one.metadata.get("choices", ())) == entries[name].get("choices", [])


def test_docs_have_the_gradient_s_table() -> None:
    table = op_schema.markdown_table(op_schema.gradient_schema())
    assert table in (ROOT / "docs/training.md").read_text(encoding="utf-8")


def test_readme_has_the_generated_table() -> None:
    assert op_schema.markdown_table(op_schema.schema()) in (ROOT / "README.md").read_text(encoding="utf-8")
