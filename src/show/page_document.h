// What the page of a report shows, as JSON: every sentence made by `words.h`, every text printable, every list bounded.
// The page (web/) only arranges and draws it, so that page, terminal and tables cannot disagree. No format: page and
// document are of one build.
#pragma once

#include "show/read.h"

namespace finitude::show {

Json page_document(const Json& report);

}  // namespace finitude::show
