#include "observe/nested_writes.h"

#include <gtest/gtest.h>

namespace finitude::observe {
namespace {

TEST(NestedWrites, NameTheOperatorAroundThem) {
  int memory = 0;
  const Span span{&memory, 0, 16}, part{&memory, 0, 8};
  NestedWrites writes;
  writes.wrote(span);  // nothing is open
  writes.begin();      // the list
  writes.begin();      // one of it
  EXPECT_FALSE(writes.has(span));
  writes.wrote(span);
  writes.end(1);
  EXPECT_TRUE(writes.has(span));
  EXPECT_FALSE(writes.has(part));  // the very same bytes, or it is not known who wrote the rest
  writes.wrote(part);              // nobody is around the list
  writes.end(0);
  writes.begin();
  EXPECT_FALSE(writes.has(span));
}

TEST(NestedWrites, UnendedOperatorsEndWithTheirEnclosingOnes) {
  int memory = 0;
  const Span span{&memory, 0, 16};
  NestedWrites writes;
  for (int i = 0; i < 3; ++i) writes.begin();
  writes.end(1);
  EXPECT_EQ(writes.depth(), 1u);
  writes.end(4);
  EXPECT_EQ(writes.depth(), 1u);
  writes.begin();
  writes.wrote(span);
  writes.clear();
  EXPECT_EQ(writes.depth(), 0u);
  EXPECT_FALSE(writes.has(span));
}

}  // namespace
}  // namespace finitude::observe
