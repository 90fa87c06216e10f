#include "replay/tape_script_torch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include "replay/tape_birth_torch.h"
#include "replay/tape_calls.h"
#include "replay/tape_literals_torch.h"
#include "replay/tape_save_torch.h"
#include "replay/tape_statistics_torch.h"

namespace finitude::replay {
namespace {

using nlohmann::json;

constexpr std::int64_t kLiteral = 64;      // elements of a tensor that is written as a literal
constexpr std::int64_t kLiterals = 256;    // of all of them together
constexpr std::size_t kNamed = 8;          // tensors of a list that have lines of their own
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
    for (const c10::IValue& argument : call.arguments) arguments.push_back(copied(argument));
  }
  bool after(const PlayedCall& call) override {
    if (call.index != index_) return true;
    results = call.results.size();
    const std::vector<NamedTensor> given = tensors_of(call.schema.returns(), call.results);
    for (const c10::IValue& result : call.results)
      plain = plain && result.isTensor() && result.toTensor().defined();
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

  // A dimension that only repeats one element keeps doing so.
  at::Tensor copied_tensor(const at::Tensor& t) {
    if (!t.defined() || t.layout() != c10::kStrided) return copy_of(t);
    for (const auto& [seen, copy] : known_) {
      if (seen.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl() ==
              t.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl() &&
          seen.storage_offset() == t.storage_offset() && seen.sizes() == t.sizes() &&
          seen.strides() == t.strides() && seen.scalar_type() == t.scalar_type())
        return copy;
    }
    at::Tensor base = t;
    for (std::int64_t d = 0; d < t.dim(); ++d) {
      if (t.stride(d) == 0 && t.size(d) > 1) base = base.narrow(d, 0, 1);
    }
    at::Tensor copy = base.clone();
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    copy = copy.sizes() == t.sizes() ? copy : copy.expand(t.sizes());
    known_.emplace_back(t, copy);
    return copy;
  }
  c10::IValue copied(const c10::IValue& value) {
    if (value.isTensor()) return copied_tensor(value.toTensor());
    if (!value.isList()) return value;
    c10::impl::GenericList list(value.toList().elementType());
    for (const c10::IValue& item : value.toListRef()) list.push_back(copied(item));
    return list;
  }

  const std::size_t index_;
  std::vector<std::pair<at::Tensor, at::Tensor>> known_;
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

  std::string text(const std::string& head) {
    const std::string issued = issue();
    std::string text = head + "\n";
    if (!saved.empty()) text += "import pathlib\n";
    const std::string code = body_ + issued;
    if (code.find("inf") != std::string::npos || code.find("nan") != std::string::npos)
      text += "from math import inf, nan\n";
    if (text.size() > head.size() + 1) text += "\n";
    text += "import torch\n";
    if (!saved.empty())
      text += "from safetensors.torch import load_file\n\nsaved = load_file(pathlib.Path(__file__).with_name(" +
              python_text(tensor_file_) + "))\n";
    return text + loaded() + "\n" + body_ + issued + judged();
  }

  std::vector<NamedTensor> saved;

 private:
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
    if (t.unsafeGetTensorImpl()->is_wrapped_number() && takes_numbers(call_.schema->name()))
      return python_list(t);
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
      saved.push_back({name, plain});
      values = "saved[" + python_text(name) + "]";
    }
    if (t.layout() == c10::kSparse) {
      values += ".to_sparse()";
    } else {
      values = layout_of(t, values);
    }
    std::string variable = python_name(name);
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
    const bool tensors =
        std::any_of(items.begin(), items.end(), [](const c10::IValue& i) { return i.isTensor(); });
    if (!tensors) return python_scalar(value, known);
    const bool all = std::all_of(items.begin(), items.end(), [](const c10::IValue& i) {
      return i.isTensor() && i.toTensor().defined() && i.toTensor().is_contiguous();
    });
    const std::string variable = python_name(name);
    if (items.size() > kNamed && all) {
      for (std::size_t i = 0; i < items.size(); ++i)
        saved.push_back({name + "." + std::to_string(i), items[i].toTensor()});
      body_ += variable + " = [saved[f\"" + name + ".{i}\"] for i in range(" +
               std::to_string(items.size()) + ")]\n";
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

  std::string issue() {
    const auto& known = call_.schema->arguments();
    std::vector<std::string> positional;
    std::string named;
    std::size_t needed = 0;
    for (std::size_t i = 0; i < call_.arguments.size(); ++i) {
      const c10::IValue& value = call_.arguments[i];
      const bool usual = is_default(known[i], value) || value.isGenerator();
      if (known[i].kwarg_only()) {
        if (!usual) named += ", " + known[i].name() + "=" + argument(known[i].name(), value, known[i]);
        continue;
      }
      positional.push_back(argument(known[i].name(), value, known[i]));
      if (!usual) needed = positional.size();
    }
    positional.resize(needed);
    std::string name = call_.schema->name();
    name.replace(name.find("::"), 2, ".");
    const std::string overload = call_.schema->overload_name();
    std::string line = "torch.ops." + name + "." + (overload.empty() ? "default" : overload) + "(";
    for (std::size_t i = 0; i < positional.size(); ++i) line += (i == 0 ? "" : ", ") + positional[i];
    if (positional.empty() && !named.empty()) named = named.substr(2);
    line += named + ")";
    if (call_.results == 1) line = "result = " + line;
    if (call_.results > 1) line = "results = " + line;
    std::string before;
    if (call_.is_random) {
      saved.push_back({"random_state", call_.random_state});
      before = "torch.set_rng_state(saved[\"random_state\"])\n";
    }
    return "\n" + before + folded(line) + "\n";
  }

  // Counts what is not finite in results that may be tensors or lists of them.
  std::string judged() const {
    std::string what = call_.results == 0 ? "" : call_.results == 1 ? "result" : "*results";
    for (const std::string& name : call_.written) what += (what.empty() ? "" : ", ") + python_name(name);
    const std::string count = std::to_string(call_.nan + call_.inf);
    const std::string told = "assert bad == " + count + ", f\"{bad} values are not finite; recorded were " +
                             count + "\"\nprint(bad, \"values are not finite, as recorded\")\n";
    const std::string shown = "outputs = [" + what + "]\nprint(*outputs, sep=\"\\n\")\n";
    if (call_.plain) return shown + "\nbad = sum(int((~torch.isfinite(t)).sum()) for t in outputs)\n" + told;
    return shown +
           "\n\ndef flat(value):\n"
           "    if isinstance(value, torch.Tensor):\n"
           "        return [torch.view_as_real(value) if value.is_complex() else value]\n"
           "    return [t for item in value for t in flat(item)] if isinstance(value, (list, tuple)) else []\n\n\n"
           "bad = sum(int((~torch.isfinite(t.to_dense())).sum()) for t in flat(outputs) if "
           "t.is_floating_point())\n" +
           told;
  }

  const TakeCall& call_;
  const std::string tensor_file_;
  const ScriptSources& sources_;
  std::string body_;
  std::int64_t literals_ = 0;
  std::vector<std::pair<at::Tensor, std::string>> written_;
};

std::string text_at(const json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>()
                                                                               : "";
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
  if (birth.is_object() && birth.contains("line") && birth["line"].is_number_unsigned())
    hint.line = birth["line"].get<std::uint32_t>();
  return hint;
}

// What stands above the code: nothing from the capsule ends the string that it stands in.
std::string harmless(std::string text) {
  for (char& c : text) {
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20) c = c == '"' ? '\'' : ' ';
  }
  return text;
}

