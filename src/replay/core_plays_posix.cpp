#include "replay/core_plays_posix.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>

#include "base/pinned_core_posix.h"
#include "replay/player_process_posix.h"

namespace finitude::replay {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::string_view kFailed = "failed: ";
constexpr double kShareOfMemory = 0.8, kBytesOfUnit = 1024;

volatile std::sig_atomic_t caught = 0;
void catch_it(int number) { caught = number; }

class CatchSignals {
 public:
  CatchSignals() {
    caught = 0;
    struct sigaction how {};
    how.sa_handler = &catch_it;
    sigemptyset(&how.sa_mask);
    for (std::size_t i = 0; i < std::size(kWhich); ++i) sigaction(kWhich[i], &how, &before_[i]);
  }
  ~CatchSignals() {
    for (std::size_t i = 0; i < std::size(kWhich); ++i) sigaction(kWhich[i], &before_[i], nullptr);
  }
  CatchSignals(const CatchSignals&) = delete;
  CatchSignals& operator=(const CatchSignals&) = delete;

 private:
  static constexpr int kWhich[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[std::size(kWhich)]{};
};

// Of a line such as "VmHWM:  1234 kB" the number; 0: there is none.
double number_after(const std::string& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (std::string_view(line).starts_with(key)) return std::strtod(line.c_str() + key.size(), nullptr);
  }
  return 0;
}

double number_in(const std::string& file) {
  std::ifstream in(file);
  std::string word;
  return in >> word ? std::strtod(word.c_str(), nullptr) : 0;  // "max" is 0
}

// Bytes that processes may take: of the machine, and of the container that this process is in.
double free_memory() {
  const double machine = number_after("/proc/meminfo", "MemAvailable:") * kBytesOfUnit;
  const double limit = number_in("/sys/fs/cgroup/memory.max");
  if (limit <= 0) return machine;
  const double reclaimable = number_after("/sys/fs/cgroup/memory.stat", "inactive_file ");
  return std::min(machine, limit - number_in("/sys/fs/cgroup/memory.current") + reclaimable);
}

// Of those that CUDA_VISIBLE_DEVICES names, if it does.
std::string device_word(int number) {
  const char* set = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string_view rest = set != nullptr ? set : "";
  for (int i = 0; i < number && !rest.empty(); ++i) {
    const std::size_t comma = rest.find(',');
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  const std::string_view word = rest.substr(0, rest.find(','));
  return word.empty() ? std::to_string(number) : std::string(word);
}

std::string ended_by(int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    const std::string text = "its process was ended by signal " + std::to_string(number);
    return number == SIGKILL ? text + " (a machine that is short of memory does that)" : text;
  }
  return "its process ended with exit code " + std::to_string(WEXITSTATUS(status));
}

// One process that plays.
class CoreProcess {
 public:
  CoreProcess(const CoreTest& test, std::size_t index, CorePlays* plays) : plays_(plays) {
    const int number = test.devices > 0 ? static_cast<int>(index) : test.cores[index];
    plays_->name = (test.devices > 0 ? "GPU " : "core ") + std::to_string(number);
    start_.program = test.player;
    start_.words = test.words;
    start_.words.insert(start_.words.end(), {"--times", std::to_string(test.times), "--on-core",
                                             test.devices > 0 ? "any" : std::to_string(number), "--", test.capsule});
    start_.variables = {{"OMP_PROC_BIND", ""}, {"OMP_PLACES", ""}, {"GOMP_CPU_AFFINITY", ""}, {"KMP_AFFINITY", ""}};
    if (test.devices > 0) start_.variables.emplace_back("CUDA_VISIBLE_DEVICES", device_word(number));
  }

  void start() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return fail(std::strerror(errno));
    start_.out = ends[1];
    const int error = start_player(start_, &process_);
    close(ends[1]);
    in_ = ends[0];
    if (error == 0) return;
    process_ = 0;
    close_pipe();
    fail(start_.program + ": " + std::strerror(error));
  }

  bool is_running() const { return process_ != 0; }
  int descriptor() const { return in_; }
  std::size_t done() const { return plays_->plays.size(); }
  double memory() const {
    return number_after("/proc/" + std::to_string(process_) + "/status", "VmHWM:") * kBytesOfUnit;
  }

  // What it said; waits where nothing is there.
  void read() {
    char bytes[4096];
    const ssize_t count = ::read(in_, bytes, sizeof bytes);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (count <= 0) return end(false);
    text_.append(bytes, static_cast<std::size_t>(count));
    for (std::size_t at; (at = text_.find('\n')) != std::string::npos; text_.erase(0, at + 1)) {
      CorePlay play;
      if (!read_play_line(text_.substr(0, at), &play)) continue;
      plays_->plays.push_back(std::move(play));
    }
  }

  void end(bool by_us) {
    close_pipe();
    if (process_ == 0) return;
    if (by_us) kill(process_, SIGKILL);
    int status = 0;
    while (waitpid(process_, &status, 0) < 0 && errno == EINTR) continue;
    process_ = 0;
    const bool complete = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!by_us && !complete) fail(ended_by(status));
  }

 private:
  void fail(const std::string& why) { plays_->plays.push_back({{}, why}); }
  void close_pipe() {
    if (in_ >= 0) close(in_);
    in_ = -1;
  }

  CorePlays* const plays_;
  PlayerStart start_;
  pid_t process_ = 0;
  int in_ = -1;
  std::string text_;
};

