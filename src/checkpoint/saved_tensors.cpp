#include "checkpoint/saved_tensors.h"

#include <algorithm>
#include <map>

namespace finitude::checkpoint {
namespace {

using Kind = PickleValue::Kind;
using sense::DType;

constexpr int kMaxDepth = 200;
constexpr std::size_t kMaxSteps = 4'000'000, kMaxRank = 64, kMaxName = 4096;

struct KnownType {
  std::string_view name, storage;  // the class of its storage; empty: it has none
  DType dtype;
  std::size_t bytes;
};
constexpr KnownType kTypes[] = {
    {"float32", "FloatStorage", DType::kFloat32, 4},
    {"float64", "DoubleStorage", DType::kFloat64, 8},
    {"float16", "HalfStorage", DType::kFloat16, 2},
    {"bfloat16", "BFloat16Storage", DType::kBFloat16, 2},
    {"complex64", "ComplexFloatStorage", DType::kComplex64, 8},
    {"complex128", "ComplexDoubleStorage", DType::kComplex128, 16},
    {"complex32", "", DType::kComplex32, 4},
    {"float8_e4m3fn", "", DType::kFloat8E4M3FN, 1},
    {"float8_e4m3fnuz", "", DType::kFloat8E4M3FNUZ, 1},
    {"float8_e5m2", "", DType::kFloat8E5M2, 1},
    {"float8_e5m2fnuz", "", DType::kFloat8E5M2FNUZ, 1},
    {"float8_e8m0fnu", "", DType::kOther, 1},
    {"float4_e2m1fn_x2", "", DType::kOther, 1},
    {"int64", "LongStorage", DType::kOther, 8},
    {"int32", "IntStorage", DType::kOther, 4},
    {"int16", "ShortStorage", DType::kOther, 2},
    {"int8", "CharStorage", DType::kOther, 1},
    {"uint8", "ByteStorage", DType::kOther, 1},
    {"bool", "BoolStorage", DType::kOther, 1},
    {"uint16", "", DType::kOther, 2},
    {"uint32", "", DType::kOther, 4},
    {"uint64", "", DType::kOther, 8},
    {"qint8", "QInt8Storage", DType::kOther, 1},
    {"quint8", "QUInt8Storage", DType::kOther, 1},
    {"qint32", "QInt32Storage", DType::kOther, 4},
    {"quint4x2", "QUInt4x2Storage", DType::kOther, 1},
    {"quint2x4", "QUInt2x4Storage", DType::kOther, 1},
};

ElementType made(const KnownType& known) { return {std::string(known.name), known.dtype, known.bytes}; }

std::optional<ElementType> type_of_storage(std::string_view name) {
  if (name == "UntypedStorage") return ElementType{"uint8", DType::kOther, 1};
  for (const KnownType& known : kTypes) {
    if (!known.storage.empty() && known.storage == name) return made(known);
  }
  return std::nullopt;
}

// Of optimizer state: means and sums of squares, and largest magnitudes.
constexpr std::string_view kSquares[] = {"exp_avg_sq",     "max_exp_avg_sq", "square_avg", "acc_delta", "exp_inf",
                                         "exp_avg_sq_row", "exp_avg_sq_col", "row_var",    "col_var",   "running_var"};
constexpr std::string_view kSquaresOfState[] = {"sum", "variance"};  // of Adagrad and Adafactor

std::string key_text(const PickleValue& key) {
  switch (key.kind) {
    case Kind::kText:
    case Kind::kBytes:
      return std::string(key.text.substr(0, kMaxName));
    case Kind::kInt:
    case Kind::kBool:
      return std::to_string(key.number);
    default:
      return "?";
  }
}

class Walk {
 public:
  Walk(const Pickle& pickle, std::vector<SavedTensor>* tensors) : pickle_(pickle), tensors_(*tensors) {}

  Status run() {
    visit(pickle_.root(), "", 0);
    return status_;
  }

 private:
  const PickleValue& at(ValueId id) const { return pickle_.at(id); }

  static std::string joined(const std::string& path, const std::string& key) {
    if (path.empty() || key.empty()) return path + key;
    return path.size() + key.size() < kMaxName ? path + "." + key : path;
  }

