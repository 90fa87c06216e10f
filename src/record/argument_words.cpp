#include "record/argument_words.h"

#include <charconv>
#include <span>
#include <utility>

namespace finitude::record {
namespace {

// c10::ScalarType, c10::Layout, c10::MemoryFormat: their numbers are part of what torch stores, and do not change.
constexpr std::string_view kDtypes[] = {"uint8",           "int8",
                                        "int16",           "int32",
                                        "int64",           "float16",
                                        "float32",         "float64",
                                        "complex32",       "complex64",
                                        "complex128",      "bool",
                                        "qint8",           "quint8",
                                        "qint32",          "bfloat16",
                                        "quint4x2",        "quint2x4",
                                        "bits1x8",         "bits2x4",
                                        "bits4x2",         "bits8",
                                        "bits16",          "float8_e5m2",
                                        "float8_e4m3fn",   "float8_e5m2fnuz",
                                        "float8_e4m3fnuz", "uint16",
                                        "uint32",          "uint64"};
constexpr std::string_view kLayouts[] = {"strided",    "sparse_coo", "sparse_csr", "mkldnn",
                                         "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"};
constexpr std::string_view kReductions[] = {"none", "mean", "sum"};  // at::Reduction
constexpr std::string_view kMemoryFormats[] = {"contiguous_format", "preserve_format", "channels_last",
                                               "channels_last_3d"};

std::span<const std::string_view> names_of(std::string_view argument) {
  if (argument == "dtype" || argument.ends_with("_dtype")) return kDtypes;
  if (argument == "layout") return kLayouts;
  if (argument == "memory_format") return kMemoryFormats;
  if (argument == "reduction") return kReductions;
  return {};
}

}  // namespace

std::string argument_word(std::string_view argument, std::string text) {
  const auto names = names_of(argument);
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_one =
      !text.empty() && error == std::errc() && end == text.data() + text.size() && number < names.size();
  return is_one ? std::string(names[number]) : std::move(text);
}

}  // namespace finitude::record
