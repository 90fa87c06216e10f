// What the shared libraries libfinitude_core and libfinitude_torch show to the programs that link them.
#pragma once

#if defined(__GNUC__)
#define FINITUDE_API __attribute__((visibility("default")))
#else
#define FINITUDE_API
#endif
