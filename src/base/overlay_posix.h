// Directories overlaid in a mount namespace of the process's own: it reads what is there, and what it writes, renames
// or removes lies in a scratch directory. Linux with user namespaces and overlayfs, which some containers do not give.
#pragma once

#include <string>
#include <vector>

namespace finitude::base {

struct Overlay {
  std::string directory;
  std::string upper, work;  // empty directories of one file system, which is not the overlaid one's
};

struct Overlaid {
  std::vector<std::string> directories;  // those that are
  std::string why;                       // why others are not: "unshare: EPERM"; empty: all are
};

// For a process with one thread, between fork and exec: it has other mounts and a user namespace of its own afterwards,
// also where nothing could be overlaid. stay: directories that are put over the overlays as they are. Where the process
// is in an overlaid directory, it has to enter it again.
Overlaid overlay_directories(const std::vector<Overlay>& overlays, const std::vector<std::string>& stay);

// When a file was made, in seconds since 1970; 0 where the file system does not say. Links are not followed.
double birth_time(const std::string& path);

}  // namespace finitude::base