class CoreProcesses {
 public:
  explicit CoreProcesses(const CoreTest& test) : test_(test), began_(SteadyClock::now()) {
    const std::size_t count = test.devices > 0 ? static_cast<std::size_t>(test.devices) : test.cores.size();
    run_.cores.resize(count);
    for (std::size_t i = 0; i < count; ++i) parts_.emplace_back(test, i, &run_.cores[i]);
    if (test.devices > 0) at_once_ = count;  // each has memory of its own
  }

  CoreRun run() {
    const CatchSignals signals;
    while (run_.stopped.empty() && (next_ < parts_.size() || count_running() > 0)) {
      measure();
      while (next_ < parts_.size() && count_running() < at_once_) parts_[next_++].start();
      wait();
      if (caught != 0) run_.stopped = "stopped by a signal";
      if (seconds() > test_.seconds) run_.stopped = "the time was up";
      show();
    }
    for (CoreProcess& part : parts_) part.end(true);
    if (test_.shows_progress) std::fputs("\r\033[K", stderr);
    return std::move(run_);
  }

 private:
  double seconds() const { return std::chrono::duration<double>(SteadyClock::now() - began_).count(); }
  std::size_t count_running() const {
    return static_cast<std::size_t>(
        std::count_if(parts_.begin(), parts_.end(), [](const CoreProcess& p) { return p.is_running(); }));
  }

  // Once the first has played: how many fit into memory.
  void measure() {
    if (is_measured_ || test_.devices > 0 || next_ == 0) return;
    const CoreProcess& first = parts_.front();
    if (first.done() == 0 && first.is_running()) return;
    is_measured_ = true;
    const double each = first.is_running() ? first.memory() : largest_;
    const double others = each > 0 ? kShareOfMemory * free_memory() / each : static_cast<double>(parts_.size());
    at_once_ = 1 + static_cast<std::size_t>(std::clamp(others, 0.0, static_cast<double>(parts_.size())));
  }

  void wait() {
    std::vector<pollfd> all;
    std::vector<CoreProcess*> whose;
    for (CoreProcess& part : parts_) {
      if (!part.is_running()) continue;
      all.push_back({part.descriptor(), POLLIN, 0});
      whose.push_back(&part);
    }
    if (!is_measured_ && next_ > 0 && parts_.front().is_running())
      largest_ = std::max(largest_, parts_.front().memory());
    constexpr int kMilliseconds = 100;
    if (all.empty() || poll(all.data(), all.size(), kMilliseconds) <= 0) return;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].revents != 0) whose[i]->read();
    }
  }

  void show() {
    if (!test_.shows_progress || SteadyClock::now() < shown_ + std::chrono::milliseconds(200)) return;
    shown_ = SteadyClock::now();
    std::size_t plays = 0;
    for (const CoreProcess& part : parts_) plays += part.done();
    std::fprintf(stderr, "\r\033[K%zu of %zu plays, %zu at once, %.0f of at most %.0f s", plays,
                 parts_.size() * test_.times, count_running(), seconds(), test_.seconds);
    std::fflush(stderr);
  }

  const CoreTest& test_;
  const SteadyClock::time_point began_;
  SteadyClock::time_point shown_{};
  CoreRun run_;
  std::vector<CoreProcess> parts_;
  std::size_t next_ = 0, at_once_ = 1;
  bool is_measured_ = false;
  double largest_ = 0;  // memory that the first was seen to have
};

}  // namespace

bool is_seen_at_once() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && std::string_view(terminal != nullptr ? terminal : "") != "dumb";
}

bool settle_on_core(int core) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return core < 0 || base::stay_on_core(core);
}

std::string play_line(const CorePlay& play) {
  if (!play.failure.empty()) {
    std::string why = play.failure;
    std::replace(why.begin(), why.end(), '\n', ' ');
    return std::string(kFailed) + why + "\n";
  }
  std::string line = "played:";
  char word[24];
  for (const std::uint64_t sum : play.checksums) {
    std::snprintf(word, sizeof word, " %llx", static_cast<unsigned long long>(sum));
    line += word;
  }
  return line + "\n";
}

bool read_play_line(const std::string& line, CorePlay* play) {
  *play = {};
  std::string_view rest = line;
  if (rest.starts_with(kFailed)) {
    play->failure = rest.substr(kFailed.size());
    return !play->failure.empty();
  }
  constexpr std::string_view kPlayed = "played:";
  if (!rest.starts_with(kPlayed)) return false;
  for (rest.remove_prefix(kPlayed.size()); !rest.empty();) {
    std::uint64_t sum = 0;
    if (rest.front() != ' ') return false;
    const auto [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), sum, 16);
    if (error != std::errc()) return false;
    play->checksums.push_back(sum);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  }
  return true;
}

CoreRun play_on_cores(const CoreTest& test) { return CoreProcesses(test).run(); }

}  // namespace finitude::replay
