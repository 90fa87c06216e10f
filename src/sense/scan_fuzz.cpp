// Differential fuzzing: whatever the bytes, every kernel of this machine says what reference_scan says.
// The first bytes of an input say how the rest is read, so that a fuzzer reaches every dtype, misalignment,
// length beyond one block and layout.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "sense/differ.h"
#include "sense/scan_with.h"

namespace finitude::sense {
namespace {

constexpr DType kDTypes[] = {DType::kFloat64,        DType::kFloat32,    DType::kFloat16,       DType::kBFloat16,
                             DType::kComplex128,     DType::kComplex64,  DType::kComplex32,     DType::kFloat8E4M3FN,
                             DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2, DType::kFloat8E5M2FNUZ};

[[noreturn]] void fail(const char* what, const char* field, const char* isa, DType dtype, std::size_t numel) {
  std::fprintf(stderr, "%s: %s differs from the reference (%s, %s, %zu elements)\n", what, field, isa,
               info(dtype).name.data(), numel);
  std::abort();
}

void expect(const char* what, const char* field, const char* isa, DType dtype, std::size_t numel) {
  if (field != nullptr) fail(what, field, isa, dtype, numel);
}

struct Header {
  std::uint8_t dtype, shift, repeats, cut, size0, size1, stride0, stride1;
};

std::size_t element_bytes_of(DType dtype) {
  return info(dtype).size_bytes * static_cast<std::size_t>(info(dtype).reals_per_element);
}

void check_contiguous(const unsigned char* data, std::size_t numel, DType dtype, std::size_t cut) {
  const std::size_t size = element_bytes_of(dtype);
  const Health expected = reference_scan(data, numel, dtype);
  for (const Kernels* with : available_kernels()) {
    expect("full", differ(full_scan_with(*with, data, numel, dtype), expected, dtype), with->isa, dtype, numel);
    expect("quick", differ(quick_scan_with(*with, data, numel, dtype), expected, dtype), with->isa, dtype, numel);
  }
  const Health parts = merge(full_scan(data, cut, dtype), full_scan(data + cut * size, numel - cut, dtype));
  expect("merge", differ(parts, expected, dtype), "chosen", dtype, numel);
  const std::size_t first = first_non_finite(data, numel, dtype);
  const bool right = first == numel ? expected.ok()
                                    : first < numel && reference_scan(data, first, dtype).ok() &&
                                          !reference_scan(data + first * size, 1, dtype).ok();
  if (!right) fail("first_non_finite", "index", "chosen", dtype, numel);
}

// A two-dimensional view with any non-negative strides, against a copy of its elements.
void check_strided(const unsigned char* data, std::size_t numel, DType dtype, const Header& header) {
  const std::int64_t sizes[] = {header.size0 % 24, header.size1 % 24};
  const std::int64_t strides[] = {header.stride0 % 40, header.stride1 % 40};
  std::size_t reach = 1;
  for (int d = 0; d < 2; ++d) {
    if (sizes[d] > 0) reach += static_cast<std::size_t>((sizes[d] - 1) * strides[d]);
  }
  if (reach > numel) return;
  const std::size_t size = element_bytes_of(dtype);
  const auto count = static_cast<std::size_t>(sizes[0] * sizes[1]);
  const auto copy = std::make_unique<unsigned char[]>(count * size);
  std::size_t filled = 0;
  for (std::int64_t i = 0; i < sizes[0]; ++i) {
    for (std::int64_t j = 0; j < sizes[1]; ++j) {
      std::memcpy(copy.get() + filled++ * size, data + static_cast<std::size_t>(i * strides[0] + j * strides[1]) * size,
                  size);
    }
  }
  const Health expected = reference_scan(copy.get(), count, dtype);
  expect("full strided", differ(full_scan_strided(data, sizes, strides, 2, dtype), expected, dtype), "chosen", dtype,
         count);
  expect("quick strided", differ(quick_scan_strided(data, sizes, strides, 2, dtype), expected, dtype), "chosen", dtype,
         count);
}

}  // namespace
}  // namespace finitude::sense

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t input_size) {
  using namespace finitude::sense;
  Header header;
  if (input_size < sizeof header) return 0;
  std::memcpy(&header, input, sizeof header);
  input += sizeof header;
  input_size -= sizeof header;
  const DType dtype = kDTypes[header.dtype % std::size(kDTypes)];
  const std::size_t shift = header.shift % 64;
  // Mostly once; now and then so often that several blocks are full of it.
  const std::size_t repeats = header.repeats < 224 ? 1 : std::size_t{2} << (header.repeats % 8);
  const std::size_t bytes = input_size * repeats;
  // No byte more than what is scanned: a sanitizer sees the first one read beyond it.
  const auto memory = std::make_unique<unsigned char[]>(shift + bytes);
  for (std::size_t i = 0; i < repeats; ++i) {
    if (input_size != 0) std::memcpy(memory.get() + shift + i * input_size, input, input_size);
  }
  const std::size_t numel = bytes / element_bytes_of(dtype);
  const unsigned char* data = memory.get() + shift + bytes % element_bytes_of(dtype);
  check_contiguous(data, numel, dtype, numel * header.cut / 255);
  check_strided(data, numel, dtype, header);
  return 0;
}
