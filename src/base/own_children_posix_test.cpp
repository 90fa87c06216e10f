#include "base/own_children_posix.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>

namespace finitude::base {
namespace {

volatile std::sig_atomic_t calls;
void count(int) { calls = calls + 1; }

pid_t forked() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  return child;
}

void live_and_end(OwnChild& own) {
  const pid_t child = forked();  // ends before its number is known, as a rule
  own.started(child);
  waitpid(child, nullptr, 0);
}

class OwnChildren : public testing::Test {
 protected:
  void SetUp() override {
    calls = 0;
    signal(SIGCHLD, &count);
    keep_children_from(reinterpret_cast<const void*>(&count));
  }
  void TearDown() override {
    signal(SIGCHLD, SIG_DFL);
    keep_children_from(nullptr);
  }
};

TEST_F(OwnChildren, TheProgramHearsOfItsOwnAlone) {
  {
    OwnChild own;
    live_and_end(own);
  }
  EXPECT_EQ(calls, 0);
  waitpid(forked(), nullptr, 0);
  EXPECT_EQ(calls, 1);
}

TEST_F(OwnChildren, OneOfTheProgramThatEndsMeanwhileIsHeardOf) {
  {
    OwnChild own;
    waitpid(forked(), nullptr, 0);
    EXPECT_EQ(calls, 0);  // it may be ours
    const pid_t child = forked();
    own.started(child);
    EXPECT_EQ(calls, 1);
    waitpid(child, nullptr, 0);
  }
  EXPECT_EQ(calls, 1);
}

// The kernel keeps one signal of a kind: of two children that end while it is held back only the first is signalled.
TEST_F(OwnChildren, OneWhoseSignalIsLostBehindOursIsHeardOf) {
  sigset_t child_signals, before;
  sigemptyset(&child_signals);
  sigaddset(&child_signals, SIGCHLD);
  auto own = std::make_unique<OwnChild>();
  sigprocmask(SIG_BLOCK, &child_signals, &before);
  const pid_t ours = forked();
  own->started(ours);
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(ours), &info, WEXITED | WNOWAIT);
  const pid_t theirs = forked();
  waitid(P_PID, static_cast<id_t>(theirs), &info, WEXITED | WNOWAIT);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(calls, 0);
  waitpid(ours, nullptr, 0);
  own.reset();
  EXPECT_EQ(calls, 1);
  waitpid(theirs, nullptr, 0);
}

TEST_F(OwnChildren, OneThatCannotBeStartedIsNotHeardOf) {
  {
    OwnChild own;
    waitpid(forked(), nullptr, 0);
    own.started(0);
  }
  EXPECT_EQ(calls, 0);
}

TEST_F(OwnChildren, HandlersOfOtherLibrariesStay) {
  keep_children_from(reinterpret_cast<const void*>(&waitpid));
  {
    OwnChild own;
    live_and_end(own);
  }
  EXPECT_EQ(calls, 1);
}

TEST_F(OwnChildren, AHandlerSetMeanwhileHearsOfNoneEither) {
  {
    OwnChild own;
    signal(SIGCHLD, &count);
    keep_children_again();
    live_and_end(own);
  }
  EXPECT_EQ(calls, 0);
}

// A process that is forked in between has none of ours.
TEST_F(OwnChildren, AForkedProcessHearsOfItsChildren) {
  OwnChild own;
  const pid_t child = fork();
  if (child == 0) {
    waitpid(forked(), nullptr, 0);
    _exit(calls);
  }
  own.started(child);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace finitude::base