// elsewhere: the operator was not called here.
std::string head_of(const capture::Tape& tape, std::size_t index, const TakeCall& call, const BirthHint& hint, bool elsewhere) {
  const std::string name = call_name(tape, index);
  std::string place = place_of(tape, index);
  if (place.empty() && !hint.file.empty() && tape.operators[tape.entries[index].number].name == hint.op) {
    place = "  " + hint.file.substr(hint.file.rfind('/') + 1) + ":" + std::to_string(hint.line);
  }
  std::string text = "\"\"\"" + name + " gives " + std::to_string(call.nan) + " NaN and " +
                     std::to_string(call.inf) + " Inf.\n\n";
  if (!place.empty()) text += harmless("Called by" + place) + "\n";
  if (elsewhere) {
    text += "The operator is one of " + capture::main_device(tape) + ": move the tensors there before the call. On the CPU, where they come from, it\n" +
            "was computed by plain operations.\n";
  }
  const std::string* torch = tape.setting("torch");
  text += "Taken from a recorded training step" +
          (torch == nullptr ? "" : ", torch " + harmless(*torch)) + ", by finitude replay --script.\n";
  return text + "\"\"\"\n";
}

}  // namespace

Status write_script(const std::string& path, const capture::Tape& tape, const json& about,
                    const PlayOptions& options, const ScriptSources& sources, Played* played) {
  FindBirth find(tape);
  *played = play(tape, options, &find);
  if (!played->missing.empty() || !played->why_not.empty()) return {};
  const BirthHint hint = hint_of(about);
  const std::optional<std::size_t> index = find.birth(hint);
  if (!index) return Status("is not written: no call of the step makes finite values into others");
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
  const std::string text = script.text(head_of(tape, *index, call, hint, elsewhere));
  if (!script.saved.empty()) {
    if (const Status status = save_tensors(tensor_file.string(), script.saved); !status.ok()) return status;
  }
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  return out ? Status() : Status("cannot be written");
}

}  // namespace finitude::replay
