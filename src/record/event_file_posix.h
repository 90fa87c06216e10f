// events.jsonl of a run folder, on disk as soon as a line is known.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace finitude::record {

// Each line is written by one call of write(2) and not buffered, so a process that is killed leaves whole lines. The
// first failure ends it. Not thread-safe; append() may be called again by `folder`.
class EventFile {
 public:
  static constexpr std::uint64_t kMostBytes = 64u << 20;  // of a file

  EventFile() = default;
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;
  ~EventFile() { close(); }

  // folder: makes the folder of the run and returns it, empty where there is none; called once in each process, as a
  // forked one has a folder of its own. Returns why the line could not be written, once; else an empty text.
  std::string append(std::string_view line, const std::function<std::string()>& folder);
  // Nothing is written any more.
  void close() noexcept;

 private:
  std::string failed(int number);
  bool open(const std::function<std::string()>& folder);  // false: errno says why

  int descriptor_ = -1;
  long process_ = 0;  // that opened it
  std::uint64_t size_bytes_ = 0;
  bool is_off_ = false;
};

}  // namespace finitude::record
