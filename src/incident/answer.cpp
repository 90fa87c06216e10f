#include "incident/answer.h"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include <nlohmann/json.hpp>

#include "incident/member.h"
#include "incident/merge.h"
#include "incident/report.h"
#include "show/show.h"

namespace finitude::incident {
namespace {

using nlohmann::json;

json to_json(const std::vector<Member>& members) {
  json out = json::array();
  for (const Member& member : members)
    out.push_back({{"name", name_of(member)},
                   {"report", member.report},
                   {"missing", member.missing},
                   {"is_whole", member.is_whole}});
  return out;
}

std::vector<Member> members_of(const json& list) {
  std::vector<Member> found;
  for (const json& one : list)
    found.push_back({one.at("name"), one.at("report"), one.at("missing"), one.at("is_whole")});
  return found;
}

// A report that the schema allows, and so every renderer.
const json& checked(const json& report) {
  if (const std::string problem = show::problem(report); !problem.empty()) throw std::invalid_argument(problem);
  return report;
}

json answer_to(const json& question, const std::string& run) {
  const std::string what = question.at("what");
  if (what == "members") return to_json(members(run));
  if (what == "merged") return merged(question.at("own"), members_of(question.at("members")));
  if (what == "closing_line") return closing_line(question.at("report"));
  if (what == "html") return show::html(checked(question.at("report")));
  if (what == "terminal")
    return show::terminal(checked(question.at("report")),
                          {question.at("colour"), question.at("width"), question.at("unicode")});
  throw std::invalid_argument("there is no question " + what);
}

}  // namespace

Result<std::string> answer(const std::string& question, const std::string& run) try {
  return answer_to(json::parse(question), run).dump(-1, ' ', false, json::error_handler_t::replace);
} catch (const json::exception& e) {
  return Status(StatusCode::kInvalidArgument, e.what());
} catch (const std::invalid_argument& e) {
  return Status(StatusCode::kInvalidArgument, e.what());
}

}  // namespace finitude::incident
