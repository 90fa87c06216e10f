#include "replay/crash_line_posix.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <iterator>

namespace finitude::replay {
namespace {

struct Fault {
  int number;
  const char* name;
};
constexpr std::array<Fault, 5> kFaults{
    {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}, {SIGABRT, "SIGABRT"}}};

// No locks: the handler reads them, in whichever thread the fault is.
std::atomic<const char*> running;
std::atomic<std::size_t> running_number;
std::atomic<int> code;
std::array<struct sigaction, kFaults.size()> before;

void write_out(const char* text, std::size_t size) {
  while (size > 0) {
    const ssize_t written = write(STDERR_FILENO, text, size);
    if (written <= 0) return;
    text += written;
    size -= static_cast<std::size_t>(written);
  }
}

void write_out(const char* text) { write_out(text, std::strlen(text)); }

// Calls nothing but what POSIX allows in a handler, and allocates nothing.
void on_fault(int number, siginfo_t* /*info*/, void* /*context*/) {
  std::size_t which = 0;
  while (which + 1 < kFaults.size() && kFaults[which].number != number) ++which;
  if (const char* op = running) {
    char digits[24];
    const char* const end = std::to_chars(std::begin(digits), std::end(digits), running_number.load()).ptr;
    write_out("finitude: number ");
    write_out(digits, static_cast<std::size_t>(end - digits));
    write_out(" of the step, ");
    write_out(op);
    write_out(": the operator crashed with ");
    write_out(kFaults[which].name);
    write_out("; the capsule may be damaged, or it is a bug of the operator\n");
    _exit(code);
  }
  sigaction(number, &before[which], nullptr);
  raise(number);  // delivered when the handler returns
}

}  // namespace

AtWork::AtWork(const char* op, std::size_t number) {
  running_number = number;
  running = op;
}

AtWork::~AtWork() { running = nullptr; }

CrashLine::CrashLine(int exit_code) : stack_(std::size_t{64} << 10) {
  code = exit_code;
  stack_t own{};
  own.ss_sp = stack_.data();
  own.ss_size = stack_.size();
  sigaltstack(&own, &before_);
  struct sigaction now {};
  now.sa_sigaction = &on_fault;
  now.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (std::size_t i = 0; i < kFaults.size(); ++i) sigaction(kFaults[i].number, &now, &before[i]);
}

CrashLine::~CrashLine() {
  for (std::size_t i = 0; i < kFaults.size(); ++i) sigaction(kFaults[i].number, &before[i], nullptr);
  sigaltstack(&before_, nullptr);
}

}  // namespace finitude::replay
