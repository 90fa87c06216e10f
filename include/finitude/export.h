// Visibility of symbols in the shared libraries libfinitude_core and libfinitude_torch.
//
// The libraries are compiled with hidden visibility. What carries FINITUDE_API is exported and is part of the public
// interface; everything else may change without notice. Compilers other than GCC and Clang export by their default.
#pragma once

#if defined(__GNUC__)
#define FINITUDE_API __attribute__((visibility("default")))
#else
#define FINITUDE_API
#endif
