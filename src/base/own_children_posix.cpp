#include "base/own_children_posix.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

namespace finitude::base {
namespace {

// No locks: the handler reads it, and a process may be forked at any moment.
std::array<std::atomic<pid_t>, 64> ours;     // those that run, or whose end was not signalled yet
std::array<std::atomic<pid_t>, 64> living;   // those that nobody has waited for yet
std::array<std::atomic<pid_t>, 16> unknown;  // signalled while one was started whose number was not known yet
std::atomic<int> starting;                   // how many are
std::atomic<std::uint32_t> heard;            // signals that the program was given
struct sigaction theirs;                     // the program's, written before ours is in place

std::atomic<pid_t> owner;  // the process that all this is of; one that it forks inherits it
std::atomic<const void*> library;

const void* library_of(const void* inside) {
  Dl_info info{};
  return inside != nullptr && dladdr(inside, &info) != 0 ? info.dli_fbase : nullptr;
}

template <std::size_t N>
bool put(std::array<std::atomic<pid_t>, N>& slots, pid_t process) {
  for (auto& slot : slots) {
    pid_t none = 0;
    if (slot.compare_exchange_strong(none, process)) return true;
  }
  return false;
}

template <std::size_t N>
bool take(std::array<std::atomic<pid_t>, N>& slots, pid_t process) {
  for (auto& slot : slots) {
    pid_t one = process;
    if (slot.compare_exchange_strong(one, 0)) return true;
  }
  return false;
}

bool is_one_of_ours(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED || info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED)
    return take(ours, info.si_pid);
  for (const auto& slot : ours)  // it was stopped, or continued
    if (slot == info.si_pid) return true;
  return false;
}

void pass_on(int number, siginfo_t* info, void* context) {
  ++heard;
  if ((theirs.sa_flags & SA_SIGINFO) != 0)
    theirs.sa_sigaction(number, info, context);
  else
    theirs.sa_handler(number);
}

void on_signal(int number, siginfo_t* info, void* context) {
  const int error = errno;
  const bool is_of_child = info != nullptr && info->si_code > 0;  // not sent with kill()
  if (!is_of_child || owner != getpid() || (!is_one_of_ours(*info) && (starting == 0 || !put(unknown, info->si_pid))))
    pass_on(number, info, context);
  errno = error;
}

bool is_in_place() {
  struct sigaction now {};
  return sigaction(SIGCHLD, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &on_signal;
}

// Stays: the signal of a process comes when it likes, also after the process was waited for.
void put_in_place() {
  struct sigaction now {};
  if (library == nullptr || is_in_place() || sigaction(SIGCHLD, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) return;
  if (library_of(reinterpret_cast<const void*>(now.sa_handler)) != library) return;
  theirs = now;
  now.sa_sigaction = &on_signal;
  now.sa_flags |= SA_SIGINFO;
  sigaction(SIGCHLD, &now, nullptr);
}

// An end that was waited for, and whose signal came together with another one, is not signalled any more.
void drop_ended() {
  siginfo_t info{};
  for (auto& slot : ours) {
    pid_t one = slot;
    if (one != 0 && waitid(P_PID, static_cast<id_t>(one), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
      slot.compare_exchange_strong(one, 0);
  }
}

// process 0: of any that can be waited for and is none of ours.
bool can_be_waited_for(pid_t process) {
  siginfo_t info{};
  constexpr int kHow = WEXITED | WSTOPPED | WNOHANG | WNOWAIT;
  return waitid(process != 0 ? P_PID : P_ALL, static_cast<id_t>(process), &info, kHow) == 0 && info.si_pid != 0 &&
         (process != 0 || std::ranges::none_of(living, [&](const auto& one) { return one == info.si_pid; }));
}

void notify() {
  if (is_in_place()) kill(getpid(), SIGCHLD);
}

}  // namespace

void keep_children_from(const void* inside) { library = library_of(inside); }

void keep_children_again() {
  const bool any = std::ranges::any_of(ours, [](const auto& slot) { return slot != 0; });
  if (any || starting != 0) put_in_place();
}

OwnChild::OwnChild() : has_others_(can_be_waited_for(0)), heard_(heard) {
  if (owner.exchange(getpid()) != getpid()) {
    starting = 0;
    for (auto& slot : living) slot = 0;
  }
  drop_ended();
  ++starting;
  put_in_place();
}

void OwnChild::started(pid_t process) {
  if (!is_starting_) return;
  is_starting_ = false;
  process_ = process;
  if (process != 0) put(living, process), put(ours, process);
  --starting;
  bool is_of_others = false;
  for (auto& slot : unknown) {
    const pid_t one = slot.exchange(0);
    if (one == 0 || take(ours, one)) continue;
    // One that could not be started is waited for already.
    if (process != 0 || can_be_waited_for(one)) is_of_others = true;
  }
  if (is_of_others) notify();
}

OwnChild::~OwnChild() {
  started(0);
  if (process_ != 0) take(living, process_);
  // The kernel keeps one such signal at a time: that of a child of the program's may have been lost behind ours.
  if (process_ != 0 && !has_others_ && heard_ == heard && can_be_waited_for(0)) notify();
}

}  // namespace finitude::base
