// How functions of the public headers fail: by value, never by exception.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace finitude {

// What kind of thing went wrong. The set is closed: a program may switch over it.
enum class StatusCode : std::uint8_t {
  kOk,               // done
  kInvalidArgument,  // an option, a variable, or a path that names another thing than is needed
  kUnreadable,       // the file is missing, is no plain file, or the system refuses to read it
  kUnwritable,       // the system refuses to write: permissions, space, or the name is taken
  kCorrupt,          // the file was read, and is damaged, cut off, or of another kind than expected
  kUnsupported,      // the file is sound, and this version or build cannot do that with it
  kTooLarge,         // above a limit on size or memory
  kStopped           // the policy ends the training, or the caller gave up
};

// The outcome of an operation: a code for programs, and one line for a reader that says why.
class [[nodiscard]] Status {
 public:
  Status() = default;
  // `code` is not kOk, and `why` is not empty.
  Status(StatusCode code, std::string why) : code_(code), why_(std::move(why)) {}

  bool ok() const noexcept { return code_ == StatusCode::kOk; }
  StatusCode code() const noexcept { return code_; }
  const std::string& why() const noexcept { return why_; }
  // The same failure of the thing called `name`: "NAME WHY".
  Status of(const std::string& name) const { return {code_, name + " " + why_}; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string why_;
};

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}
  Result(Status status) : content_(std::move(status)) {}

  bool ok() const noexcept { return content_.index() == 0; }
  StatusCode code() const noexcept { return ok() ? StatusCode::kOk : std::get<1>(content_).code(); }
  const std::string& why() const noexcept {
    static const std::string none;
    return ok() ? none : std::get<1>(content_).why();
  }
  // Only where ok().
  const T& operator*() const noexcept { return *std::get_if<0>(&content_); }
  const T* operator->() const noexcept { return std::get_if<0>(&content_); }

 private:
  std::variant<T, Status> content_;
};

}  // namespace finitude
