#include "replay/tape_script_torch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/file.h"
#include "replay/call_copies_torch.h"
#include "replay/tape_backward_torch.h"
#include "replay/tape_birth_torch.h"
#include "replay/tape_calls.h"
#include "replay/tape_literals_torch.h"
#include "replay/tape_save_torch.h"
#include "replay/tape_statistics_torch.h"

namespace finitude::replay {
namespace {

using nlohmann::json;

constexpr std::int64_t kLiteral = 64;    // elements of a tensor that is written as a literal
constexpr std::int64_t kLiterals = 256;  // of all of them together
constexpr std::size_t kNamed = 8;        // tensors of a list that have lines of their own
constexpr std::size_t kColumns = 110;

// The call as it was issued: its arguments, with copies of their tensors, and what came of it.
class TakeCall : public PlayObserver {
 public:
  explicit TakeCall(std::size_t index) : index_(index) {}

  void before(const PlayedCall& call) override {
    if (call.index != index_) return;
    schema.emplace(call.schema);
    is_random = false;
    const c10::OperatorName name(call.schema.name(), call.schema.overload_name());
    if (const auto op = c10::Dispatcher::singleton().findSchema(name))
      is_random = op->hasTag(at::Tag::nondeterministic_seeded);
    if (is_random) random_state = at::detail::getDefaultCPUGenerator().get_state();
    arguments = CallCopies().of(call.arguments);
  }
  bool after(const PlayedCall& call) override {
    if (call.index != index_) return true;
    results = call.results.size();
    const std::vector<NamedTensor> given = tensors_of(call.schema.returns(), call.results);
    for (const c10::IValue& result : call.results) plain = plain && result.isTensor() && result.toTensor().defined();
    for (const NamedTensor& t : given) count(t.tensor);
    for (const NamedTensor& t : written_of(call.schema, call.arguments)) {
      const bool is_result = std::any_of(given.begin(), given.end(), [&](const NamedTensor& g) {
        return g.tensor.unsafeGetTensorImpl() == t.tensor.unsafeGetTensorImpl();
      });
      const std::string argument = t.name.substr(0, t.name.find('.'));
      plain = plain && t.name == argument;
      if (!is_result && (written.empty() || written.back() != argument)) written.push_back(argument);
      if (!is_result) count(t.tensor);
    }
    return false;
  }

  std::optional<c10::FunctionSchema> schema;
  std::vector<c10::IValue> arguments;
  std::size_t results = 0;
  std::vector<std::string> written;  // arguments that it wrote and did not give back
  bool is_random = false;
  bool plain = true;  // it gave dense real tensors, no lists of them
  at::Tensor random_state;
  std::uint64_t nan = 0, inf = 0;

 private:
  void count(const at::Tensor& t) {
    const sense::Health health = health_of(t);
    plain = plain && t.defined() && t.layout() == c10::kStrided && !t.is_complex();
    nan += health.nan;
    inf += health.inf();
  }