  void visit(ValueId id, const std::string& path, int depth) {
    if (!status_.ok()) return;
    if (++steps_ > kMaxSteps || depth > kMaxDepth) {
      status_ = Status(StatusCode::kTooLarge, "has a pickle that is nested too deep, or without end");
      return;
    }
    const PickleValue& value = at(id);
    switch (value.kind) {
      case Kind::kDict:
        visit_dict(value, path, depth);
        break;
      case Kind::kTuple:
      case Kind::kList:
      case Kind::kSet:
        for (std::size_t i = 0; i < value.items.size(); ++i)
          visit(value.items[i], joined(path, std::to_string(i)), depth + 1);
        break;
      case Kind::kObject:
        visit_object(value, path, depth);
        break;
      default:
        break;
    }
  }

  void visit_pairs(const PickleValue& value, const std::string& path, int depth) {
    for (std::size_t i = 0; i + 1 < value.items.size(); i += 2)
      visit(value.items[i + 1], joined(path, key_text(at(value.items[i]))), depth + 1);
  }

  void visit_dict(const PickleValue& value, const std::string& path, int depth) {
    const ValueId groups = pickle_.find(value, "param_groups"), state = pickle_.find(value, "state");
    const std::size_t first = tensors_.size();
    visit_pairs(value, path, depth);
    if (groups != kNoValue && state != kNoValue) name_parameters(at(groups), joined(path, "state"), first);
  }

  // Names of the parameters of an optimizer, where its groups have them.
  void name_parameters(const PickleValue& groups, const std::string& path, std::size_t first) {
    std::map<std::string, std::string> names;
    for (const ValueId id : groups.items) {
      const PickleValue& keys = at(pickle_.find(at(id), "params"));
      const PickleValue& words = at(pickle_.find(at(id), "param_names"));
      for (std::size_t i = 0; i < std::min(keys.items.size(), words.items.size()); ++i)
        names.emplace(key_text(at(keys.items[i])), key_text(at(words.items[i])));
    }
    for (std::size_t i = first; i < tensors_.size() && !names.empty(); ++i) {
      Tensor& view = tensors_[i].view;
      if (!view.name.starts_with(path + ".")) continue;
      const std::size_t begin = path.size() + 1, end = view.name.find('.', begin);
      if (const auto found = names.find(view.name.substr(begin, end - begin)); found != names.end())
        view.parameter = found->second;
    }
  }

  void visit_object(const PickleValue& object, const std::string& path, int depth) {
    const PickleValue& callable = at(object.callable);
    const std::string_view function = callable.kind == Kind::kGlobal ? pickle_.item(callable, 0).text : "";
    call(function, callable.text, object.arguments, path, depth);
    // What __setstate__ or __dict__ would get. A module's own dicts are no part of the names that its state dict has.
    if (const PickleValue& state = at(object.state); state.kind == Kind::kDict) {
      ++depth;
      for (std::size_t i = 0; i + 1 < state.items.size(); i += 2) {
        const std::string key = key_text(at(state.items[i]));
        const bool is_inside = key == "_parameters" || key == "_buffers" || key == "_modules" || key == "_local_tensor";
        visit(state.items[i + 1], is_inside ? path : joined(path, key), depth);
      }
    } else {
      visit(object.state, path, depth + 1);
    }
    if (object.has_pairs) {
      visit_pairs(object, path, depth);
    } else {
      for (std::size_t i = 0; i < object.items.size(); ++i)
        visit(object.items[i], joined(path, std::to_string(i)), depth + 1);
    }
  }

  void call(std::string_view function, std::string_view module, ValueId arguments, const std::string& path, int depth) {
    const PickleValue& given = at(arguments);
    const auto argument = [&](std::size_t n) { return n < given.items.size() ? given.items[n] : kNoValue; };
    if (module == "torch._utils" || module == "torch._tensor") {
      if (function == "_rebuild_tensor" || function == "_rebuild_tensor_v2") return add(given, nullptr, path);
      if (function == "_rebuild_tensor_v3") return add(given, &at(argument(6)), path);
      if (function == "_rebuild_parameter" || function == "_rebuild_parameter_with_state")
        return visit(argument(0), path, depth + 1);
      if (function == "_rebuild_from_type_v2") {  // (function, type, arguments, state)
        const PickleValue& inner = at(argument(0));
        if (inner.kind == Kind::kGlobal)
          call(pickle_.item(inner, 0).text, inner.text, argument(2), path, std::min(depth + 1, kMaxDepth));
        return visit(argument(3), path, depth + 1);
      }
      if (function == "_rebuild_sparse_tensor") {  // (layout, (indices, values, size, ...))
        const PickleValue& parts = at(argument(1));
        for (std::size_t i = 0; i < parts.items.size(); ++i)
          visit(parts.items[i], joined(path, i == 1 ? "values" : std::to_string(i)), depth + 1);
        return;
      }
    }
    visit(arguments, path, depth + 1);
  }

