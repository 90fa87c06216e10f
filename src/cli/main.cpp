// The executable finitude-offline.
#include "cli/cli.h"

int main(int argc, char** argv) { return finitude::cli::main(argc, argv); }
