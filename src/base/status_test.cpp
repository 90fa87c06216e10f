#include "finitude/status.h"

#include <gtest/gtest.h>

namespace finitude {
namespace {

TEST(Status, OfAnotherThingKeepsItsCode) {
  const Status status(StatusCode::kTooLarge, "is larger than 1 MiB");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.of("a.json").code(), StatusCode::kTooLarge);
  EXPECT_EQ(status.of("a.json").why(), "a.json is larger than 1 MiB");
}

TEST(Status, NothingWrongIsOk) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().code(), StatusCode::kOk);
  EXPECT_EQ(Result<int>(3).code(), StatusCode::kOk);
  EXPECT_EQ(Result<int>(Status(StatusCode::kCorrupt, "is cut off")).code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace finitude
