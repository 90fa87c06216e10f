#include "replay/tape_calls.h"

#include <gtest/gtest.h>

#include "capture/testing.h"

namespace finitude::replay {
namespace {

using capture::Tape;

TEST(TapeCalls, AreFoundByNumberAndName) {
  const Tape tape = capture::sample_tape();  // a state, a fill, aten::mul.Tensor, aten::_foreach_add_.List
  std::string why;
  for (const char* word : {"2", "aten::mul", "mul", "mul.Tensor", "aten::mul.Tensor", "mul#1"})
    EXPECT_EQ(find_call(tape, word, &why), 2u) << word;
  EXPECT_EQ(find_call(tape, "_foreach_add_", &why), 3u);
}

TEST(TapeCalls, OfOneNameAreCounted) {
  Tape tape = capture::sample_tape();
  tape.entries.push_back(tape.entries[2]);
  std::string why;
  EXPECT_EQ(find_call(tape, "mul#2", &why), 4u);
  EXPECT_EQ(find_call(tape, "mul", &why), 2u);
}

TEST(TapeCalls, ThatAreNotThereAreReported) {
  const Tape tape = capture::sample_tape();
  for (const auto& [word, said] :
       {std::pair("0", ", no call"), std::pair("17", "the last number of the step is 3"),
        std::pair("log", "does not call log"), std::pair("mul#2", "only 1 times"), std::pair("mul#0", "behind #"),
        std::pair("mul#", "behind #"), std::pair("", "does not call")}) {
    std::string why;
    EXPECT_FALSE(find_call(tape, word, &why)) << word;
    EXPECT_NE(why.find(said), std::string::npos) << why;
  }
}

TEST(TapeCalls, OfAnOperatorALineOrAModuleAreAllFound) {
  Tape tape = capture::sample_tape_with_notes();  // call 2 in model.py:7, Net.head.0; call 3 in train.py:12, no module
  tape.entries.push_back(tape.entries[2]);
  const std::vector<std::size_t> both{2, 4};
  std::string why;
  for (const char* word : {"mul", "aten::mul.Tensor", "model.py:7", "/project/model.py:7", "project/model.py:7", "Net",
                           "Net.head", "Net.head.0", "head", "head.0"})
    EXPECT_EQ(find_calls(tape, word, &why), both) << word;
  for (const char* word : {"4", "mul#2"}) EXPECT_EQ(find_calls(tape, word, &why), std::vector<std::size_t>{4}) << word;
  EXPECT_EQ(find_calls(tape, "train.py:12", &why), std::vector<std::size_t>{3});
  for (const char* word :
       {"odel.py:7", "model.py:8", "model.py:", "hea", "head.", "0", "Net.head.0.x", "mul#3", "", ":7"}) {
    why.clear();
    EXPECT_TRUE(find_calls(tape, word, &why).empty()) << word;
    EXPECT_NE(why, "") << word;
  }
}

TEST(TapeCalls, AreReportedWithTheirLine) {
  Tape tape = capture::sample_tape_with_notes();
  EXPECT_EQ(call_name(tape, 2), "aten::mul.Tensor");
  EXPECT_EQ(place_of(tape, 2), "  model.py:7");
  EXPECT_EQ(place_of(tape, 3), "  backward of train.py:12  loss = (w * 3).sum()");
  EXPECT_EQ(place_of(tape, 0), "");
  tape.places[1].file = "/x/\x1b[2Jm.py";
  EXPECT_EQ(place_of(tape, 2), "   [2Jm.py:7") << "nothing that a terminal obeys";
}

}  // namespace
}  // namespace finitude::replay
