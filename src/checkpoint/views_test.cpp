#include "checkpoint/views.h"

#include <gtest/gtest.h>

#include <map>

namespace finitude::checkpoint {
namespace {

struct Layout {
  const char* what;
  std::vector<std::int64_t> shape, strides;
  bool is_contiguous, is_dense;
};
const Layout kLayouts[] = {
    {"one element", {}, {}, true, true},
    {"rows", {3, 4}, {4, 1}, true, true},
    {"transposed", {4, 3}, {1, 4}, false, true},
    {"every second column", {3, 2}, {4, 2}, false, false},
    {"expanded", {3, 4}, {0, 1}, false, false},
    {"channels last", {2, 3, 2, 2}, {12, 1, 6, 3}, false, true},
    {"windows that overlap", {4, 3}, {1, 1}, false, false},
    {"strides without order", {3, 3}, {2, 3}, false, false},
    {"sizes of one", {1, 3, 1}, {7, 1, 9}, true, true},
};

TEST(Views, EveryPlaceIsFound) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.what);
    std::uint64_t span = 0;
    ASSERT_TRUE(span_of(layout.shape, layout.strides, &span));
    const View view(layout.shape, layout.strides);
    EXPECT_EQ(view.is_contiguous(), layout.is_contiguous);
    EXPECT_EQ(view.is_dense(), layout.is_dense);
    std::map<std::uint64_t, View::Found> expected;  // by place
    for (std::uint64_t n = 0; n < view.elements(); ++n) {
      const std::vector<std::int64_t> indices = indices_of(n, layout.shape);
      std::uint64_t place = 0;
      for (std::size_t i = 0; i < indices.size(); ++i)
        place += static_cast<std::uint64_t>(indices[i] * layout.strides[i]);
      ASSERT_LT(place, span);
      if (View::Found& found = expected[place]; found.count++ == 0) found.first = n;
    }
    for (std::uint64_t place = 0; place < span + 2; ++place) {
      std::uint64_t effort = 1 << 20;
      const View::Found found = view.find(place, &effort);
      EXPECT_EQ(found.count, expected[place].count) << place;
      EXPECT_EQ(found.first, expected[place].first) << place;
    }
  }
}

TEST(Views, SpansThatOverflowAreRefused) {
  std::uint64_t span = 0;
  EXPECT_FALSE(span_of({std::int64_t{1} << 40, 2}, {std::int64_t{1} << 40, 1}, &span));
  EXPECT_FALSE(span_of({std::int64_t{1} << 62, 4}, {0, 0}, &span));
  EXPECT_TRUE(span_of({0, std::int64_t{1} << 62}, {std::int64_t{1} << 62, 4}, &span));
  EXPECT_EQ(span, 0u);
}

TEST(Views, ASearchEnds) {
  const View view(std::vector<std::int64_t>(60, 2), std::vector<std::int64_t>(60, 1));
  std::uint64_t effort = 1000;
  (void)view.find(30, &effort);
  EXPECT_EQ(effort, 0u);
}

}  // namespace
}  // namespace finitude::checkpoint
