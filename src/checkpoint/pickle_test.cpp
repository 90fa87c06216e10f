#include "checkpoint/pickle.h"

#include <gtest/gtest.h>

#include "checkpoint/testing.h"

namespace finitude::checkpoint {
namespace {

using Kind = PickleValue::Kind;

// A pickle with the bytes that its texts lie in.
struct Read {
  explicit Read(std::string given) : bytes(std::move(given)) { EXPECT_EQ(pickle.read(bytes).why(), ""); }
  std::string bytes;
  Pickle pickle;
};
StatusCode code_of(const std::string& bytes) {
  Pickle pickle;
  return pickle.read(bytes).code();
}

TEST(Pickle, NumbersOfEveryForm) {
  const std::string bytes =
      std::string("(K\x07M\xff\xffJ\xff\xff\xff\xff\x8a\x01\x80\x8a\0\x8a\x02\0\x01I12\nL-3L\n", 29);
  const Read made(bytes + "I01\nt.");
  const Pickle& pickle = made.pickle;
  const std::vector<std::int64_t> expected = {7, 65535, -1, -128, 0, 256, 12, -3, 1};
  const PickleValue& root = pickle.at(pickle.root());
  ASSERT_EQ(root.items.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(pickle.item(root, i).number, expected[i]) << i;
  EXPECT_EQ(pickle.item(root, 8).kind, Kind::kBool);
}

TEST(Pickle, FloatIsBigEndian) {
  const Read made(std::string("G\x3f\xf8\0\0\0\0\0\0.", 10));
  const Pickle& pickle = made.pickle;
  EXPECT_EQ(pickle.at(pickle.root()).real, 1.5);
}

TEST(Pickle, DictsAndTheMemo) {
  const Read made("}q\x01(X\x01" + std::string(3, '\0') + "aK\x01X\x01" + std::string(3, '\0') + "bh\x01u.");
  const Pickle& pickle = made.pickle;
  const PickleValue& root = pickle.at(pickle.root());
  EXPECT_EQ(pickle.at(pickle.find(root, "a")).number, 1);
  EXPECT_EQ(pickle.find(root, "b"), pickle.root());  // it holds itself
  EXPECT_EQ(pickle.find(root, "c"), kNoValue);
}

TEST(Pickle, CallsAreKeptAndNotMade) {
  const Read made("cos\nsystem\n(" + pickled_text("true") + "tR.");
  const Pickle& pickle = made.pickle;
  const PickleValue& root = pickle.at(pickle.root());
  EXPECT_EQ(root.kind, Kind::kObject);
  EXPECT_TRUE(pickle.is_global(root.callable, "os", "system"));
  EXPECT_EQ(pickle.item(pickle.at(root.arguments), 0).text, "true");
}

TEST(Pickle, DamageIsRefused) {
  for (const std::string bytes : {"", "K", "(", "t.", "R.", "h\x05.", "X\xff\xff\xff\x7f", "}K\x01s.", "K\x01K\x02u.",
                                  "\x80\x09N.", "cmodule", "\x82\x01.", "NN"})
    EXPECT_EQ(code_of(bytes), StatusCode::kCorrupt) << bytes;
}

TEST(Pickle, MoreValuesThanFitAreRefused) {
  EXPECT_EQ(code_of(std::string((std::size_t{1} << 22) + 2, 'N') + "."), StatusCode::kTooLarge);
}

}  // namespace
}  // namespace finitude::checkpoint
