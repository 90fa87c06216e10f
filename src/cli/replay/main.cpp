// finitude-replay CAPSULE: issues the calls of a recorded step again with libtorch, no Python, and says
// whether every bit came out as it was.
#include <cstdio>
#include <string>
#include <vector>

#include "cli/replay/replay_command.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string usage = finitude::cli::replay_usage("finitude-replay");
  // What nobody got was not reported: a script that has kept half of it must not take it for all.
  const auto written = [](int code) {
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    std::fputs("finitude-replay: cannot write to standard output\n", stderr);
    return 4;
  };
  if (words == std::vector<std::string>{"--help"}) {
    std::fputs(usage.c_str(), stdout);
    return written(0);
  }
  if (words == std::vector<std::string>{"--version"}) {
    std::printf("finitude-replay %s\n", FINITUDE_VERSION);
    return written(0);
  }
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // an operator that crashes ends the process
  finitude::cli::ReplayOptions options;
  std::string why = finitude::cli::parse_replay(words, &options);
  if (why.empty() && !options.break_at.empty())
    why = "--break needs Python: finitude replay has it; --stop-at shows the same";
  if (!why.empty()) {
    std::fprintf(stderr, "finitude-replay: %s\n(finitude-replay --help shows the options)\n", why.c_str());
    return 2;
  }
  const auto to = [](std::FILE* file, const char* before) {
    return [file, before](std::string_view text) {
      std::fprintf(file, "%s%.*s", before, static_cast<int>(text.size()), text.data());
    };
  };
  return written(finitude::cli::run_replay(options, to(stdout, ""), to(stderr, "finitude-replay: ")));
}