  const std::size_t index_;
};

// Operators whose tensors may be given as Python numbers.
bool takes_numbers(const std::string& name) {
  for (const char* op : {"add", "sub", "mul", "div", "true_divide", "floor_divide"}) {
    const std::string full = std::string("aten::") + op;
    if (name == full || name == full + "_") return true;
  }
  return false;
}

// Breaks what is too long behind a comma.
std::string folded(const std::string& text) {
  std::string out;
  std::size_t begin = 0;
  while (text.size() - begin > kColumns) {
    const std::size_t at = text.rfind(", ", begin + kColumns);
    if (at == std::string::npos || at <= begin) break;
    out += text.substr(begin, at + 1 - begin) + "\n    ";
    begin = at + 2;
  }
  return out + text.substr(begin);
}

// "(8, 4)", "(8,)", "()".
std::string tuple_of(c10::IntArrayRef numbers) {
  std::string text = "(";
  for (std::size_t i = 0; i < numbers.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  return text + (numbers.size() == 1 ? ",)" : ")");
}

class Script {
 public:
  Script(const TakeCall& call, std::string tensor_file, const ScriptSources& sources)
      : call_(call), tensor_file_(std::move(tensor_file)), sources_(sources) {}

  // backward: what the call is part of; null: nothing.
  std::string text(const std::string& head, const BackwardCall* backward) {
    const std::string issued = issue();
    std::string code = body_ + issued + judged();
    if (backward != nullptr) code += shown(*backward);
    std::string text = head + "\n";
    if (!saved.empty()) text += "import json\nimport pathlib\n";
    if (code.find("inf") != std::string::npos || code.find("nan") != std::string::npos)
      text += "from math import inf, nan\n";
    if (text.size() > head.size() + 1) text += "\n";
    text += "import torch\n";
    if (!saved.empty()) text += reader();
    return text + loaded() + "\n" + code;
  }

  std::vector<NamedTensor> saved;

 private:
  // Reads the file of tensors: the caller that gets the script may have torch and nothing else.
  std::string reader() const {
    std::map<std::string, std::string> formats;
    for (const NamedTensor& t : saved) {
      if (const char* word = safetensors_word(t.tensor.scalar_type()))
        formats[word] = python_dtype(t.tensor.scalar_type());
    }
    std::string listed;
    for (const auto& [word, dtype] : formats) listed += (listed.empty() ? "\"" : ", \"") + word + "\": " + dtype;
    return "\n\ndef load(file):\n"
           "    \"\"\"The tensors of a file in the safetensors format.\"\"\"\n"
           "    data = bytearray(file.read_bytes())\n"
           "    at = 8 + int.from_bytes(data[:8], \"little\")\n"
           "    formats = {" +
           listed +
           "}\n"
           "    return {name: torch.frombuffer(data[at + one[\"data_offsets\"][0] : at + one[\"data_offsets\"][1]], "
           "dtype=formats[one[\"dtype\"]])\n"
           "            .reshape(one[\"shape\"]) for name, one in json.loads(data[8:at]).items()}\n\n\n"
           "saved = load(pathlib.Path(__file__).with_name(" +
           python_text(tensor_file_) + "))\n";
  }

  // What brings an operator that is not torch's own.
  std::string loaded() const {
    const std::string& name = call_.schema->name();
    if (name.starts_with("aten::") || name.starts_with("prims::")) return "";
    std::string text;
    for (const std::string& module : sources_.modules) text += "import " + module + "\n";
    for (const std::string& file : sources_.libraries)
      text += "torch.ops.load_library(" + python_text(std::filesystem::absolute(file).string()) + ")\n";
    return text.empty() ? text : "\n" + text;
  }

  std::string layout_of(const at::Tensor& t, std::string values) const {
    bool repeats = false;
    for (std::int64_t d = 0; d < t.dim(); ++d) repeats = repeats || (t.stride(d) == 0 && t.size(d) > 1);
    if (repeats) return values + ".expand(" + tuple_of(t.sizes()) + ")";
    if (t.is_contiguous()) return values;
    return "torch.empty_strided(" + tuple_of(t.sizes()) + ", " + tuple_of(t.strides()) +
           ", dtype=" + python_dtype(t.scalar_type()) + ").copy_(" + values + ")";
  }

  std::string tensor(const std::string& name, const at::Tensor& t) {
    if (!t.defined()) return "None";
    for (const auto& [known, variable] : written_) {
      if (known.is_same(t)) return variable;
    }
    if (t.unsafeGetTensorImpl()->is_wrapped_number() && takes_numbers(op_)) return python_list(t);
    std::string values;
    at::Tensor plain = t.layout() == c10::kStrided ? t.resolve_conj().resolve_neg() : t.to_dense();
    for (std::int64_t d = 0; d < plain.dim(); ++d) {
      if (plain.stride(d) == 0 && plain.size(d) > 1) plain = plain.narrow(d, 0, 1);
    }
    if (plain.numel() > 0 && plain.numel() <= kLiteral && literals_ + plain.numel() <= kLiterals) {
      literals_ += plain.numel();
      values = "torch.tensor(" + python_list(plain) + ", dtype=" + python_dtype(t.scalar_type()) + ")";
    } else if (plain.numel() == 0) {
      values = "torch.empty(" + tuple_of(plain.sizes()) + ", dtype=" + python_dtype(t.scalar_type()) + ")";
    } else {
      const bool as_real = plain.scalar_type() == at::kComplexDouble;  // safetensors has no word for it
      saved.push_back({key_ + name, as_real ? at::view_as_real(plain).contiguous() : plain});
      values = "saved[" + python_text(key_ + name) + "]";
      if (as_real) values = "torch.view_as_complex(" + values + ")";
    }
    if (t.layout() == c10::kSparse) {
      values += ".to_sparse()";
    } else {
      values = layout_of(t, values);
    }
    std::string variable = variable_of(name);
    std::replace(variable.begin(), variable.end(), '.', '_');
    body_ += folded(variable + " = " + values) + "\n";
    written_.emplace_back(t, variable);
    return variable;
  }

  std::string argument(const std::string& name, const c10::IValue& value, const c10::Argument& known) {
    if (value.isTensor()) return tensor(name, value.toTensor());
    if (value.isGenerator()) return "None";
    if (!value.isList()) return python_scalar(value, known);
    const auto items = value.toListRef();
    const bool tensors = std::any_of(items.begin(), items.end(), [](const c10::IValue& i) { return i.isTensor(); });
    if (!tensors) return python_scalar(value, known);
    const bool all = std::all_of(items.begin(), items.end(), [](const c10::IValue& i) {
      return i.isTensor() && i.toTensor().defined() && i.toTensor().is_contiguous();
    });
    const std::string variable = variable_of(name);
    if (items.size() > kNamed && all) {
      for (std::size_t i = 0; i < items.size(); ++i)
        saved.push_back({key_ + name + "." + std::to_string(i), items[i].toTensor()});
      body_ +=
          variable + " = [saved[f\"" + key_ + name + ".{i}\"] for i in range(" + std::to_string(items.size()) + ")]\n";
    } else {
      std::string list;
      for (std::size_t i = 0; i < items.size(); ++i)
        list += (i == 0 ? "" : ", ") + argument(name + "." + std::to_string(i), items[i], known);
      body_ += folded(variable + " = [" + list + "]") + "\n";
    }
    return variable;
  }

  static bool is_default(const c10::Argument& known, const c10::IValue& value) {
    const auto& usual = known.default_value();
    if (!usual) return false;
    if (value.isNone() || usual->isNone()) return value.isNone() && usual->isNone();
    if (value.isBool() && usual->isBool()) return value.toBool() == usual->toBool();
    if (value.isInt() && usual->isInt()) return value.toInt() == usual->toInt();
    if (value.isDouble() && usual->isDouble()) return value.toDouble() == usual->toDouble();
    return false;
  }

  std::string variable_of(const std::string& name) const {
    return key_.empty() ? python_name(name) : "forward_" + name;
  }

  // "torch.ops.aten.log.default(self)"; copied: arguments of which a copy is given.
  std::string called(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments,
                     const std::vector<bool>& copied = {}) {
    const auto& known = schema.arguments();
    op_ = schema.name();
    std::vector<std::string> positional;
    std::string named;
    std::size_t needed = 0;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const c10::IValue& value = arguments[i];
      const bool usual = is_default(known[i], value) || value.isGenerator();
      if (known[i].kwarg_only()) {
        if (!usual) named += ", " + known[i].name() + "=" + argument(known[i].name(), value, known[i]);
        continue;
      }
      positional.push_back(argument(known[i].name(), value, known[i]));
      if (i < copied.size() && copied[i] && value.isTensor()) positional.back() += ".clone()";
      if (!usual) needed = positional.size();
    }
    positional.resize(needed);
    std::string name = schema.name();
    name.replace(name.find("::"), 2, ".");
    const std::string overload = schema.overload_name();
    std::string line = "torch.ops." + name + "." + (overload.empty() ? "default" : overload) + "(";
    for (std::size_t i = 0; i < positional.size(); ++i) line += (i == 0 ? "" : ", ") + positional[i];
    if (positional.empty() && !named.empty()) named = named.substr(2);
    return line + named + ")";
  }

  std::string issue() {
    std::string line = called(*call_.schema, call_.arguments);
    if (call_.results == 1) line = "result = " + line;
    if (call_.results > 1) line = "results = " + line;
    std::string before;
    if (call_.is_random) {
      saved.push_back({"random_state", call_.random_state});
      before = "torch.set_rng_state(saved[\"random_state\"])\n";
    }
    return "\n" + before + folded(line) + "\n";
  }

  // The call of forward that it is part of the derivative of, and that derivative by autograd.
  std::string shown(const BackwardCall& back) {
    body_.clear();
    key_ = "forward.";
    const std::string line = called(*back.schema, back.arguments, back.written);
    std::string leaves;
    std::set<std::string> listed;
    for (std::size_t i = 0; i < back.arguments.size(); ++i) {
      const c10::IValue& value = back.arguments[i];
      std::vector<at::Tensor> wanted;
      for (std::size_t k = 0; k < back.leaves[i].size(); ++k) {
        if (back.leaves[i][k]) wanted.push_back(value.isTensor() ? value.toTensor() : value.toListRef()[k].toTensor());
      }
      for (const at::Tensor& leaf : wanted) {
        std::string name = "*" + variable_of(back.schema->arguments()[i].name());  // a list that is one variable
        for (const auto& [known, variable] : written_) name = known.is_same(leaf) ? variable : name;
        if (listed.insert(name).second) leaves += (leaves.empty() ? "" : ", ") + name;
      }
    }
    const std::string result = back.results == 1 ? "forward_result" : "forward_results";
    const std::string of = back.results == 1 ? result : result + "[" + std::to_string(back.result) + "]";
    const std::string gradient = tensor("gradient", back.gradient);
    return "\n# The operator above is a part of the derivative of this call, here by autograd, with the gradient that "
           "it was given in the step.\n" +
           body_ + "leaves = [" + leaves + "]\nfor leaf in leaves:\n    leaf.requires_grad_()\n" +
           (back.is_random ? "torch.manual_seed(0)\n" : "") + folded(result + " = " + line) +
           "\ngradients = torch.autograd.grad(" + of + ", leaves, " + gradient + ", allow_unused=True)\n" +
           "print(*gradients, sep=\"\\n\")\n\n"
           "assert not all(g is None or torch.isfinite(g).all() for g in gradients), \"the gradients are finite\"\n"
           "print(\"a gradient is not finite, as recorded\")\n";
  }

  // Counts what is not finite in results that may be tensors or lists of them.
  std::string judged() const {
    std::string what = call_.results == 0 ? "" : call_.results == 1 ? "result" : "*results";
    for (const std::string& name : call_.written) what += (what.empty() ? "" : ", ") + python_name(name);
    const std::string count = std::to_string(call_.nan + call_.inf);
    const std::string reported = "assert bad == " + count + ", f\"{bad} values are not finite; recorded were " + count +
                                 "\"\nprint(bad, \"values are not finite, as recorded\")\n";
    const std::string shown = "outputs = [" + what + "]\nprint(*outputs, sep=\"\\n\")\n";
    if (call_.plain) return shown + "\nbad = sum(int((~torch.isfinite(t)).sum()) for t in outputs)\n" + reported;
    return shown +
           "\n\ndef flat(value):\n"
           "    if isinstance(value, torch.Tensor):\n"
           "        return [torch.view_as_real(value) if value.is_complex() else value]\n"
           "    return [t for item in value for t in flat(item)] if isinstance(value, (list, tuple)) else []\n\n\n"
           "bad = sum(int((~torch.isfinite(t.to_dense())).sum()) for t in flat(outputs) if "
           "t.is_floating_point())\n" +
           reported;
  }

  const TakeCall& call_;
  const std::string tensor_file_;
  const ScriptSources& sources_;
  std::string body_, op_, key_;  // of what is being written: its operator; what is before the names of its tensors
  std::int64_t literals_ = 0;
  std::vector<std::pair<at::Tensor, std::string>> written_;
};

std::string text_at(const json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

BirthHint hint_of(const json& about) {
  BirthHint hint;
  if (!about.contains("alarm") || !about["alarm"].is_object()) return hint;
  const json& alarm = about["alarm"];
  if (!alarm.contains("births") || !alarm["births"].is_array() || alarm["births"].empty()) return hint;
  const json& birth = alarm["births"][0];
  hint.op = text_at(birth, "op");
  hint.file = text_at(birth, "file");
  hint.backward = text_at(birth, "phase") == "backward";
  hint.node = text_at(birth, "node");
  if (birth.is_object() && birth.contains("line") && birth["line"].is_number_unsigned())
    hint.line = birth["line"].get<std::uint32_t>();
  return hint;
}

// What is above the code: nothing from the capsule ends the string that it is in.
std::string harmless(std::string text) {
  for (char& c : text) {
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20) c = c == '"' ? '\'' : ' ';
  }
  return text;
}

// elsewhere: the operator was not called here.
std::string head_of(const capture::Tape& tape, std::size_t index, const TakeCall& call, const BirthHint& hint,
                    const BackwardCall* backward, bool elsewhere) {
  const std::string name = call_name(tape, index);
  std::string place = place_of(tape, index);
  if (place.empty() && !hint.file.empty() && tape.operators[tape.entries[index].number].name == hint.op) {
    place = "  " + hint.file.substr(hint.file.rfind('/') + 1) + ":" + std::to_string(hint.line);
  }
  std::string text =
      "\"\"\"" + name + " gives " + std::to_string(call.nan) + " NaN and " + std::to_string(call.inf) + " Inf.\n\n";
  if (!place.empty()) text += harmless("Called by" + place) + "\n";
  const capture::Entry& entry = tape.entries[index];
  if (backward != nullptr)
    text += "It is a part of the derivative of " + call_name(tape, backward->index) + ", which is shown below.\n";
  else if (entry.of_backward || hint.backward)
    text += "It is a part of a derivative, of which only this call is shown.\n";
  else if (entry.place != capture::kNoPlace)
    text += "Only this call of forward is shown, without its backward.\n";
  if (elsewhere) {
    text += "The operator is one of " + capture::main_device(tape) +
            ": move the tensors there before the call. On the CPU, where they come from, it\n" +
            "was computed by plain operations.\n";
  }
  const std::string* torch = tape.setting("torch");
  text += "Taken from a recorded training step" + (torch == nullptr ? "" : ", torch " + harmless(*torch)) +
          ", by finitude replay --script.\n";
  return text + "\"\"\"\n";
}

}  // namespace

Status write_script(const std::string& path, const capture::Tape& tape, const json& about, const PlayOptions& options,
                    const ScriptSources& sources, Played* played) {
  FindBirth find(tape);
  *played = play(tape, options, &find);
  if (!played->missing.empty() || !played->why_not.empty()) return {};
  const BirthHint hint = hint_of(about);
  const std::optional<std::size_t> index = find.birth(hint);
  if (!index)
    return Status(StatusCode::kUnsupported, "is not written: no call of the step makes finite values into others");
  TakeCall call(*index);
  *played = play(tape, options, &call);
  if (!played->missing.empty() || !played->why_not.empty()) return {};
  const std::filesystem::path file(path);
  std::filesystem::path tensor_file = file;
  tensor_file.replace_extension(".safetensors");
  if (tensor_file == file) tensor_file += ".tensors";
  Script script(call, tensor_file.filename().string(), sources);
  const capture::Operator& op = tape.operators[tape.entries[*index].number];
  const bool elsewhere = played->otherwise.contains(op.overload.empty() ? op.name : op.name + "." + op.overload);
  const std::optional<BackwardCall> backward = backward_of(tape, *index, hint.node, options);
  const BackwardCall* shown = backward ? &*backward : nullptr;
  const std::string text = script.text(head_of(tape, *index, call, hint, shown, elsewhere), shown);
  if (!script.saved.empty()) {
    if (const Status status = save_tensors(tensor_file.string(), script.saved); !status.ok()) return status;
  }
  return base::write_whole(path, {text});
}

}  // namespace finitude::replay
