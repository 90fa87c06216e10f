// finitude-replay CAPSULE: issues the calls of a recorded step again with libtorch, no Python, and says
// whether every bit came out as it was.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "capture/capsule.h"
#include "capture/tape_file.h"
#include "replay/tape_player.h"

namespace {

enum Exit { kSame = 0, kUsage = 2, kUnreadable = 3, kCannotHere = 4 };

constexpr const char* kUsageText =
    "finitude-replay [--threads N] [--allow NAMESPACE]... [--times N] CAPSULE\n"
    "Issues the calls of a recorded step again and compares loss, gradients and all else that was recorded, "
    "bit by bit.\n"
    "CAPSULE is the folder of a capsule, or the file of a tape that holds its inputs itself.\n"
    "  --threads N         with so many threads; as many as there were by default\n"
    "  --allow NAMESPACE   operators of this library may be called; aten always\n"
    "  --times N           so often; every time has to come out the same\n"
    "Exit codes: 0 the same bits, 1 other bits, 2 usage, 3 it is unreadable or corrupt, 4 it cannot be "
    "replayed here.\n";

struct Words {
  std::string file;
  finitude::replay::PlayOptions options;
  int times = 1;
};

bool number(const char* text, int* value) {
  char* end = nullptr;
  const long parsed = std::strtol(text, &end, 10);
  *value = static_cast<int>(parsed);
  return *text != '\0' && *end == '\0' && parsed >= 1 && parsed <= 1024;
}

bool parse(int argc, char** argv, Words* words) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool more = i + 1 < argc;
    if (word == "--threads" && more) {
      if (!number(argv[++i], &words->options.threads)) return false;
    } else if (word == "--times" && more) {
      if (!number(argv[++i], &words->times)) return false;
    } else if (word == "--allow" && more) {
      words->options.namespaces.emplace_back(argv[++i]);
    } else if (word.starts_with("-") || !words->file.empty()) {
      return false;
    } else {
      words->file = word;
    }
  }
  return !words->file.empty();
}

int complain(Exit code, const std::string& what) {
  std::fprintf(stderr, "finitude-replay: %s\n", what.c_str());
  return code;
}

finitude::Status read(const std::string& path, nlohmann::json* about, finitude::capture::Tape* tape) {
  std::error_code error;
  *about = nlohmann::json::object();
  if (std::filesystem::is_directory(path, error)) return finitude::capture::read_capsule(path, about, tape);
  std::string bytes;
  const finitude::Status status = finitude::base::read_file(path, &bytes);
  return status.ok() ? finitude::capture::read_tape(bytes, tape) : status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
    std::fputs(kUsageText, stdout);
    return kSame;
  }
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("finitude-replay %s\n", FINITUDE_VERSION);
    return kSame;
  }
  Words words;
  if (!parse(argc, argv, &words)) {
    std::fputs(kUsageText, stderr);
    return kUsage;
  }
  finitude::capture::Tape tape;
  nlohmann::json about;
  if (const finitude::Status status = read(words.file, &about, &tape); !status.ok()) {
    return complain(kUnreadable, words.file + " " + status.why());
  }
  if (about.contains("redacted") && about["redacted"] != false) {
    return complain(
        kCannotHere,
        words.file + " was made with --redact: its values were left out, so it cannot be replayed");
  }
  int code = kSame;
  for (int i = 0; i < words.times && code != kCannotHere; ++i) {
    const finitude::replay::Told told =
        finitude::replay::tell(finitude::replay::play(tape, words.options), tape);
    std::fputs(told.text.c_str(), told.code == kCannotHere ? stderr : stdout);
    code = std::max(code, told.code);
  }
  return code;
}
