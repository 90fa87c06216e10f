// Tapes and events made manually, for tests.
#pragma once

#include <string>
#include <vector>

#include "capture/raw_tape.h"
#include "capture/tape_values.h"

namespace finitude::capture {

inline Value tensor_value(StorageId storage, std::vector<std::int64_t> sizes, std::int64_t offset = 0) {
  Value value;
  value.kind = Value::kTensor;
  TensorRef& t = value.tensors.emplace_back();
  t.storage = storage;
  t.dtype = 6;  // float32
  t.offset = offset;
  t.strides.resize(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) t.strides[d] = stride;
  t.sizes = std::move(sizes);
  return value;
}

inline Value int_value(std::int64_t number) {
  Value value;
  value.kind = Value::kInt;
  value.number = number;
  return value;
}

inline Value list_value(std::vector<Value> items) {
  Value value;
  value.kind = Value::kList;
  value.items = std::move(items);
  return value;
}

// Writes events as the recorder does.
class RawBuilder {
 public:
  std::uint32_t op(const std::string& name, std::uint64_t writes = 0) {
    raw.operators.push_back({{name, ""}, writes});
    return static_cast<std::uint32_t>(raw.operators.size()) - 1;
  }
  // A storage that the next event shows first.
  StorageId storage(std::uint64_t size_bytes, const std::string& bytes = "") {
    RawStorage& s = raw.storages.emplace_back();
    s.size_bytes = size_bytes;
    s.first_seen = events_ + 1;
    s.is_input = !bytes.empty();
    s.bytes = bytes;
    return static_cast<StorageId>(raw.storages.size()) - 1;
  }
  std::uint64_t start(std::uint32_t op, const std::vector<Value>& args, std::uint64_t thread = 1,
                      std::uint32_t place = kNoPlace, bool of_backward = false, std::uint32_t traced = kNotTraced) {
    WireWriter out(&raw.events);
    out.u8(static_cast<std::uint8_t>(RawEvent::kStart));
    out.var(thread);
    out.var(op);
    out.u8(1);
    out.var(place == kNoPlace ? 0 : std::uint64_t{place} + 1);
    out.u8(of_backward);
    out.var(traced == kNotTraced ? 0 : std::uint64_t{traced} + 1);
    write_values(out, args);
    return ++events_;
  }
  void end(std::uint64_t start, const std::vector<Value>& results, bool reported = true) {
    WireWriter out(&raw.events);
    out.u8(static_cast<std::uint8_t>(RawEvent::kEnd));
    out.var(start);
    out.u8(reported);
    write_values(out, results);
    ++events_;
  }
  void call(std::uint32_t op, const std::vector<Value>& args, const std::vector<Value>& results) {
    end(start(op, args), results);
  }
  void fill(StorageId id, const std::string& bytes, std::uint32_t allocation = kNotTraced) {
    WireWriter out(&raw.events);
    out.u8(static_cast<std::uint8_t>(RawEvent::kFill));
    out.var(id);
    out.var(0);
    out.text(bytes);
    out.var(allocation == kNotTraced ? 0 : std::uint64_t{allocation} + 1);
    ++events_;
  }
  void random(std::uint32_t generator, const std::string& state) {
    WireWriter out(&raw.events);
    out.u8(static_cast<std::uint8_t>(RawEvent::kRandom));
    out.var(generator);
    out.text(state);
    ++events_;
  }

  void exchange(const std::string& op, const std::vector<Value>& args, std::uint64_t thread = 1,
                std::uint32_t place = kNoPlace) {
    WireWriter out(&raw.events);
    out.u8(static_cast<std::uint8_t>(RawEvent::kExchange));
    out.var(thread);
    out.text(op);
    out.var(place == kNoPlace ? 0 : std::uint64_t{place} + 1);
    out.u8(0);
    write_values(out, args);
    ++events_;
  }

  RawTape raw;

