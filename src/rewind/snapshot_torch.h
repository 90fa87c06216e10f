// What a rewind needs of the start of a window: random number generators and buffers. (Frames: frames_python.h;
// batches: loader_torch.h.) All with the GIL held.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <Python.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "observe/buffer_snapshot_torch.h"
#include "rewind/rng_generators_python.h"

namespace finitude::bindings {

// A torch.Generator of the CPU: what its get_state() holds, without the tensor that get_state() makes.
struct TorchRng {
  bool taken = false;
  const void* of = nullptr;         // of the program's own: whose, an address to know it again by
  std::optional<float> next_float;  // the second of a pair of normal numbers, not yet asked for
  std::optional<double> next_double;
  at::mt19937_data_pod engine;
};

// struct mt19937_state of numpy: uint32 key[624], int pos. struct RandomObject of CPython: int index, uint32
// state[624].
struct TwisterRng {
  bool taken = false;
  std::array<std::uint8_t, 625 * 4> bytes;
};

// A generator of a GPU: seed and offset, both kept on the host.
struct DeviceRng {
  bool taken = false;
  std::uint64_t seed = 0, offset = 0;
};

// 8 KB that are filled in place; nothing is allocated unless the program has generators of its own. All words of a
// Mersenne Twister change together, every 624 draws or by seeding: where the first few are those that a state holds
// already, only the position is taken.
struct RngState {
  TorchRng torch_cpu;
  TwisterRng python;                 // random's
  TwisterRng numpy;                  // numpy.random's global one; not taken before numpy is imported
  std::vector<TorchRng> own;         // the program's own torch.Generator objects, as watched
  std::vector<StreamState> streams;  // the program's own of numpy's and Python's; not part of what a capsule holds
  std::vector<DeviceRng> devices;    // of GPUs, as watched
};

void take_rng(RngState* state) noexcept;
// Streams of the program's own are not compared.
bool same(const RngState& a, const RngState& b);
// As what a capsule holds, and back. False: the bytes are no such states.
std::string rng_bytes(const RngState& state);
bool rng_from_bytes(std::string_view bytes, RngState* state);
void restore_rng(const RngState& state) noexcept;
// The program has a new source of random numbers since `state` was taken: it is looked for, and `state` taken again.
void watch_new_stream(RngState* state);
// As a tape holds it (observe::generator_state); empty where it was not taken.
std::string tape_state(const TorchRng& state);
// Address of numpy's legacy global state (0: unknown); sizes are of struct mt19937_state.
void set_numpy_state_address(std::uintptr_t address) noexcept;
void set_python_random(PyObject* instance) noexcept;
// CPU generators of the program that are part of every snapshot from now on.
void watch_generators(std::vector<at::Generator> generators);
// The same of GPUs: their default ones and the program's own.
void watch_device_generators(std::vector<at::Generator> generators);

// "cuda:0", of one that is watched.
std::string device_of_generator(std::size_t index);

// With its time on the meter.
struct BufferSnapshot : observe::BufferSnapshot {
  void take() noexcept;
  bool turned_nan() const noexcept;
};

}  // namespace finitude::bindings
