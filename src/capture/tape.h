// The tape of a step: the straight list of operator calls that computed it, in plain data. Tensors are named
// by the memory they lie in (a storage) and by how they lie in it, so that views need no entry of their own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace finitude::capture {

using StorageId = std::uint32_t;
inline constexpr StorageId kNoStorage = 0xffffffff;
inline constexpr std::size_t kMaxDims = 64;
inline constexpr std::uint32_t kNoPlace = 0xffffffff;
inline constexpr std::uint32_t kNotTraced = 0xffffffff;
inline constexpr std::size_t kMaxDevices = 256;
inline constexpr std::uint64_t kMaxSample = 1024;  // elements of an outcome that are kept

// A dense tensor. Sizes and strides in elements; strides and offset are never negative.
struct TensorRef {
  enum Flag : std::uint8_t { kWrappedNumber = 1, kConjugate = 2, kNegative = 4 };
  StorageId storage = kNoStorage;  // kNoStorage: a constant, whose bytes are `constant`
  std::uint8_t dtype = 0;          // number of the c10::ScalarType
  std::uint8_t flags = 0;
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes, strides;
  std::string constant;
};

// An argument or a result of an operator.
struct Value {
  enum Kind : std::uint8_t {
    kNone = 0,
    kInt = 1,
    kDouble = 2,
    kFalse = 3,
    kTrue = 4,
    kComplex = 5,
    kString = 6,
    kDevice = 7,
    kGenerator = 8,
    kTensor = 9,
    kUndefined = 10,
    kSparse = 11,
    kList = 12,
  };
  Kind kind = kNone;
  std::int64_t number = 0;          // kInt; the index of a kGenerator, 0 being the default one
  double real = 0, imag = 0;        // kDouble, kComplex
  std::string text;                 // kString, kDevice
  std::vector<TensorRef> tensors;   // one of a kTensor; indices and values of a kSparse
  std::vector<std::int64_t> sizes;  // of a kSparse
  bool coalesced = false;
  std::vector<Value> items;  // of a kList
};

struct Operator {
  std::string name, overload;  // "aten::add", "Tensor"
};

// Half open.
struct ByteRange {
  std::uint64_t begin = 0, end = 0;
};

struct Storage {
  enum Origin : std::uint8_t {
    kProduced = 0,  // by an operator on the tape
    kInput = 1,     // was there when the step began; `bytes` is its content
    kBlank = 2,     // was there, but is written before it is read: no content
  };
  Origin origin = kProduced;
  std::uint64_t size_bytes = 0;
  std::uint8_t misaligned = 0;  // address modulo 64: kernels may take other ways on other alignments
  std::string kind, name;       // "parameter", "head.weight"; empty: nobody named it
  std::string bytes;            // `size_bytes` of them, of a kInput
  std::string external;  // of a kInput: not empty where the file of the tape leaves its bytes to another, by this key
  // Of `bytes`, in order and apart: those that the step reads; empty: all. Only in the process that recorded it: see
  // keep_parts().
  std::vector<ByteRange> parts;
  std::uint8_t device = 0;  // where it lay: index into Tape::devices
  // As Entry::traced: record::Trace::storages, and where in that storage this one begins, in bytes.
  std::uint32_t traced = kNotTraced;
  std::uint64_t traced_begin = 0;
  std::uint32_t recorded = kNotTraced;  // RawTape::storages; also only in the process that recorded it
};

// A random number generator of the step.
struct GeneratorHome {
  std::uint8_t device = 0;  // index into Tape::devices
  bool is_default = false;  // the one that operators take which are given none
};

// One thing to do.
struct Entry {
  enum Kind : std::uint8_t {
    kCall = 0,
    kRandom = 1,  // set the generator `number` to the state in `bytes`
    kFill = 2,    // memory that no operator wrote: `bytes` go into the storage `number` at `offset`
  };
  Kind kind = kCall;
  std::uint32_t number = 0;  // kCall: index of the operator
  bool grad_mode = false;    // kernels read it
  std::uint64_t offset = 0;
  std::vector<Value> args, results;
  std::string bytes;
  // Line of the program, in Tape::places; kNoPlace: not known. of_backward: the call is one of a backward
  // node, and the line that of the forward call which the node belongs to.
  std::uint32_t place = kNoPlace;
  bool of_backward = false;
  // The op of the trace taken along with the tape, record::Trace::ops; of a kFill that which handed out memory that
  // nobody wrote since. kNotTraced: none. Only of a tape in the process that recorded it: its file does not say.
  std::uint32_t traced = kNotTraced;
};

