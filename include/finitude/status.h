// How functions of the public headers fail: by value, never by exception.
//
//   const finitude::Result<finitude::Report> report = finitude::read_report(path);
//   if (!report.ok()) return fail(report.why());
//   use(report->alarms);
//
// Both classes are plain values: copy and move them freely, use one object from one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace finitude {

// What kind of thing went wrong. The set is closed: a program may switch over it without a default.
enum class StatusCode : std::uint8_t {
  // Done.
  kOk,
  // An option, an environment variable or a path names something else than is needed.
  kInvalidArgument,
  // The file is missing, is not a plain file, or the system refuses to read it.
  kUnreadable,
  // The system refuses to write: permissions, space, or the name is taken.
  kUnwritable,
  // The file was read, and is damaged, cut off, or of another kind than expected.
  kCorrupt,
  // The file is sound, but this version or build cannot do that with it.
  kUnsupported,
  // Above a limit on size or memory.
  kTooLarge,
  // The policy ends the training, or the caller gave up.
  kStopped
};

// The outcome of an operation: a code for programs, and one line for readers that says why. The class is nodiscard: to
// ignore a failure, cast to void.
class [[nodiscard]] Status {
 public:
  // Success.
  Status() = default;
  // A failure. `code` is not kOk, and `why` is not empty; neither is checked.
  Status(StatusCode code, std::string why) : code_(code), why_(std::move(why)) {}

  bool ok() const noexcept { return code_ == StatusCode::kOk; }
  StatusCode code() const noexcept { return code_; }
  // One line without a final newline. Empty if ok(). Valid as long as this object.
  const std::string& why() const noexcept { return why_; }
  // The same failure of the thing called `name`: the line becomes "NAME WHY". For failures only.
  Status of(const std::string& name) const { return {code_, name + " " + why_}; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string why_;
};

namespace detail {

// Of a Result that holds a value.
inline const std::string kNoReason;

}  // namespace detail

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  // Both conversions are implicit, so that a function returns either a value or a Status.
  Result(T value) : content_(std::move(value)) {}
  // `status` is a failure. This is not checked; a Status that is ok would make a Result without a value.
  Result(Status status) : content_(std::move(status)) {}

  // Is there a value?
  bool ok() const noexcept { return content_.index() == 0; }
  StatusCode code() const noexcept { return ok() ? StatusCode::kOk : std::get<1>(content_).code(); }
  // As Status::why().
  const std::string& why() const noexcept { return ok() ? detail::kNoReason : std::get<1>(content_).why(); }
  // The value. Only if ok(): otherwise the behaviour is undefined. Valid as long as this object.
  const T& operator*() const noexcept { return *std::get_if<0>(&content_); }
  const T* operator->() const noexcept { return std::get_if<0>(&content_); }

 private:
  std::variant<T, Status> content_;
};

}  // namespace finitude
