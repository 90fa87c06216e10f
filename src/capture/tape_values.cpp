#include "capture/tape_values.h"

#include <algorithm>

namespace finitude::capture {
namespace {

constexpr int kMaxDepth = 4;           // a list of lists of tensors is the deepest there is
constexpr std::uint8_t kPlain = 0x80;  // strides are those of a contiguous tensor, the offset is zero
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 48;

bool contiguous(const TensorParts& tensor) {
  std::int64_t expected = 1;
  for (std::size_t d = tensor.ndim; d-- > 0;) {
    if (tensor.strides[d] != expected) return false;
    expected *= std::max<std::int64_t>(tensor.sizes[d], 1);
  }
  return true;
}

TensorRef read_tensor(WireReader& in) {
  TensorRef tensor;
  const std::uint8_t flags = in.u8();
  tensor.flags = flags & ~kPlain;
  tensor.dtype = in.u8();
  const std::uint64_t storage = in.var(std::uint64_t{kNoStorage});
  tensor.storage = storage == 0 ? kNoStorage : static_cast<StorageId>(storage - 1);
  const std::size_t ndim = static_cast<std::size_t>(in.var(kMaxDims));
  for (std::size_t d = 0; d < ndim && in.ok(); ++d)
    tensor.sizes.push_back(static_cast<std::int64_t>(in.var(kMaxExtent)));
  if ((flags & kPlain) == 0) {
    for (std::size_t d = 0; d < ndim && in.ok(); ++d)
      tensor.strides.push_back(static_cast<std::int64_t>(in.var(kMaxExtent)));
    tensor.offset = static_cast<std::int64_t>(in.var(kMaxExtent));
  } else {
    tensor.strides.resize(tensor.sizes.size());
    std::int64_t stride = 1;
    for (std::size_t d = tensor.sizes.size(); d-- > 0;) {
      tensor.strides[d] = stride;
      if (__builtin_mul_overflow(stride, std::max<std::int64_t>(tensor.sizes[d], 1), &stride)) in.fail();
    }
  }
  if (tensor.storage == kNoStorage) tensor.constant = in.text();
  return tensor;
}

Value read_value(WireReader& in, int depth) {
  Value value;
  const std::uint8_t kind = in.u8();
  if (kind > Value::kList || depth > kMaxDepth) in.fail();
  if (!in.ok()) return value;
  value.kind = static_cast<Value::Kind>(kind);
  switch (value.kind) {
    case Value::kInt:
    case Value::kGenerator:
      value.number = in.zigzag();
      break;
    case Value::kDouble:
      value.real = in.f64();
      break;
    case Value::kComplex:
      value.real = in.f64();
      value.imag = in.f64();
      break;
    case Value::kString:
    case Value::kDevice:
      value.text = in.text();
      break;
    case Value::kTensor:
      value.tensors.push_back(read_tensor(in));
      break;
    case Value::kSparse: {
      const std::size_t ndim = static_cast<std::size_t>(in.var(kMaxDims));
      for (std::size_t d = 0; d < ndim && in.ok(); ++d)
        value.sizes.push_back(static_cast<std::int64_t>(in.var(kMaxExtent)));
      value.coalesced = in.u8() != 0;
      value.tensors.push_back(read_tensor(in));
      value.tensors.push_back(read_tensor(in));
      break;
    }
    case Value::kList: {
      const std::size_t count = in.count();
      for (std::size_t i = 0; i < count && in.ok(); ++i) value.items.push_back(read_value(in, depth + 1));
      break;
    }
    default:
      break;
  }
  return value;
}

TensorParts parts_of(const TensorRef& tensor) {
  return {tensor.storage,      tensor.dtype,           tensor.flags,
          tensor.offset,       tensor.sizes.data(),    tensor.strides.data(),
          tensor.sizes.size(), tensor.constant.data(), tensor.constant.size()};
}

}  // namespace

std::size_t item_bytes(std::uint8_t dtype) noexcept {
  // uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool; the quantised
  // ones; bfloat16; ...; the 8-bit floats; uint16 uint32 uint64.
  static constexpr std::uint8_t kBytes[] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 0, 0, 0,
                                            2, 0, 0, 0, 0, 0, 1, 2, 1, 1, 1,  1, 2, 4, 8};
  if (dtype == 44) return 1;  // float8_e8m0fnu
  return dtype < sizeof kBytes ? kBytes[dtype] : 0;
}

bool is_device_name(std::string_view name) noexcept {
  const std::string_view type = device_type(name);
  if (type.empty() || name.size() > 32) return false;
  if (!std::all_of(type.begin(), type.end(), [](char c) { return c >= 'a' && c <= 'z'; })) return false;
  if (type.size() == name.size()) return true;
  const std::string_view index = name.substr(type.size() + 1);
  return !index.empty() && index.size() <= 3 &&
         std::all_of(index.begin(), index.end(), [](char c) { return c >= '0' && c <= '9'; });
}

const std::string& main_device(const Tape& tape) noexcept {
  static const std::string cpu = "cpu";
  return tape.devices.size() > 1 ? tape.devices[1] : cpu;
}

GeneratorHome generator_home(const Tape& tape, std::size_t number) noexcept {
  return number < tape.generators.size() ? tape.generators[number] : GeneratorHome{0, number == 0};
}

void write_tensor(WireWriter& out, const TensorParts& tensor) {
  const bool plain = tensor.offset == 0 && contiguous(tensor);
  out.u8(static_cast<std::uint8_t>(tensor.flags | (plain ? kPlain : 0)));
  out.u8(tensor.dtype);
  out.var(tensor.storage == kNoStorage ? 0 : std::uint64_t{tensor.storage} + 1);
  out.var(tensor.ndim);
  for (std::size_t d = 0; d < tensor.ndim; ++d) out.var(static_cast<std::uint64_t>(tensor.sizes[d]));
  if (!plain) {
    for (std::size_t d = 0; d < tensor.ndim; ++d) out.var(static_cast<std::uint64_t>(tensor.strides[d]));
    out.var(static_cast<std::uint64_t>(tensor.offset));
  }
  if (tensor.storage == kNoStorage) out.text({static_cast<const char*>(tensor.constant), tensor.constant_bytes});
}

void write_value(WireWriter& out, const Value& value) {
  out.u8(value.kind);
  switch (value.kind) {
    case Value::kInt:
    case Value::kGenerator:
      out.zigzag(value.number);
      break;
    case Value::kDouble:
      out.f64(value.real);
      break;
    case Value::kComplex:
      out.f64(value.real);
      out.f64(value.imag);
      break;
    case Value::kString:
    case Value::kDevice:
      out.text(value.text);
      break;
    case Value::kTensor:
      write_tensor(out, parts_of(value.tensors[0]));
      break;
    case Value::kSparse:
      out.var(value.sizes.size());
      for (const std::int64_t size : value.sizes) out.var(static_cast<std::uint64_t>(size));
      out.u8(value.coalesced);
      for (const TensorRef& tensor : value.tensors) write_tensor(out, parts_of(tensor));
      break;
    case Value::kList:
      write_values(out, value.items);
      break;
    default:
      break;
  }
}

void write_values(WireWriter& out, const std::vector<Value>& values) {
  out.var(values.size());
  for (const Value& value : values) write_value(out, value);
}

Value read_value(WireReader& in) { return read_value(in, 0); }

std::vector<Value> read_values(WireReader& in) {
  std::vector<Value> values;
  const std::size_t count = in.count();
  for (std::size_t i = 0; i < count && in.ok(); ++i) values.push_back(read_value(in, 0));
  return values;
}

}  // namespace finitude::capture
