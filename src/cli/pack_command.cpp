// `pack` and `unpack`: a capsule as one file, and back.
#include <atomic>
#include <csignal>
#include <filesystem>

#include "capture/pack_capsule_posix.h"
#include "cli/commands.h"
#include "cli/newest.h"
#include "show/printable.h"

namespace finitude::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".capsule.zip";

// Ctrl-C and SIGTERM end what is being written; then this process ends by that signal, and nothing stays.
std::atomic<bool> interrupted = false;
std::atomic<int> by_signal = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

class Interruptible {
 public:
  Interruptible() {
    for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, &note);
  }
  ~Interruptible() {
    for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
    if (interrupted.load()) std::raise(by_signal.load());
  }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  static void note(int signal) {
    by_signal.store(signal);
    interrupted.store(true);
  }
};

int shown(const Status& status, const std::string& source, const std::string& target, const Console& console) {
  if (status.ok()) {
    console.out << show::printable(target, console.screen.unicode) << '\n';
    return kDone;
  }
  const bool is_of_target = status.code() == StatusCode::kUnwritable;
  console.complain(is_of_target ? "cannot write " + target + ": " + status.why() : source + " " + status.why());
  return is_of_target ? kCannotHere : kUnreadable;
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

int pack_command(const PackWords& words, const Console& console) {
  std::string folder = without_slashes(words.from);
  if (folder.empty()) {
    folder = take_newest(Wanted::kCapsule, console);
    if (folder.empty()) return kUnreadable;
  }
  const std::string out = words.to.empty() ? folder + kSuffix : words.to;
  const Interruptible until_done;
  return shown(capture::pack_capsule(folder, out, &interrupted), folder, out, console);
}

int unpack_command(const PackWords& words, const Console& console) {
  fs::path folder(words.to);
  if (words.to.empty()) {
    folder = words.from;
    if (const std::string& name = words.from; name.ends_with(kSuffix))
      folder = name.substr(0, name.size() - std::string(kSuffix).size());
    else if (folder.has_extension())
      folder.replace_extension();
    else {
      console.complain(words.from + " has no suffix: name the folder that is to be made");
      return kUnreadable;
    }
  }
  const Interruptible until_done;
  return shown(capture::unpack_capsule(words.from, folder.string(), words.most_mb << 20, &interrupted), words.from,
               folder.string(), console);
}

}  // namespace finitude::cli
