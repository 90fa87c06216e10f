// The methods and functions of torch through which Python code looks at values: isnan, item, `loss != loss`, detach,
// data ...
//
// While they are watched, the entries of torch's own method tables lead to functions of finitude, which look at the
// tensor and then call torch's. What Python sees are the same objects as before, so that whatever knows them by
// identity (torch.compile, torch.jit, torch.fx) knows them still. No operator changes: what C++, compiled or traced
// code calls does not come here.
#pragma once

namespace finitude::bindings {

// GIL held. A table that is not what torch 2.6 to 2.15 have is not touched: such checks are not seen then.
void watch_check_methods(bool on);

}  // namespace finitude::bindings
