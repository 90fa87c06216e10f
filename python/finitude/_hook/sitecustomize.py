"""Found through PYTHONPATH by every Python that a watched program starts.

Waits for `import torch`, then hands over to finitude.launch.child. Where torch is never imported nothing else happens.
Any Python may come across this file, so it keeps to what old ones can read."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _UntilTorch(object):
    """Stands first in sys.meta_path until torch is imported; finds nothing itself."""

    is_finitude = True

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        loader = getattr(spec, "loader", None)
        if not hasattr(loader, "exec_module"):
            return spec
        import_torch = loader.exec_module

        def exec_module(module):
            try:
                import_torch(module)
            except BaseException:
                sys.meta_path.insert(0, self)  # the program may try again
                raise
            finally:
                loader.__dict__.pop("exec_module", None)
            _torch_is_here()

        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass  # a loader of another kind: this process stays unwatched
        return spec


def _torch_is_here():
    try:
        if "finitude" not in sys.modules:
            # From where the watching process has it, whatever this one's own path holds.
            import importlib.util

            package = os.path.dirname(_HERE)
            spec = importlib.util.spec_from_file_location(
                "finitude", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
            )
            module = importlib.util.module_from_spec(spec)
            sys.modules["finitude"] = module
            spec.loader.exec_module(module)
        from finitude.launch import child

        child.wait_for_training()
    except Exception as e:
        try:
            sys.stderr.write("finitude: process %d is not watched (%s: %s)\n" % (os.getpid(), type(e).__name__, e))
        except Exception:  # the process has no standard error, or has closed it
            pass


sys.path[:] = [p for p in sys.path if os.path.abspath(p or os.curdir) != _HERE]
if os.environ.get("FINITUDE_FAMILY") and sys.version_info >= (3, 10):
    sys.meta_path.insert(0, _UntilTorch())

# What Python would have imported without us: the user's own sitecustomize. Where there is none, this import fails as
# that one would have, and site.py takes it as it takes that.
sys.modules.pop("sitecustomize", None)
import sitecustomize  # noqa: E402, F401
