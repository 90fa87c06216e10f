// `incident [RUN]`: answers one question about the processes of a run, read from standard input. The launcher of a
// program with several processes asks, which has no torch.
#include <iostream>
#include <iterator>

#include "cli/commands.h"
#include "incident/answer.h"

namespace finitude::cli {

int incident_command(const std::string& run, const Console& console) {
  const std::string question{std::istreambuf_iterator<char>(std::cin), {}};
  const Result<std::string> answer = incident::answer(question, run);
  if (!answer.ok()) {
    console.complain(answer.why());
    return kUnreadable;
  }
  console.out << *answer << '\n';
  return kDone;
}

}  // namespace finitude::cli
