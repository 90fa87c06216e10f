// The two pages behind `html`, for its tests.
#pragma once

#include <string>
#include <string_view>

#include "show/read.h"

namespace finitude::show {

// `page` with @@title@@, @@terminal@@ and @@report@@ filled in. Whatever the report says, it stays text.
std::string filled_page(std::string_view page, const Json& report);

bool has_built_page();  // web/ was built into this library

// The page of a build that has none: tables, without a script.
std::string html_tables(const Json& report);

}  // namespace finitude::show
