// Fuzzing the reader of generator states: what it gives out has positions inside of its words, and is written and
// read again the same.
#include "capture/generators.h"

#include <cstdio>
#include <cstdlib>

#include "base/edits.h"

namespace finitude::capture {
namespace {

bool sound(const TorchGenerator& g) { return g.left >= 1 && g.left + g.next <= kTwisterWords + 1; }

void check(const std::string& bytes) {
  Generators read, again;
  if (!read_generators(bytes, &read)) return;
  bool fine = !read.torch || sound(*read.torch);
  fine &= !read.python || read.python->position <= kTwisterWords;
  fine &= !read.numpy || read.numpy->position <= kTwisterWords;
  for (const auto& own : read.own) fine &= !own || sound(*own);
  const std::string written = write_generators(read);
  fine &= read_generators(written, &again) && write_generators(again) == written;
  if (fine) return;
  std::fprintf(stderr, "generators that cannot be\n");
  std::abort();
}

std::string sample() {
  Generators g;
  g.torch.emplace();
  g.torch->next_float = 1.5f;
  g.torch->seeded = true;
  g.python.emplace();
  g.numpy.emplace();
  g.own.push_back(g.torch);
  g.own.emplace_back();
  g.devices = {{"cuda:0", true, 1, 8}};
  return write_generators(g);
}

}  // namespace
}  // namespace finitude::capture

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  static const std::string sample = finitude::capture::sample();
  finitude::capture::check(std::string(reinterpret_cast<const char*>(input), size));
  finitude::capture::check(finitude::base::edited(sample, input, size));
  // Where the positions lie: changes there alone.
  finitude::capture::check(finitude::base::edited(sample.substr(0, 32), input, size) + sample.substr(32));
  return 0;
}
