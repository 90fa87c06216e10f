// main() of a fuzz target where the compiler has no libFuzzer: seeded random inputs for some seconds, no
// coverage feedback. It takes libFuzzer's options: -seed=N -runs=N -max_total_time=SECONDS -max_len=BYTES,
// and files to replay.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" void __sanitizer_set_death_callback(void (*)()) __attribute__((weak));

namespace {

using Input = std::vector<std::uint8_t>;

char crash_note[160];

void report_crash() {
  if (write(STDERR_FILENO, crash_note, std::strlen(crash_note)) < 0) return;
}

void on_signal(int signal) {
  report_crash();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Bytes that floating-point formats, sizes and flags take for special come up more often than the others.
std::uint8_t any_byte(std::mt19937_64& random) {
  static constexpr std::uint8_t kSpecial[] = {0x00, 0x01, 0x7f, 0x80, 0xff, 0x7c, 0xfc, 0xf8, 0xf0, 0x7e, 0x3f};
  const std::uint64_t pick = random();
  return pick % 3 == 0 ? kSpecial[(pick >> 8) % std::size(kSpecial)] : static_cast<std::uint8_t>(pick >> 8);
}

// Fresh bytes, or the input before with a few changes: cut, doubled, overwritten with a run of one byte.
Input next_input(const Input& before, std::size_t most, std::mt19937_64& random) {
  Input input;
  if (before.empty() || random() % 4 == 0) {
    const std::size_t roof = std::size_t{1} << (random() % 13);
    input.resize(random() % (roof < most ? roof + 1 : most + 1));
    const bool calm = random() % 3 == 0;  // without many special bytes, most blocks are finite
    for (std::uint8_t& byte : input) byte = calm ? static_cast<std::uint8_t>(0x38 + random() % 8) : any_byte(random);
    for (std::size_t i = 0; i < input.size() && i < 8; ++i) input[i] = static_cast<std::uint8_t>(random());
    return input;
  }
  input = before;
  for (std::uint64_t changes = 1 + random() % 4; changes != 0; --changes) {
    switch (random() % 4) {
      case 0:
        input.resize(random() % (input.size() + 1));
        break;
      case 1:
        if (2 * input.size() <= most) {
          const Input copy = input;
          input.insert(input.end(), copy.begin(), copy.end());
        }
        break;
      case 2:
        if (!input.empty()) {
          const std::size_t at = random() % input.size();
          const std::size_t count = 1 + random() % 64;
          const std::uint8_t byte = any_byte(random);
          for (std::size_t i = at; i < input.size() && i < at + count; ++i) input[i] = byte;
        }
        break;
      default:
        if (!input.empty()) input[random() % input.size()] = any_byte(random);
    }
  }
  return input;
}

bool option(const char* argument, const char* name, std::uint64_t* value) {
  const std::size_t length = std::strlen(name);
  if (std::strncmp(argument, name, length) != 0) return false;
  *value = std::strtoull(argument + length, nullptr, 10);
  return true;
}

bool replay(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path);
    return false;
  }
  const Input input{std::istreambuf_iterator<char>(file), {}};
  std::snprintf(crash_note, sizeof crash_note, "\nfailed on the file %s\n", path);
  LLVMFuzzerTestOneInput(input.data(), input.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seed = 1, runs = 0, seconds = 2, most = 4096;
  int replayed = 0;
  std::signal(SIGABRT, on_signal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(report_crash);
  for (int i = 1; i < argc; ++i) {
    if (option(argv[i], "-seed=", &seed) || option(argv[i], "-runs=", &runs) ||
        option(argv[i], "-max_total_time=", &seconds) || option(argv[i], "-max_len=", &most)) {
      continue;
    }
    if (argv[i][0] == '-') continue;  // an option that only libFuzzer knows
    if (!replay(argv[i])) return 1;
    ++replayed;
  }
  if (replayed != 0) return 0;
  std::mt19937_64 random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  Input input;
  std::uint64_t done = 0;
  for (; runs == 0 ? std::chrono::steady_clock::now() < end : done < runs; ++done) {
    input = next_input(input, most, random);
    std::snprintf(crash_note, sizeof crash_note, "\nfailed at input %llu of -seed=%llu; again: -seed=%llu -runs=%llu\n",
                  static_cast<unsigned long long>(done + 1), static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(seed), static_cast<unsigned long long>(done + 1));
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%llu inputs from seed %llu, none failed\n", static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(seed));
  return 0;
}