  void fail(const std::string& path) {
    status_ = Status(StatusCode::kCorrupt, "has a tensor that cannot be: " + (path.empty() ? "the only one" : path));
  }

  // Non-negative numbers of a tuple or a torch.Size.
  bool numbers(ValueId id, std::vector<std::int64_t>* into) const {
    const PickleValue* tuple = &at(id);
    if (tuple->kind == Kind::kObject) tuple = &pickle_.item(at(tuple->arguments), 0);
    if (tuple->kind != Kind::kTuple || tuple->items.size() > kMaxRank) return false;
    for (const ValueId item : tuple->items) {
      if (at(item).kind != Kind::kInt || at(item).number < 0) return false;
      into->push_back(at(item).number);
    }
    return true;
  }

  // (storage, offset, size, stride, ...)
  void add(const PickleValue& given, const PickleValue* dtype, const std::string& path) {
    SavedTensor tensor;
    tensor.view.name = path.empty() ? "tensor" : path;
    tensor.view.sign = sign_of(tensor.view.name);
    // ("storage", class, key, location, elements)
    const PickleValue& id = pickle_.item(pickle_.item(given, 0), 0);
    const PickleValue &storage = pickle_.item(id, 1), &key = pickle_.item(id, 2), &elements = pickle_.item(id, 4);
    const PickleValue& offset = pickle_.item(given, 1);
    const bool is_described = given.items.size() >= 4 && pickle_.item(given, 0).kind == Kind::kPersistent &&
                              id.kind == Kind::kTuple && storage.kind == Kind::kGlobal && key.kind == Kind::kText &&
                              elements.kind == Kind::kInt && elements.number >= 0 && offset.kind == Kind::kInt &&
                              offset.number >= 0;
    if (!is_described || !numbers(given.items[2], &tensor.view.shape) ||
        !numbers(given.items[3], &tensor.view.strides) || tensor.view.shape.size() != tensor.view.strides.size()) {
      return fail(path);
    }
    tensor.storage_key = key.text;
    tensor.view.offset = static_cast<std::uint64_t>(offset.number);
    tensor.storage_elements = static_cast<std::uint64_t>(elements.number);
    const std::string_view name = dtype != nullptr ? pickle_.item(*dtype, 0).text : pickle_.item(storage, 0).text;
    const std::optional<ElementType> type = dtype != nullptr ? element_type(name) : type_of_storage(name);
    if (!type) {
      status_ = Status(StatusCode::kUnsupported,
                       "has a tensor of a dtype that is not known here: " + std::string(name.substr(0, 80)));
      return;
    }
    tensor.type = *type;
    if (dtype != nullptr) tensor.storage_elements /= type->bytes;  // of an untyped storage, they are bytes
    tensors_.push_back(std::move(tensor));
  }

  const Pickle& pickle_;
  std::vector<SavedTensor>& tensors_;
  Status status_;
  std::size_t steps_ = 0;
};

}  // namespace

std::optional<ElementType> element_type(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (const KnownType& known : kTypes) {
    if (known.name == name) return made(known);
  }
  return std::nullopt;
}

Sign sign_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? name : name.substr(dot + 1);
  if (std::find(std::begin(kSquares), std::end(kSquares), last) != std::end(kSquares)) return Sign::kNotNegative;
  const bool is_state = name.starts_with("state.") || name.find(".state.") != std::string_view::npos;
  if (is_state && std::find(std::begin(kSquaresOfState), std::end(kSquaresOfState), last) != std::end(kSquaresOfState))
    return Sign::kNotNegative;
  return Sign::kAny;
}

Status find_tensors(const Pickle& pickle, std::vector<SavedTensor>* tensors) {
  tensors->clear();
  return Walk(pickle, tensors).run();
}

}  // namespace finitude::checkpoint
