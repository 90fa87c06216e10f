// The page of a report: the one that web/ builds, filled with what `page_document` makes of the report. A build without
// node has none, and its page is tables.
#include "show/page.h"

#include <array>
#include <utility>

#include "built_page.inc"
#include "show/html_parts.h"
#include "show/page_document.h"
#include "show/printable.h"
#include "show/show.h"

namespace finitude::show {
namespace {

constexpr std::size_t kTerminal = 64 * 1024;

// JSON as the text of a <script>: no character of it can end the element, or be taken for a comment there.
std::string in_script(const Json& document) {
  std::string out;
  for (const char c : document.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    if (c == '<')
      out += "\\u003c";
    else if (c == '>')
      out += "\\u003e";
    else if (c == '&')
      out += "\\u0026";
    else
      out += c;
  }
  return out;
}

// What a browser without scripts shows.
std::string in_terminal(const Json& report) {
  std::string all = terminal(report, {false, 100, true}), out;
  const bool is_cut = all.size() > kTerminal;
  if (is_cut) all.resize(all.rfind('\n', kTerminal) + 1);
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = all.find('\n', at);
    out += escape_line(all.substr(at, end - at)) + "\n";
    at = end == std::string::npos ? all.size() : end + 1;
  }
  return is_cut ? out + "and more in the JSON report\n" : out;
}

std::string built() {
  std::string out;
  for (const std::string_view part : built_page) out += part;
  return out;
}

}  // namespace

std::string filled_page(std::string_view page, const Json& report) {
  const Json document = page_document(report);
  const std::array<std::pair<std::string_view, std::string>, 3> values = {
      {{"@@title@@", escape("finitude: " + text(document, "title"))},
       {"@@terminal@@", in_terminal(report)},
       {"@@report@@", in_script(document)}}};
  std::string out;
  for (const auto& [mark, value] : values) {  // in the order of the page; what is put in is not looked at again
    const std::size_t at = page.find(mark);
    if (at == std::string_view::npos) continue;
    out.append(page.substr(0, at)).append(value);
    page.remove_prefix(at + mark.size());
  }
  return out.append(page);
}

bool has_built_page() { return !built_page[0].empty(); }

std::string html(const Json& report) { return has_built_page() ? filled_page(built(), report) : html_tables(report); }

}  // namespace finitude::show