 private:
  std::uint64_t events_ = 0;
};

// A tape with one of everything but notes.
inline Tape sample_tape() {
  Tape tape;
  tape.settings = {{"threads", "1"}, {"torch", "2.13.0"}};
  tape.operators = {{"aten::mul", "Tensor"}, {"aten::_foreach_add_", "List"}};
  tape.storages.resize(4);
  tape.storages[0] = {Storage::kInput, 16, 4, "parameter", "weight", std::string("0123456789abcdef"), "", {}};
  tape.storages[1] = {Storage::kBlank, 64, 0, "", "", "", "", {}};
  tape.storages[2] = {Storage::kProduced, 16, 0, "", "", "", "", {}};
  tape.storages[3] = {Storage::kInput, 8, 0, "buffer", "mean", "", "buffer.mean", {}};
  Entry random;
  random.kind = Entry::kRandom;
  random.bytes = "state";
  Entry fill;
  fill.kind = Entry::kFill;
  fill.number = 1;
  fill.offset = 4;
  fill.bytes = "abcd";
  Entry mul;
  mul.grad_mode = true;
  Value constant = tensor_value(kNoStorage, {});
  constant.tensors[0].flags = TensorRef::kWrappedNumber;
  constant.tensors[0].constant = "\1\2\3\4";
  mul.args = {tensor_value(0, {2, 2}), constant};
  mul.results = {tensor_value(2, {2, 2})};
  Entry foreach_add;
  foreach_add.number = 1;
  Value other;
  other.kind = Value::kDouble;
  other.real = -0.0;
  Value complex;
  complex.kind = Value::kComplex;
  complex.imag = 2;
  Value text;
  text.kind = Value::kString;
  text.text = "mean";
  Value sparse;
  sparse.kind = Value::kSparse;
  sparse.sizes = {5, 2};
  sparse.coalesced = true;
  sparse.tensors = {tensor_value(1, {1, 2}).tensors[0], tensor_value(2, {2, 2}).tensors[0]};
  foreach_add.args = {list_value({tensor_value(2, {4}, 0), tensor_value(1, {3, 2}, 5)}),  other, complex, text, sparse,
                      list_value({int_value(-7), int_value(1) /* two */, list_value({})})};
  foreach_add.args[0].items[1].tensors[0].strides = {1, 3};
  tape.entries = {random, fill, mul, foreach_add};
  tape.outcomes = {{"loss", "loss", tensor_value(2, {2, 2}), 0x1234567890abcdefu, {}}};
  tape.gaps = {"a gap"};
  return tape;
}

// The same, and it holds the content of all its inputs.
inline Tape whole_tape() {
  Tape tape = sample_tape();
  tape.storages[3].external.clear();
  tape.storages[3].bytes = "87654321";
  return tape;
}

// sample_tape() with memory and a generator of two GPUs.
inline Tape sample_tape_of_gpus() {
  Tape tape = sample_tape();
  tape.devices = {"cpu", "cuda:0", "cuda:1"};
  tape.generators = {{0, true}, {1, true}, {2, false}};
  tape.storages[0].device = tape.storages[2].device = 1;
  tape.storages[1].device = 2;
  Value device;
  device.kind = Value::kDevice;
  device.text = "cuda:1";
  tape.entries[2].args.push_back(device);
  return tape;
}

inline Tape sample_tape_with_notes() {
  Tape tape = sample_tape();
  tape.places = {{"/project/train.py", 12, "loss = (w * 3).sum()"}, {"/project/model.py", 7, "", "Net.head.0"}};
  tape.entries[2].place = 1;
  tape.entries[3].place = 0;
  tape.entries[3].of_backward = true;
  tape.outcomes[0].flaws = {true, 3, 1};
  tape.outcomes[0].sample_every = 2;
  tape.outcomes[0].sample = "01234567";
  Value group;
  group.kind = Value::kString;
  group.text = "0";
  tape.exchanges = {{3, "c10d::allreduce_", {list_value({tensor_value(2, {2, 2})}), group}, 0, true},
                    {4, "c10d::broadcast_", {}, kNoPlace, false}};
  return tape;
}

}  // namespace finitude::capture
