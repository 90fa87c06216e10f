// How functions of the public headers fail: by value, never by exception.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace finitude {

// Why something could not be done, in one line for a reader; ok() where it could.
class [[nodiscard]] Status {
 public:
  Status() = default;
  explicit Status(std::string why) : why_(std::move(why)) {}

  bool ok() const noexcept { return why_.empty(); }
  const std::string& why() const noexcept { return why_; }

 private:
  std::string why_;
};

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}
  Result(Status status) : content_(std::move(status)) {}

  bool ok() const noexcept { return content_.index() == 0; }
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
