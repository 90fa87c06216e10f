// Writes JSON text as it comes, without building JSON values.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>

#include "record/trace.h"

namespace finitude::record {

class JsonWriter {
 public:
  void open(char bracket) {
    separate();
    out_ += bracket;
    first_ = true;
  }
  void close(char bracket) {
    out_ += bracket;
    first_ = false;
  }
  void end_line() {
    out_ += '\n';
    first_ = true;
  }
  void key(std::string_view name) {
    separate();
    out_ += '"';
    out_ += name;
    out_ += "\":";
    first_ = true;
  }
  void text(std::string_view s) {
    separate();
    bool plain = true;
    for (const char c : s) plain &= c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
    if (plain) {
      out_ += '"';
      out_ += s;
      out_ += '"';
    } else {
      out_ += nlohmann::json(s).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    }
  }
  void number(auto value)
    requires std::is_integral_v<decltype(value)>
  {
    separate();
    append(value);
  }
  void number(double value) {
    if (std::isnan(value)) return text("NaN");
    if (std::isinf(value)) return text(value > 0 ? "Infinity" : "-Infinity");
    separate();
    append(value);
  }
  void null() {
    separate();
    out_ += "null";
  }
  void flag(std::string_view name) {
    key(name);
    separate();
    out_ += "true";
  }
  template <typename T>
  void field(std::string_view name, const T& value) {
    key(name);
    if constexpr (std::is_arithmetic_v<T>) {
      number(value);
    } else {
      text(value);
    }
  }
  void id(std::string_view name, std::uint32_t value) {
    if (value != kNone) field(name, value);
  }
  std::size_t size() const { return out_.size(); }
  void cut(std::size_t size) { out_.resize(size); }  // back to an earlier size
  std::string take() { return std::move(out_); }

 private:
  void separate() {
    if (!first_) out_ += ',';
    first_ = false;
  }
  void append(auto value) {
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
    out_.append(buffer, end);
  }
  std::string out_;
  bool first_ = true;
};

}  // namespace finitude::record
