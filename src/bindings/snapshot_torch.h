// What a rewind needs of the start of a window: random number generators and buffers. (Frames: frames_python.h;
// batches: loader_torch.h.) All with the GIL held.
#pragma once

#include <Python.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace finitude::bindings {

struct RngState {
  std::vector<std::uint8_t> torch_cpu;    // CPUGeneratorImpl state, as get_state gives it
  std::vector<std::uint8_t> python;       // random's Mersenne Twister
  std::vector<std::uint8_t> numpy;        // numpy.random's global one; empty before numpy is imported
  std::vector<std::vector<std::uint8_t>> own;  // the program's own torch.Generator objects, as watched
};

void take_rng(RngState* state) noexcept;
void restore_rng(const RngState& state) noexcept;
// Address of numpy's legacy global state (0: unknown); sizes are of struct mt19937_state.
void set_numpy_state_address(std::uintptr_t address) noexcept;
void set_python_random(PyObject* instance) noexcept;
// CPU generators of the program that are part of every snapshot from now on.
void watch_generators(std::vector<at::Generator> generators);

// Copies of the watched buffers. `watch` keeps weak references only.
struct BufferSnapshot {
  void watch(const std::vector<at::Tensor>& buffers);
  void take() noexcept;
  void restore() noexcept;
  // A buffer holds NaN now and held none when the copy was taken.
  bool turned_nan() const noexcept;
  std::size_t size_bytes() const noexcept { return bytes_.size(); }

 private:
  struct Item {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    std::size_t offset, size_bytes;
    std::uint32_t version;
  };
  std::vector<Item> items_;
  std::vector<char> bytes_;
};

}  // namespace finitude::bindings
