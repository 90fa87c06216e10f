// Values of a tape as bytes: in the events that the recorder leaves and in the file.
#pragma once

#include "capture/tape.h"
#include "capture/wire.h"

namespace finitude::capture {

// The recorder writes values straight from torch's, so the parts are to be had one by one.
struct TensorParts {
  StorageId storage = kNoStorage;
  std::uint8_t dtype = 0, flags = 0;
  std::int64_t offset = 0;
  const std::int64_t* sizes = nullptr;
  const std::int64_t* strides = nullptr;
  std::size_t ndim = 0;
  const void* constant = nullptr;  // where storage is kNoStorage
  std::size_t constant_bytes = 0;
};
void write_tensor(WireWriter& out, const TensorParts& tensor);
void write_value(WireWriter& out, const Value& value);
void write_values(WireWriter& out, const std::vector<Value>& values);

// Bounded in depth and by the bytes at hand. What is wrong makes in.ok() false.
Value read_value(WireReader& in);
std::vector<Value> read_values(WireReader& in);

}  // namespace finitude::capture
