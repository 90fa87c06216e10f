#include "recorder/lines_posix.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string_view>

extern char** environ;

namespace finitude::recorder {
namespace {

constexpr std::chrono::seconds kPatience{20};            // for one answer: debug information is read at the first
constexpr std::string_view kEnd = "0x0000000000000000";  // the answer to what is asked last

}  // namespace

// addr2line reads an address, and answers with "0x..." and, for each function that lies there, its name and
// "file:line".
class SourceLines::Process {
 public:
  explicit Process(const std::string& file) {
    int ends[2];
    // A socket, not a pipe: writing to one whose reader is gone raises no signal.
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    const char* words[] = {"addr2line", "-a", "-f", "-C", "-i", "-e", file.c_str(), nullptr};
    const int failed = posix_spawnp(&pid_, words[0], &actions, nullptr, const_cast<char**>(words), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed != 0) {
      pid_ = -1;
      close(ends[0]);
    } else {
      end_ = ends[0];
    }
  }

  ~Process() {
    give_up();
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  std::vector<record::Frame> ask(std::uintptr_t offset) {
    char question[64];
    const int size = std::snprintf(question, sizeof question, "0x%llx\n0x0\n", static_cast<unsigned long long>(offset));
    std::vector<record::Frame> frames;
    std::string line;
    if (end_ < 0 || send(end_, question, static_cast<std::size_t>(size), MSG_NOSIGNAL) != size || !read_line(&line)) {
      give_up();
      return frames;
    }
    while (read_line(&line) && !line.starts_with(kEnd)) {
      record::Frame frame;
      frame.function = line;
      if (!read_line(&line)) break;
      parse_place(line, &frame);
      if (frame.line > 0) frames.push_back(std::move(frame));
    }
    read_line(&line);  // "??", "??:0" of the last question
    if (!read_line(&line)) give_up();
    return frames;
  }

 private:
  void give_up() {
    if (end_ >= 0) close(end_);
    end_ = -1;
  }

  static void parse_place(std::string_view text, record::Frame* frame) {
    text = text.substr(0, text.find(" ("));  // " (discriminator 3)"
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos || text.starts_with('?')) return;
    std::from_chars(text.data() + colon + 1, text.data() + text.size(), frame->line);
    frame->file = text.substr(0, colon);
  }

  bool read_line(std::string* line) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
        *line = unread_.substr(0, end);
        unread_.erase(0, end + 1);
        return true;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      pollfd wait{end_, POLLIN, 0};
      if (end_ < 0 || left.count() <= 0 || poll(&wait, 1, static_cast<int>(left.count())) <= 0) return false;
      char bytes[4096];
      const ssize_t got = read(end_, bytes, sizeof bytes);
      if (got <= 0) return false;
      unread_.append(bytes, static_cast<std::size_t>(got));
    }
  }

  pid_t pid_ = -1;
  int end_ = -1;
  std::string unread_;
};

SourceLines::SourceLines() = default;
SourceLines::~SourceLines() = default;

const std::vector<record::Frame>& SourceLines::at(const std::string& file, std::uintptr_t offset) {
  const auto [known, is_new] = known_.try_emplace({file, offset});
  if (is_new && !file.empty()) {
    auto& process = processes_[file];
    if (!process) process = std::make_unique<Process>(file);
    known->second = process->ask(offset);
  }
  return known->second;
}

}  // namespace finitude::recorder