// A line of the program.
struct Place {
  std::string file;  // absolute
  std::uint32_t line = 0;
  std::string source;    // its text; empty where it could not be read
  std::string module{};  // "Classifier.head", in which it ran: record::Stack::module; a line may be in several places
};

// How many values of a tensor were not finite.
struct Flaws {
  bool known = false;
  std::uint64_t nan = 0, inf = 0;
  bool finite() const { return nan == 0 && inf == 0; }
};

// What the step came to: replayed, these tensors have these checksums, or it is not the same step.
struct Outcome {
  std::string kind, name;  // "loss", "gradient" ...
  Value value;
  std::uint64_t checksum = 0;
  Flaws flaws{};
  // Every `sample_every`-th element of a dense one, in row-major order from the first on, as it was recorded: how far a
  // replay elsewhere is from it. At most kMaxSample of them; 0: none is known.
  std::uint64_t sample_every = 0;
  std::string sample{};
};

// A call of torch.distributed that exchanged values with other processes (c10d::allreduce_). Its results are fills
// behind it, so that a replay needs no other process; a replay of all processes together may issue it again.
struct Exchange {
  std::size_t before = 0;  // index of the entry that it came before; as many as there are entries: after the last one
  std::string op;
  // As its schema has them. The process group and the reduction are kStrings with their names ("0", "sum"). Empty where
  // one of them has no place on a tape.
  std::vector<Value> args;
  std::uint32_t place = kNoPlace;  // as Entry::place
  bool of_backward = false;
};

struct Tape {
  // Settings that kernels read, by name: threads, dtype, deterministic ...
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<Operator> operators;
  std::vector<Storage> storages;
  std::vector<Entry> entries;
  std::vector<Outcome> outcomes;
  std::vector<std::string> gaps;  // why it may not replay; empty as a rule
  // Operators that could not be put on it, which its file does not say: what they made is there as it came out.
  std::vector<std::string> refused;
  std::vector<Place> places;
  std::vector<Exchange> exchanges;  // in the order of their calls
  // "cpu" first, then what else memory lay on, as torch calls it: "cuda:0".
  std::vector<std::string> devices{"cpu"};
  // Of the traced run of the same step, as write_statistics gives them; a file of their own beside the tape's. Empty:
  // there are none.
  std::string statistics;
  std::vector<GeneratorHome>
      generators;  // by number; those that it does not say are of the CPU, number 0 its default one

  const std::string* setting(const std::string& name) const {
    for (const auto& [key, value] : settings) {
      if (key == name) return &value;
    }
    return nullptr;
  }
};

// What torch may call a device: "cuda:1". Letters, then a number or nothing.
bool is_device_name(std::string_view name) noexcept;
// "cuda" of "cuda:1".
inline std::string_view device_type(std::string_view name) noexcept { return name.substr(0, name.find(':')); }
// The device that the step ran on: the first one that is not the CPU, else "cpu".
const std::string& main_device(const Tape& tape) noexcept;
GeneratorHome generator_home(const Tape& tape, std::size_t number) noexcept;

// Bytes of an element, by the number of its c10::ScalarType; 0: unknown.
std::size_t item_bytes(std::uint8_t dtype) noexcept;

// Every dense tensor in a value.
template <typename Use>
void for_each_tensor(const Value& value, const Use& use) {
  for (const TensorRef& tensor : value.tensors) use(tensor);
  for (const Value& item : value.items) for_each_tensor(item, use);
}
template <typename Use>
void for_each_tensor(const std::vector<Value>& values, const Use& use) {
  for (const Value& value : values) for_each_tensor(value, use);
}

}  // namespace finitude::capture
